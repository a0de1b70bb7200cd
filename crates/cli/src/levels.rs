//! What people write about diagnostics: levels, parts of the program, and formats.
//!
//! People name parts, such as `http`; each stands for some modules.

use crate::failure::{Failure, Result};
use crate::show;
use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The parts and their modules. The part of a module is that of its longest prefix here.
const PARTS: [(&str, &[&str]); 9] = [
    ("server", &["server", "global", "changed", "reload", "service_manager"]),
    ("agent", &["agent", "hollow", "jobs", "kept_output"]),
    ("loop", &["shell"]),
    ("executor", &["executor", "shell::executor_link"]),
    ("transport", &["transport", "channel", "cryptography", "strangers"]),
    ("http", &["http"]),
    ("store", &["store", "replica", "accounting", "dates", "journal"]),
    ("auth", &["auth", "authority", "identity", "audit"]),
    ("files", &["files", "shell::fetcher", "transport::ways"]),
];

/// The crate of all daemons.
const CRATE: &str = "amalgam_daemon";

/// Format of the diagnostics.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub enum LogFormat {
    // The variants have no help texts, which would be a list in the help of every daemon.
    #[default]
    Text,
    Json,
}

/// Reads levels such as `info`, or `info,http=debug`: one for all parts, and those of some parts.
pub fn parse_levels(variable: &str, text: &str) -> Result<Targets> {
    let (mut of_all, mut targets) = (LevelFilter::WARN, Targets::new());
    for item in text.split(',').map(str::trim) {
        let (part, level) =
            item.split_once('=').map_or((None, item), |(part, level)| (Some(part.trim()), level.trim()));
        let known = LEVELS.into_iter().find(|known| known.eq_ignore_ascii_case(level));
        let Some(level) = known.and_then(|known| known.parse::<LevelFilter>().ok()) else {
            let level = show::visible(level);
            let what = part.map_or_else(
                || format!("{variable} is `{level}`, which is not a level"),
                |part| format!("{variable} has `{level}` for `{}`, which is not a level", show::visible(part)),
            );
            let levels = LEVELS.join(", ");
            let remedy = format!("set it to one of {levels}, also for parts as in `info,http=debug`, or unset it");
            return Err(Failure::usage(what, remedy));
        };
        let Some(part) = part else {
            of_all = level;
            continue;
        };
        let Some((_, modules)) = PARTS.into_iter().find(|(known, _)| *known == part) else {
            let what = format!("{variable} names `{}`, which is not a part", show::visible(part));
            let parts = PARTS.map(|(known, _)| known).join(", ");
            return Err(Failure::usage(what, format!("the parts are {parts}")));
        };
        targets = targets.with_targets(modules.iter().map(|module| (format!("{CRATE}::{module}"), level)));
    }
    Ok(targets.with_default(of_all))
}

pub fn parse_format(variable: &str, text: &str) -> Result<LogFormat> {
    <LogFormat as ValueEnum>::from_str(text.trim(), true).map_err(|_| {
        let what = format!("{variable} is `{}`, which is not a format", show::visible(text));
        Failure::usage(what, "set it to text or json, or unset it")
    })
}

/// The part of a module; of another crate, its name.
pub fn part_of(module: &str) -> &str {
    let Some(within) = module.strip_prefix(CRATE).and_then(|rest| rest.strip_prefix("::")) else {
        return module.split("::").next().unwrap_or(module);
    };
    let is_below =
        |prefix: &str| within.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    let matches = PARTS.iter().flat_map(|(part, modules)| modules.iter().map(move |prefix| (*part, *prefix)));
    let best = matches.filter(|(_, prefix)| is_below(prefix)).max_by_key(|(_, prefix)| prefix.len());
    best.map_or(within, |(part, _)| part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::{Path, PathBuf};
    use tracing::Level;

    #[test]
    fn levels_are_for_all_parts_or_for_one() {
        let levels = parse_levels("X", " INFO, http=trace ,executor=off").unwrap();
        let is_shown = |module: &str, level| levels.would_enable(&format!("amalgam_daemon::{module}"), &level);
        assert!(is_shown("store::log", Level::INFO) && !is_shown("store::log", Level::DEBUG));
        assert!(is_shown("http::connections", Level::TRACE));
        assert!(is_shown("shell", Level::INFO) && !is_shown("shell::executor_link", Level::ERROR));
        assert!(levels.would_enable("hyper::proto", &Level::INFO) && !levels.would_enable("hyper", &Level::DEBUG));
        let only = parse_levels("X", "http=debug").unwrap();
        assert!(only.would_enable("amalgam_daemon::store", &Level::WARN));
        assert!(!only.would_enable("amalgam_daemon::store", &Level::INFO));
        for (wrong, what) in [
            ("chatty", "X is `chatty`, which is not a level"),
            ("info,", "X is ``, which is not a level"),
            ("http=loud", "X has `loud` for `http`, which is not a level"),
            ("disk=info", "X names `disk`, which is not a part"),
        ] {
            assert_eq!(parse_levels("X", wrong).unwrap_err().what, what);
        }
    }

    #[test]
    fn modules_belong_to_the_most_specific_part() {
        for (module, part) in [
            ("amalgam_daemon::server::standby", "server"),
            ("amalgam_daemon::shell::committer", "loop"),
            ("amalgam_daemon::shell::executor_link", "executor"),
            ("amalgam_daemon::authority", "auth"),
            ("hyper::client", "hyper"),
        ] {
            assert_eq!(part_of(module), part);
        }
    }

    /// Source files below a directory that write diagnostics.
    fn writers(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                writers(&entry, found);
            } else if fs::read_to_string(&entry).is_ok_and(|text| text.contains("tracing::")) {
                found.push(entry);
            }
        }
    }

    #[test]
    fn every_module_that_writes_diagnostics_belongs_to_a_part() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon/src");
        let mut found = Vec::new();
        writers(&source, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for path in found {
            let path = path.strip_prefix(&source).unwrap().with_extension("");
            let path = path.to_str().unwrap().replace('/', "::");
            let module = format!("{CRATE}::{}", path.trim_end_matches("::mod"));
            let part = part_of(&module);
            assert!(PARTS.iter().any(|(known, _)| *known == part), "{module} belongs to no part");
        }
    }
}
