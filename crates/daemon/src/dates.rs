//! Days, by their dates in UTC, and what the rows of reports are for.

use crate::api::Timestamp;

/// A day in microseconds.
pub const DAY: u64 = 86_400 * 1_000_000;

/// What the rows of a report are for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct By {
    pub user: bool,
    pub queue: bool,
    pub day: bool,
}

/// The date of a day, counted from the Unix epoch.
pub fn date(day: u64) -> String {
    Timestamp(day.saturating_mul(DAY)).to_string().chars().take(10).collect()
}

/// The day of a date, such as `2026-11-27`.
pub fn day_of_date(text: &str) -> Option<u64> {
    let is_date = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    Timestamp::parse(text).filter(|_| is_date).map(|Timestamp(micros)| micros / DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_days_in_utc() {
        for (day, text) in [(0, "1970-01-01"), (20_784, "2026-11-27"), (19_782, "2024-02-29")] {
            assert_eq!((date(day).as_str(), day_of_date(text)), (text, Some(day)));
        }
        for wrong in ["2026-11-31", "2026-11-27T10:00", "yesterday", "2026-1-1", ""] {
            assert_eq!(day_of_date(wrong), None, "{wrong}");
        }
    }
}
