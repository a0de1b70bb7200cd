//! The diagnostics that daemons write to standard error.

use crate::environment;
use crate::failure::Result;
use crate::levels::{LogFormat, part_of};
use crate::output::Standard;
use crate::{output, show};
use amalgam_daemon::terminal::misleads;
use serde_json::{Map, Value};
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// How a daemon writes its diagnostics.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct LogArgs {
    /// Format of the diagnostics on standard error; AMALGAM_LOG_FORMAT may hold it [default: text]
    // Not an `env` of the argument: the variable is checked for every verb.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

impl LogArgs {
    /// Writes the diagnostics of this process to standard error: those that AMALGAM_LOG selects, by default warnings.
    ///
    /// # Errors
    /// If a variable of the environment is invalid.
    pub fn start(self) -> Result<()> {
        let format = match self.log_format {
            Some(format) => format,
            None => environment::log_format()?.unwrap_or_default(),
        };
        let colours = format == LogFormat::Text && show::is_watched() && show::shows_colour();
        let writer = move || Log { out: output::stderr(), colours, format };
        let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours).event_format(Line(format));
        let registry = tracing_subscriber::registry().with(environment::log_levels()?).with(layer);
        // A second call changes nothing.
        let _ = registry.try_init();
        Ok(())
    }
}

/// Formats one event as one line.
struct Line(LogFormat);

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for Line {
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (level, part) = (*event.metadata().level(), part_of(event.metadata().target()));
        if self.0 == LogFormat::Json {
            let mut time = String::new();
            SystemTime.format_time(&mut Writer::new(&mut time))?;
            return writeln!(out, "{}", as_json(time, level, part, event));
        }
        SystemTime.format_time(&mut out)?;
        let colour = match level {
            Level::ERROR => 31,
            Level::WARN => 33,
            Level::INFO => 32,
            Level::DEBUG => 34,
            Level::TRACE => 35,
        };
        match out.has_ansi_escapes() {
            true => write!(out, " \x1b[{colour}m{level:>5}\x1b[0m {part}: ")?,
            false => write!(out, " {level:>5} {part}: ")?,
        }
        context.format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

fn as_json(time: String, level: Level, part: &str, event: &Event<'_>) -> String {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let mut line = Map::new();
    line.insert("time".to_owned(), time.into());
    line.insert("level".to_owned(), level.to_string().to_lowercase().into());
    line.insert("part".to_owned(), part.into());
    // Fields of the same names cannot replace the first three.
    for (name, value) in fields.0 {
        line.entry(name).or_insert(value);
    }
    Value::Object(line).to_string()
}

/// The fields of an event, of which one is its message.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn take(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.take(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.take(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.take(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.take(field, value);
    }
}

/// Writes one line for each event, also if names of nodes and users contain control characters.
struct Log {
    out: Standard,
    colours: bool,
    format: LogFormat,
}

impl Write for Log {
    /// Gets one whole event for each call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        // The only escapes left are colours: those in values are already printed as text.
        let shown = match (self.format, self.colours) {
            (LogFormat::Json, _) => visible_in_json(line).into(),
            (LogFormat::Text, true) => show::visible_in_colour(line),
            (LogFormat::Text, false) => show::visible(line),
        };
        // If the diagnostics cannot be written, the daemon continues without them.
        let _ = self.out.write_all(&[shown.as_bytes(), b"\n"].concat());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The same JSON on one line that is safe to print.
fn visible_in_json(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for character in line.chars() {
        if !misleads(character) {
            shown.push(character);
            continue;
        }
        // Such characters are only in strings.
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_misleads_is_escaped_in_json_and_means_the_same() {
        let value = Value::from("a\u{202e}b\u{9b}c\u{e0001}d");
        let shown = visible_in_json(&value.to_string());
        assert!(!shown.contains('\u{202e}') && !shown.contains('\u{9b}'), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
    }
}
