//! Time as integers of microseconds.
//!
//! Core never reads a clock: every handler gets the time as an argument. An [`Instant`] has a meaning only inside one process and
//! its log; messages between processes contain durations and ages.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A point in time: microseconds since an origin that the driver chooses (the daemons take the Unix epoch and
/// never step back, the simulator takes the start of the run).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Instant(pub u64);

/// A length of time in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Duration(pub u64);

/// How far the clock of this process is ahead of another's, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClockOffset(i64);

impl ClockOffset {
    /// From the readings of both clocks at the same moment.
    pub fn between(own: Instant, other: Instant) -> ClockOffset {
        ClockOffset(own.0.wrapping_sub(other.0) as i64)
    }
}

impl Instant {
    pub const ZERO: Instant = Instant(0);
    /// Later than anything that happens.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// The time since `earlier`; zero where `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }

    /// This instant of another process, by the clock of this one.
    #[must_use]
    pub fn by_clock(self, offset: ClockOffset) -> Instant {
        Instant(self.0.saturating_add_signed(offset.0))
    }

    /// The instant `age` before this one, not before the origin.
    pub fn before(self, age: Duration) -> Instant {
        Instant(self.0.saturating_sub(age.0))
    }
}

impl Duration {
    pub const ZERO: Duration = Duration(0);
    pub const MAX: Duration = Duration(u64::MAX);

    pub const fn from_micros(micros: u64) -> Duration {
        Duration(micros)
    }
    pub const fn from_millis(millis: u64) -> Duration {
        Duration(millis * 1_000)
    }
    pub const fn from_secs(secs: u64) -> Duration {
        Duration(secs * 1_000_000)
    }
    pub const fn as_micros(self) -> u64 {
        self.0
    }
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Reads `90s`, `1.5h`, `250ms`, `2d`, `1h30m`, `90` (seconds) or `[HH:]MM:SS`.
    ///
    /// # Errors
    /// The expected forms.
    pub fn parse(text: &str) -> Result<Duration, String> {
        let trimmed = text.trim();
        let wrong = || format!("`{text}` is not a duration; write `90s`, `5m`, `1h30m`, `250ms` or `00:01:30`");
        if trimmed.contains(':') {
            return parse_clock(trimmed).ok_or_else(wrong);
        }
        if let Ok(seconds) = trimmed.parse::<f64>() {
            return from_seconds(seconds).ok_or_else(wrong);
        }
        parse_units(trimmed).ok_or_else(wrong)
    }
}

fn from_seconds(seconds: f64) -> Option<Duration> {
    (0.0..1e12).contains(&seconds).then(|| Duration((seconds * 1e6).round() as u64))
}

fn parse_clock(text: &str) -> Option<Duration> {
    let parts: Vec<&str> = text.split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let mut seconds = 0.0;
    for (place, part) in parts.iter().enumerate() {
        let number: f64 = part.parse().ok()?;
        let whole = place + 1 < parts.len();
        if number < 0.0 || (whole && number.fract() != 0.0) || (place > 0 && number >= 60.0) {
            return None;
        }
        seconds = seconds * 60.0 + number;
    }
    from_seconds(seconds)
}

fn parse_units(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let number: f64 = rest[..unit_at].trim().parse().ok()?;
        let unit_end =
            rest[unit_at..].find(|c: char| !c.is_ascii_alphabetic()).map_or(rest.len(), |length| unit_at + length);
        let seconds_per_unit = match &rest[unit_at..unit_end] {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return None,
        };
        total = Duration(total.0.checked_add(from_seconds(number * seconds_per_unit)?.0)?);
        rest = rest[unit_end..].trim_start();
    }
    Some(total)
}

impl fmt::Display for Duration {
    /// `850us`, `12.4ms`, `3.21s`, `4m05s`, `2h03m`, `3d04h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0;
        let seconds = micros / 1_000_000;
        match micros {
            0 => write!(f, "0s"),
            1..=999 => write!(f, "{micros}us"),
            1_000..=999_999 => write!(f, "{:.1}ms", micros as f64 / 1e3),
            1_000_000..=59_999_999 => write!(f, "{:.2}s", micros as f64 / 1e6),
            _ if seconds < 3_600 => write!(f, "{}m{:02}s", seconds / 60, seconds % 60),
            _ if seconds < 86_400 => write!(f, "{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
            _ => write!(f, "{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
        }
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, length: Duration) -> Instant {
        Instant(self.0.saturating_add(length.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, length: Duration) {
        *self = *self + length;
    }
}

impl Add for Duration {
    type Output = Duration;
    fn add(self, other: Duration) -> Duration {
        Duration(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Duration {
    fn add_assign(&mut self, other: Duration) {
        *self = *self + other;
    }
}

impl Sub for Duration {
    type Output = Duration;
    fn sub(self, other: Duration) -> Duration {
        Duration(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Duration {
    fn sub_assign(&mut self, other: Duration) {
        *self = *self - other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_the_forms_that_people_write() {
        let cases = [
            ("90s", 90_000_000),
            ("90", 90_000_000),
            ("1.5h", 5_400_000_000),
            ("1h30m", 5_400_000_000),
            ("250ms", 250_000),
            ("00:01:30", 90_000_000),
            ("01:30", 90_000_000),
            ("2d", 172_800_000_000),
        ];
        for (text, micros) in cases {
            assert_eq!(Duration::parse(text), Ok(Duration(micros)), "{text}");
        }
        for text in ["", "fast", "5 parsecs", "-3s", "1:75", "1:2:3:4", "3x", "nan", "1h30"] {
            assert!(Duration::parse(text).is_err(), "{text} was read as {:?}", Duration::parse(text));
        }
    }

    #[test]
    fn durations_print_short() {
        for (micros, text) in
            [(0, "0s"), (850, "850us"), (12_400, "12.4ms"), (3_210_000, "3.21s"), (245_000_000, "4m05s")]
        {
            assert_eq!(Duration(micros).to_string(), text);
        }
    }
}
