//! Parsers of the numbers in the lines of traces. They check the units.

use amalgam_core::vocabulary::Duration;

/// The maximum time in a trace, about 30 years. A larger number has another unit than assumed.
pub(crate) const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// Reads a time in seconds.
pub(crate) fn seconds(text: &str, what: &str) -> Result<Duration, String> {
    time(text, what, "seconds", 1.0)
}

/// Reads a time in milliseconds.
pub(crate) fn millis(text: &str, what: &str) -> Result<Duration, String> {
    time(text, what, "milliseconds", 1e3)
}

/// A duration from milliseconds, or an instant from milliseconds since the epoch.
pub(crate) fn from_millis(millis: u64) -> Duration {
    Duration::from_micros(millis.saturating_mul(1_000))
}

fn time(text: &str, what: &str, unit: &str, per_second: f64) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{what} `{}` is not a number", shortened(text)))?;
    if number.is_nan() || number < 0.0 {
        return Err(format!("{what} `{text}` is not a time"));
    }
    if number / per_second > LONGEST.as_secs_f64() {
        return Err(format!("{what} `{text}` cannot be in {unit}: that is more than 30 years"));
    }
    Ok(Duration::from_micros((number / per_second * 1e6).round() as u64))
}

/// Splits a line of comma-separated values. None of the formats quotes values.
pub(crate) fn columns<const COUNT: usize>(line: &str) -> Result<[&str; COUNT], String> {
    let found = line.split(',').count();
    let mut fields = line.split(',').map(str::trim);
    let columns = std::array::from_fn(|_| fields.next().unwrap_or_default());
    if found == COUNT { Ok(columns) } else { Err(format!("the line has {found} fields, not {COUNT}")) }
}

/// Reads a finite number that is not negative.
pub(crate) fn amount(text: &str, what: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("{what} `{}` is not an amount", shortened(text)))
}

/// The time from `start` to `end`, which must not be before it.
pub(crate) fn between(start: Duration, end: Duration) -> Result<Duration, String> {
    if end < start { Err(format!("the end is {} before the start", start - end)) } else { Ok(end - start) }
}

/// Reads a number of tasks, at least one.
pub(crate) fn tasks(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("the job has no tasks".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("the number of tasks `{}` is not a whole number", shortened(text))),
    }
}

/// Reads a whole number.
pub(crate) fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{what} `{}` is not a whole number in range", shortened(text)))
}

/// The start of a text, for messages.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}
