//! A scenario: the flags of `sim run` in a TOML file, one key for each.

use super::SimArgs;
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use amalgam_workload::closest;
use amalgam_workload::text::read_text;
use clap::{ArgAction, Command, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A command line of `amalgam sim`.
#[derive(Parser)]
#[command(name = "amalgam")]
struct CommandLine {
    #[command(flatten)]
    _connection: Connection,
    #[command(subcommand)]
    verb: OnlyVerb,
}

#[derive(Subcommand)]
enum OnlyVerb {
    Sim(SimArgs),
}

/// The same command line with the flags of its scenario file. Flags of the command line come later and replace them.
///
/// # Errors
/// Names the file, the line and the allowed values.
pub fn with_flags_of(path: &Path) -> Result<SimArgs> {
    let flags = read(path)?;
    let own: Vec<OsString> = std::env::args_os().collect();
    let (before, after) = own.split_at(after_verb(&own));
    let words = before.iter().cloned().chain(flags.into_iter().map(OsString::from)).chain(after.iter().cloned());
    let OnlyVerb::Sim(args) = CommandLine::try_parse_from(words).unwrap_or_else(|error| error.exit()).verb;
    Ok(args)
}

/// The index after the words `sim run`. A flag before them may have the value `run`; then the words up to there do not parse as
/// a command line.
fn after_verb(words: &[OsString]) -> usize {
    let is_verb = |at: &usize| {
        let start = words[..*at].iter().cloned();
        let rest = ["--workload", "synthetic"].map(OsString::from);
        words[at - 1] == "run" && CommandLine::try_parse_from(start.chain(rest)).is_ok()
    };
    (1..=words.len()).find(is_verb).unwrap_or(words.len())
}

fn read(path: &Path) -> Result<Vec<String>> {
    let name = path.display();
    let text =
        read_text(path).map_err(|error| Failure::unreadable(path, &error, "name a scenario, or give flags alone"))?;
    flags(&text).map_err(|Mistake { at, what, remedy }| {
        let line = text[..at.min(text.len())].matches('\n').count() + 1;
        Failure::usage(format!("{name}:{line}: {what}"), remedy)
    })
}

/// An error and its byte offset in the file.
#[derive(Debug)]
struct Mistake {
    at: usize,
    what: String,
    remedy: String,
}

fn flags(text: &str) -> std::result::Result<Vec<String>, Mistake> {
    let table = DeTable::parse(text).map_err(|error| Mistake {
        at: error.span().map_or(0, |span| span.start),
        what: format!("this is not TOML: {}", error.message().replace('\n', ", ")),
        remedy: "correct the syntax here".to_owned(),
    })?;
    let command = run_command();
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut flags = Vec::new();
    for (key, value) in entries {
        let of_key = flags_of(&command, key, value)?;
        check(&of_key).map_err(|what| {
            let remedy = "`amalgam sim run --help` shows what each key takes: they are the flags".to_owned();
            Mistake { at: key.span().start, what, remedy }
        })?;
        flags.extend(of_key);
    }
    Ok(flags)
}

fn run_command() -> Command {
    let command = CommandLine::command();
    let run = command.find_subcommand("sim").and_then(|sim| sim.find_subcommand("run"));
    run.expect("there is such a verb").clone()
}

fn flags_of(
    command: &Command,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
) -> std::result::Result<Vec<String>, Mistake> {
    let name: &str = key.get_ref();
    let known = || command.get_arguments().filter_map(|argument| argument.get_long());
    let Some(argument) = command.get_arguments().find(|argument| argument.get_long() == Some(name)) else {
        let near = closest(name, known());
        let remedy = near.map_or_else(
            || format!("known keys: {}", known().collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        return Err(Mistake { at: key.span().start, what: format!("unknown key `{name}`"), remedy });
    };
    let wrong = |remedy: &str| Mistake {
        at: value.span().start,
        what: format!("`{name}` does not take this"),
        remedy: remedy.to_owned(),
    };
    let given = |text: String| format!("--{name}={text}");
    let action = argument.get_action();
    match value.get_ref() {
        DeValue::Boolean(wanted) if matches!(action, ArgAction::SetTrue) => {
            Ok(if *wanted { vec![format!("--{name}")] } else { Vec::new() })
        }
        _ if matches!(action, ArgAction::SetTrue) => Err(wrong("write true or false")),
        DeValue::Table(pairs) if matches!(action, ArgAction::Append) => {
            let mut pairs: Vec<_> = pairs.iter().collect();
            pairs.sort_by_key(|(key, _)| key.span().start);
            let flag = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                let text = scalar(value.get_ref()).ok_or_else(|| wrong("write `key = \"value\"` in it"))?;
                Ok(given(format!("{}={text}", key.get_ref())))
            };
            pairs.into_iter().map(flag).collect()
        }
        DeValue::Array(items) => {
            let texts: Option<Vec<String>> = items.iter().map(|item| scalar(item.get_ref())).collect();
            let texts = texts.ok_or_else(|| wrong("write a list of texts or numbers"))?;
            Ok(match action {
                ArgAction::Append => texts.into_iter().map(given).collect(),
                _ => vec![given(texts.join(","))],
            })
        }
        other => Ok(vec![given(scalar(other).ok_or_else(|| wrong("write a text, a number or a list of them"))?)]),
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// Whether the command line's parser accepts these flags.
fn check(flags: &[String]) -> std::result::Result<(), String> {
    let words = ["amalgam", "sim", "run", "--workload", "synthetic"].map(str::to_owned);
    let Err(error) = CommandLine::try_parse_from(words.into_iter().chain(flags.iter().cloned())) else { return Ok(()) };
    let shown = error.to_string();
    let first = shown.lines().next().unwrap_or_default();
    Err(first.strip_prefix("error: ").unwrap_or(first).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_after_the_verb_is_found_whatever_flags_are_called() {
        for (line, at) in [
            ("amalgam sim run file.toml", 3),
            ("amalgam --state-dir run sim run file.toml --seed 3", 5),
            ("amalgam sim --state-dir run run run", 5),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(after_verb(&words), at, "{line}");
        }
    }

    #[test]
    fn every_kind_of_flag_can_be_written() {
        let text = "preset = ['fifo', 'drf']\nnodes = 20\ncpus = 0.5\nworkload = 'synthetic:layered'\nstrict = true\n\
                    free = false\n[workload-option]\njobs = 3\narrival = 'poisson:8s'\n";
        let expected = [
            "--preset=fifo,drf",
            "--nodes=20",
            "--cpus=0.5",
            "--workload=synthetic:layered",
            "--strict",
            "--workload-option=jobs=3",
            "--workload-option=arrival=poisson:8s",
        ];
        assert_eq!(flags(text).unwrap(), expected);
        assert_eq!(
            flags("workload-option = ['a=1', 'b=2']").unwrap(),
            ["--workload-option=a=1", "--workload-option=b=2"]
        );
    }

    #[test]
    fn mistakes_name_the_place_and_what_is_allowed() {
        for (text, at, what, remedy) in [
            ("nodes = 3\nprest = 'fifo'", 10, "unknown key `prest`", "did you mean `preset`?"),
            ("colour = 'red'", 0, "unknown key `colour`", "known keys: preset, beside, workload"),
            ("nodes = 3\npreset = 'fifi'", 10, "known: amalgam, fifo, capacity, drf", "--help"),
            ("loss = 7", 0, "at least 0 and less than 1", "--help"),
            ("strict = 1", 9, "`strict` does not take this", "true or false"),
            ("until = [[1]]", 8, "`until` does not take this", "a list of texts or numbers"),
            ("nodes = 3\nnodes = 4", 10, "this is not TOML", "correct the syntax"),
            ("seed = 1979-05-27", 7, "`seed` does not take this", "a text, a number"),
        ] {
            let mistake = flags(text).unwrap_err();
            assert!(mistake.what.contains(what) && mistake.remedy.contains(remedy), "{text}: {mistake:?}");
            assert_eq!(mistake.at, at, "{text}");
        }
    }
}
