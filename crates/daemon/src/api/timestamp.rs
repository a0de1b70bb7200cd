//! Times, as text in the format of RFC 3339.

use amalgam_core::vocabulary::Instant;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch; RFC 3339 in UTC on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub fn now() -> Timestamp {
        SystemTime::now().into()
    }

    /// Parses a date or time in UTC: `2026-11-01` (0:00), `2026-11-01T12:30`, with or without seconds and `Z`.
    pub fn parse(text: &str) -> Option<Timestamp> {
        let text = text.trim().trim_end_matches('Z').replace(' ', "T");
        let whole = match text.split_once('T').map(|(_, time)| time.matches(':').count()) {
            None => format!("{text}T00:00:00Z"),
            Some(1) => format!("{text}:00Z"),
            Some(_) => format!("{text}Z"),
        };
        humantime::parse_rfc3339(&whole).ok().map(Timestamp::from)
    }

    fn system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0)
    }
}

impl From<Instant> for Timestamp {
    /// Instants of daemons count from the Unix epoch.
    fn from(instant: Instant) -> Timestamp {
        Timestamp(instant.0)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        Timestamp(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64))
    }
}

/// The last second that RFC 3339 can name, in microseconds.
const LAST: u64 = 253_402_300_799_000_000;

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Timestamp(self.0.min(LAST)).system_time();
        humantime::format_rfc3339_micros(shown).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Timestamp::from).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc_3339_in_utc() {
        let text = serde_json::to_string(&Timestamp(1_800_000_000_123_456)).unwrap();
        assert_eq!(text, "\"2027-01-15T08:00:00.123456Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), Timestamp(1_800_000_000_123_456));
        assert_eq!(Timestamp(u64::MAX).to_string(), "9999-12-31T23:59:59.000000Z");
        let written = ["2027-01-15T08:00:00.123456Z", "2027-01-15", "2027-01-15T08:00", "2027-01-15 08:00:01"];
        let read = written.map(|text| Timestamp::parse(text).unwrap().to_string());
        assert_eq!(read[0], written[0]);
        assert_eq!(
            read[1..],
            ["2027-01-15T00:00:00.000000Z", "2027-01-15T08:00:00.000000Z", "2027-01-15T08:00:01.000000Z"]
        );
        assert!(
            ["", "2027", "2027-13-01", "tomorrow", "2027-01-15T25:00"]
                .iter()
                .all(|text| Timestamp::parse(text).is_none())
        );
    }
}
