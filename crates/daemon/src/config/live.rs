//! Limits of queues that are set while the server runs, as `key=value`.

use super::range::{GUARANTEED, Range, SHARE, WEIGHT};
use amalgam_core::vocabulary::{Duration, QueueSettings, Removable};
use amalgam_workload::closest;
use amalgam_workload::quantities::{Malformed, parse_timeout};
use std::collections::BTreeMap;

/// The keys of `[[queue]]` that can be set while the server runs.
pub const KEYS: [&str; 6] = ["weight", "guaranteed", "maximum", "user_limit", "max_running_jobs", "default_timeout"];

/// Reads values by their keys.
///
/// # Errors
/// The first key or value that is wrong, with a remedy.
pub fn queue_settings(set: &BTreeMap<String, String>) -> Result<QueueSettings, Malformed> {
    let mut settings = QueueSettings::default();
    for (key, value) in set {
        match key.as_str() {
            "weight" => settings.weight = Some(scaled(key, value, &WEIGHT)?),
            "guaranteed" => settings.guaranteed = Some(scaled(key, value, &GUARANTEED)?),
            "maximum" => settings.maximum = Some(scaled(key, value, &SHARE)?),
            "user_limit" => settings.user_limit = Some(scaled(key, value, &SHARE)?),
            "max_running_jobs" => settings.max_running_jobs = Some(count(value)?),
            "default_timeout" => settings.default_timeout = Some(timeout(value)?),
            _ => {
                let problem = format!("`{key}` of a queue cannot be set while the server runs");
                let near = closest(key, KEYS).map(|near| format!("did you mean `{near}`?"));
                return Err(Malformed::new(problem, near.unwrap_or_else(|| format!("known: {}", KEYS.join(", ")))));
            }
        }
    }
    Ok(settings)
}

fn scaled(key: &str, value: &str, range: &Range) -> Result<u32, Malformed> {
    let found = value.parse::<f64>().ok().and_then(|value| range.scaled(value));
    found.ok_or_else(|| Malformed::new(format!("{key} is `{value}`"), range.remedy()))
}

fn count(value: &str) -> Result<Removable<u32>, Malformed> {
    if value == "none" {
        return Ok(Removable::Absent);
    }
    let wrong = |_| Malformed::new(format!("max_running_jobs is `{value}`"), "write a whole number, or `none`");
    value.parse().map(Removable::Value).map_err(wrong)
}

fn timeout(value: &str) -> Result<Removable<Duration>, Malformed> {
    if value == "none" { Ok(Removable::Absent) } else { parse_timeout(value).map(Removable::Value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<QueueSettings, String> {
        let set = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        queue_settings(&set).map_err(|wrong| format!("{}; {}", wrong.problem, wrong.remedy))
    }

    #[test]
    fn every_key_is_read_in_the_units_of_the_configuration_and_wrong_ones_are_named() {
        let all = read(&[
            ("weight", "2.5"),
            ("guaranteed", "0.25"),
            ("maximum", "0.5"),
            ("user_limit", "0.1"),
            ("max_running_jobs", "7"),
            ("default_timeout", "2h"),
        ])
        .unwrap();
        let shares = (all.weight, all.guaranteed, all.maximum, all.user_limit);
        assert_eq!(shares, (Some(2_500), Some(250_000), Some(500_000), Some(100_000)));
        assert_eq!(all.max_running_jobs, Some(Removable::Value(7)));
        assert_eq!(all.default_timeout, Some(Removable::Value(Duration::from_secs(7_200))));
        let none = read(&[("max_running_jobs", "none"), ("default_timeout", "none")]).unwrap();
        assert_eq!((none.max_running_jobs, none.weight), (Some(Removable::Absent), None));
        for (pair, wanted) in [
            (("weight", "0"), "weight is `0`; write a number from 0.001 to 1000000"),
            (("maximum", "75"), "maximum is `75`; write a number from 0 to 1"),
            (("user_limit", "much"), "user_limit is `much`"),
            (("max_running_jobs", "-1"), "write a whole number, or `none`"),
            (("default_timeout", "soon"), "soon"),
            (("wieght", "1"), "`wieght` of a queue cannot be set while the server runs; did you mean `weight`?"),
            (("preset", "fifo"), "known: weight, guaranteed"),
        ] {
            let error = read(&[pair]).unwrap_err();
            assert!(error.contains(wanted), "{pair:?}: {error}");
        }
    }
}
