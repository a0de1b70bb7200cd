//! Formats for people: columns, numbers, amounts, and functions that print them.

use crate::failure::{Failure, Result};
use crate::output;
pub use crate::output::note;
use amalgam_core::vocabulary::Duration;
use amalgam_daemon::service_manager;
use amalgam_daemon::terminal::misleads;
pub use amalgam_daemon::terminal::{visible, visible_in_colour, visible_lines};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// Left-aligned columns under headings; the last column has any width. Control characters are escaped, so a row is one line.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<Cow<str>>> = rows.iter().map(|row| row.iter().map(|cell| visible(cell)).collect()).collect();
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut written = String::new();
        for (cell, width) in cells.zip(&widths) {
            written.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(written.trim_end());
        text.push('\n');
    };
    line(&mut headings.iter().copied());
    for row in &rows {
        line(&mut row.iter().map(AsRef::as_ref));
    }
    text
}

/// A table without those of the `optional` columns that are empty in all rows.
pub fn table_of_used(headings: &[&str], rows: &[Vec<String>], optional: &[&str]) -> String {
    let is_used = |column: usize| {
        !optional.contains(&headings[column])
            || rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.is_empty()))
    };
    let used: Vec<usize> = (0..headings.len()).filter(|column| is_used(*column)).collect();
    let kept = |row: &Vec<String>| used.iter().filter_map(|column| row.get(*column).cloned()).collect();
    let headings: Vec<&str> = used.iter().map(|column| headings[*column]).collect();
    table(&headings, &rows.iter().map(kept).collect::<Vec<_>>())
}

/// Prints the interface's types as JSON. Characters that a terminal would interpret are escaped within strings.
pub fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(error.to_string(), ""))?;
    let mut shown = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        // Such a character can only be part of a string.
        match character != '\n' && misleads(character) {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => shown.push(character),
        }
    }
    shown.push('\n');
    print_raw(shown.as_bytes())
}

/// Prints lines for people.
pub fn print(text: &str) -> Result<()> {
    print_raw(visible_lines(text).as_bytes())
}

/// Prints bytes unchanged.
pub fn print_raw(bytes: &[u8]) -> Result<()> {
    output::stdout().write_all(bytes).map_err(|error| Failure::unwritten("standard output", &error))
}

/// Prints a daemon's ready line, and sends it to the service manager. A daemon continues if it cannot be written.
pub fn announce(line: &str) {
    service_manager::ready(line.strip_prefix("ready: ").unwrap_or(line));
    if let Err(failure) = print(&format!("{line}\n")) {
        note(&failure.to_string());
    }
}

/// Prints failures that occurred beside a partial success.
pub fn failures<'a>(failures: impl IntoIterator<Item = &'a Failure>) {
    failures.into_iter().for_each(|failure| note(&failure.to_string()));
}

/// Whether standard error is a terminal, so that progress can be drawn.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

pub fn shows_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub fn seconds(seconds: f64) -> String {
    Duration::from_micros((seconds.max(0.0) * 1e6) as u64).to_string()
}

pub fn optional_seconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), seconds)
}

/// Up to three decimals, without trailing zeros.
pub fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut amount = count as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{amount:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(visible("plain \u{e9} \u{1f980}"), "plain \u{e9} \u{1f980}");
        assert_eq!(visible("a\nb\r\t\x07\x1b[31m\x7f"), "a\\nb\\r\\t\\u{7}\\u{1b}[31m\\u{7f}");
        assert_eq!(visible("\u{9b}2J \u{202e}gpj.exe\u{2066}\u{2028}"), "\\u{9b}2J \\u{202e}gpj.exe\\u{2066}\\u{2028}");
        assert_eq!(visible_lines("a\n\x1bb\n"), "a\n\\u{1b}b\n");
        let rows = [vec!["1".to_owned(), "x\nforged".to_owned()]];
        assert_eq!(table(&["ID", "NAME"], &rows), "ID  NAME\n1   x\\nforged\n");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["1".to_owned(), "long name".to_owned()], vec!["12".to_owned(), "x".to_owned()]];
        assert_eq!(table(&["ID", "NAME"], &rows), "ID  NAME\n1   long name\n12  x\n");
    }

    #[test]
    fn numbers_of_bytes_are_short() {
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(12), "12 B");
    }
}
