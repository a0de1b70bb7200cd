//! The output of the command line's parser: help and errors. Tips and usage lines are made here, where the intended verb is
//! known. The parser itself would suggest similar names of any verb, and print a usage line with all given arguments.

use crate::failure::Failure;
use crate::{output, show};
use amalgam_core::vocabulary::byte_string::shown;
use amalgam_workload::closest;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::num::{ParseFloatError, ParseIntError};
use std::os::unix::ffi::OsStrExt;
use std::process;

/// An argument that has to be text is not UTF-8.
fn no_text(arguments: &[OsString]) -> Failure {
    let wrong = arguments.iter().find(|argument| argument.to_str().is_none()).map(|argument| argument.as_bytes());
    let what = format!("the argument `{}` is not UTF-8", shown(wrong.unwrap_or_default()));
    Failure::usage(what, "write UTF-8 text; only paths, variables and arguments after `--` may have other bytes")
}

/// Exits with the message about these arguments. The first one is the program's name.
pub fn refuse(error: Error, program: Command, arguments: &[OsString]) -> ! {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let shown = show::print_raw(rendered(&error, io::stdout().is_terminal()).as_bytes());
        process::exit(match shown {
            Ok(()) => 0,
            Err(failure) => {
                show::note(&failure.to_string());
                failure.code.into()
            }
        });
    }
    let of_bytes = || (error.kind() == ErrorKind::InvalidUtf8).then(|| no_text(arguments));
    if let Some(failure) = of_bytes().or_else(|| wrong_number(&error)) {
        show::note(&failure.to_string());
        process::exit(failure.code.into());
    }
    let text = rendered(&improved(error, program, arguments), show::is_watched());
    let _ = output::stderr().write_all(text.as_bytes());
    process::exit(2);
}

fn rendered(error: &Error, is_watched: bool) -> String {
    let text = error.render();
    if is_watched && show::shows_colour() { text.ansi().to_string() } else { text.to_string() }
}

/// The standard library's messages about numbers are for programmers.
fn wrong_number(error: &Error) -> Option<Failure> {
    let source = error.source()?;
    let allowed = match (source.is::<ParseIntError>(), source.is::<ParseFloatError>()) {
        (true, _) => "write a whole number, such as 10",
        (_, true) => "write a number, such as 0.5",
        _ => return None,
    };
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (value, argument) = (context(ContextKind::InvalidValue), context(ContextKind::InvalidArg));
    Some(Failure::usage(format!("invalid value `{}` for `{argument}`", show::visible(&value)), allowed))
}

/// The error with usage lines and tips of the intended verb. `arguments` start with the program's name.
pub fn improved(mut error: Error, mut program: Command, arguments: &[OsString]) -> Error {
    program.build();
    let mut verb = meant(&program, arguments);
    let wrong = |error: &Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let suggest = |error: &mut Error, kind, nearest: Option<String>| match nearest {
        Some(nearest) => drop(error.insert(kind, ContextValue::String(nearest))),
        None => drop(error.remove(kind)),
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let written = wrong(&error, ContextKind::InvalidArg);
            let nearest = written.and_then(|written| nearest_argument(&verb, &written));
            suggest(&mut error, ContextKind::SuggestedArg, nearest);
        }
        ErrorKind::InvalidSubcommand => {
            let written = wrong(&error, ContextKind::InvalidSubcommand);
            let verbs = verb.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name);
            let nearest = written.and_then(|written| Some(closest(&written, verbs)?.to_owned()));
            suggest(&mut error, ContextKind::SuggestedSubcommand, nearest);
        }
        ErrorKind::InvalidValue => {
            let nearest = match (error.get(ContextKind::InvalidValue), error.get(ContextKind::ValidValue)) {
                (Some(ContextValue::String(written)), Some(ContextValue::Strings(values))) => {
                    closest(written, values.iter().map(String::as_str)).map(str::to_owned)
                }
                _ => None,
            };
            suggest(&mut error, ContextKind::SuggestedValue, nearest);
        }
        _ => {}
    }
    if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
        // The other tips are about arguments of other verbs.
        let of_this = |tip: &String| tip.starts_with("to pass") || tip.starts_with("subcommand");
        let kept: Vec<_> = tips.into_iter().filter(|tip| of_this(&tip.to_string())).collect();
        if !kept.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(kept));
        }
    }
    if error.get(ContextKind::Usage).is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(verb.render_usage()));
    }
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidSubcommand, ContextKind::InvalidValue] {
        if let Some(text) = wrong(&error, kind) {
            error.insert(kind, ContextValue::String(show::visible(&text).into_owned()));
        }
    }
    error
}

/// The verb and subcommand in the arguments, as far as they exist.
fn meant(program: &Command, arguments: &[OsString]) -> Command {
    let takes_value = |written: &str| {
        let name = written.strip_prefix("--").unwrap_or_default();
        let argument = program.get_arguments().find(|argument| argument.get_long() == Some(name));
        argument.is_some_and(|argument| argument.get_action().takes_values())
    };
    let mut verb = program;
    let mut rest = arguments.iter().skip(1).map_while(|argument| argument.to_str());
    while let Some(argument) = rest.next() {
        match verb.find_subcommand(argument) {
            Some(found) => verb = found,
            None if takes_value(argument) => drop(rest.next()),
            None if argument.starts_with('-') && argument != "--" => {}
            None => break,
        }
    }
    verb.clone()
}

fn nearest_argument(verb: &Command, written: &str) -> Option<String> {
    let written = written.strip_prefix("--")?.split('=').next()?;
    let shown = verb.get_arguments().filter(|argument| !argument.is_hide_set());
    let names = shown.filter_map(clap::Arg::get_long);
    closest(written, names).map(|nearest| format!("--{nearest}"))
}
