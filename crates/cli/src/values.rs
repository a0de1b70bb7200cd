//! Values of arguments that verbs of several programs have in common.

use crate::failure::{Failure, Result};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::byte_string::shown;
use clap::builder::PossibleValuesParser;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// # Errors
/// A sentence with the nearest preset and all known ones.
pub fn parse_preset(name: &str) -> std::result::Result<Preset, String> {
    Preset::parse(name).map_err(|allowed| {
        let near = amalgam_workload::closest(name, Preset::all().map(Preset::name));
        near.map_or_else(|| allowed.clone(), |near| format!("{allowed}; did you mean `{near}`?"))
    })
}

/// Splits `key=value`.
pub fn parse_option(text: &str) -> std::result::Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as limit=100")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// `1..200`, including the last one.
pub fn parse_seeds(text: &str) -> std::result::Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once("..").ok_or("write it as 1..200")?;
    let number =
        |text: &str| text.trim_start_matches('=').parse::<u64>().map_err(|_| format!("`{text}` is not a seed"));
    let seeds = number(first)?..=number(last)?;
    if seeds.is_empty() { Err("the first seed is greater than the last".to_owned()) } else { Ok(seeds) }
}

/// Accepts the interface's words, and lists them if the value is another one.
pub fn one_of<T: Copy>(all: &[T], word: fn(T) -> &'static str) -> PossibleValuesParser {
    PossibleValuesParser::new(all.iter().map(|value| word(*value)))
}

/// A path as part of a text. Fails if it is not UTF-8.
pub fn as_text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        let what =
            format!("the path `{}` is not UTF-8, and has to be part of a text", shown(path.as_os_str().as_bytes()));
        Failure::usage(what, "use another directory; for temporary ones, set TMPDIR")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_written_as_a_range() {
        assert_eq!(parse_seeds("1..200"), Ok(1..=200));
        assert_eq!(parse_seeds("7..=7"), Ok(7..=7));
        assert!(parse_seeds("7").is_err() && parse_seeds("9..3").is_err() && parse_seeds("a..b").is_err());
    }
}
