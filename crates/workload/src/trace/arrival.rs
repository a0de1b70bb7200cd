//! Arrivals of jobs, for traces without them, or instead of those of the trace.

use super::chance::Samplers;
use crate::quantities::Malformed;
use crate::suggest;
use amalgam_core::vocabulary::Chance;
use amalgam_core::vocabulary::Duration;
use std::f64::consts::TAU;

/// An arrival process. A gap is the time between two jobs, or between two bursts, or its mean if it is random.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrival {
    /// The arrivals of the trace. All jobs arrive at once if it has none.
    Trace,
    AtOnce,
    Every(Duration),
    Poisson(Duration),
    /// Bursts of `size` jobs at the same instant. The bursts are a Poisson process.
    Bursts {
        gap: Duration,
        size: u32,
    },
    /// A Poisson process whose rate follows a sine. The highest rate is `peak` times the mean rate; `peak` is from 1 to
    /// 2.
    Diurnal {
        gap: Duration,
        peak: f64,
        period: Duration,
    },
}

const DAY: Duration = Duration::from_secs(86_400);
/// The name and the notation of each process.
const FORMS: [(&str, &str); 6] = [
    ("trace", "trace"),
    ("at-once", "at-once"),
    ("every", "every:GAP"),
    ("poisson", "poisson:GAP"),
    ("bursts", "bursts:GAP:SIZE"),
    ("diurnal", "diurnal:GAP:PEAK"),
];

impl Arrival {
    /// # Errors
    /// The problem and the remedy.
    pub fn parse(text: &str) -> Result<Arrival, Malformed> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["trace"] => Ok(Arrival::Trace),
            ["at-once"] => Ok(Arrival::AtOnce),
            ["every", gap] => Ok(Arrival::Every(above_zero(gap)?)),
            ["poisson", gap] => Ok(Arrival::Poisson(above_zero(gap)?)),
            ["bursts", gap, size] => {
                let size = size.parse().ok().filter(|size| *size > 0);
                let size =
                    size.ok_or_else(|| wrong(text, "bursts:GAP:SIZE` with a size above 0, such as `bursts:5m:20"))?;
                Ok(Arrival::Bursts { gap: above_zero(gap)?, size })
            }
            ["diurnal", gap, peak] => diurnal(text, gap, peak, DAY),
            ["diurnal", gap, peak, period] => diurnal(text, gap, peak, time(period)?),
            _ => {
                let near = suggest::closest(parts[0], FORMS.map(|(name, _)| name));
                Err(match FORMS.iter().find(|(name, _)| Some(*name) == near) {
                    Some((_, form)) => wrong(text, form),
                    None => {
                        wrong(text, "trace`, `at-once`, `every:10s`, `poisson:20s`, `bursts:5m:20` or `diurnal:20s:1.8")
                    }
                })
            }
        }
    }

    /// The arrivals of `count` jobs since the start, or `None` if those of the trace are used.
    pub(crate) fn instants(&self, count: usize, chance: &mut Chance) -> Option<Vec<Duration>> {
        let mut at = 0.0;
        let mut next: Box<dyn FnMut(usize) -> f64> = match *self {
            Arrival::Trace => return None,
            Arrival::AtOnce => Box::new(|_| 0.0),
            Arrival::Every(gap) => Box::new(move |number| number as f64 * gap.as_secs_f64()),
            Arrival::Poisson(gap) => Box::new(move |_| {
                at += chance.exponential(gap.as_secs_f64());
                at
            }),
            Arrival::Bursts { gap, size } => Box::new(move |number| {
                if number.is_multiple_of(size as usize) {
                    at += chance.exponential(gap.as_secs_f64());
                }
                at
            }),
            Arrival::Diurnal { gap, peak, period } => Box::new(move |_| {
                // Thinning: draw candidates at the highest rate, and keep each in proportion to the rate at its
                // instant.
                loop {
                    at += chance.exponential(gap.as_secs_f64() / peak);
                    let rate = 1.0 + (peak - 1.0) * (TAU * at / period.as_secs_f64()).sin();
                    if chance.unit() * peak < rate {
                        return at;
                    }
                }
            }),
        };
        Some((0..count).map(|number| Duration::from_micros((next(number) * 1e6).round() as u64)).collect())
    }
}

fn diurnal(text: &str, gap: &str, peak: &str, period: Duration) -> Result<Arrival, Malformed> {
    let peak = peak.parse().ok().filter(|peak| (1.0..=2.0).contains(peak));
    let peak =
        peak.ok_or_else(|| wrong(text, "diurnal:GAP:PEAK` with a peak from 1 to 2, such as `diurnal:20s:1.8"))?;
    if period == Duration::ZERO {
        return Err(wrong(text, "diurnal:GAP:PEAK:PERIOD` with a period above 0, such as `diurnal:20s:1.8:24h"));
    }
    Ok(Arrival::Diurnal { gap: above_zero(gap)?, peak, period })
}

fn above_zero(gap: &str) -> Result<Duration, Malformed> {
    match time(gap)? {
        Duration::ZERO => {
            Err(Malformed::new("without a gap all jobs arrive at once", "write a gap above 0, or `at-once`"))
        }
        gap => Ok(gap),
    }
}

fn time(text: &str) -> Result<Duration, Malformed> {
    Duration::parse(text).map_err(|problem| {
        let (problem, remedy) = problem.split_once("; ").unwrap_or((&problem, ""));
        Malformed::new(problem, remedy)
    })
}

fn wrong(text: &str, form: &str) -> Malformed {
    Malformed::new(format!("`{text}` is not an arrival process"), format!("write `{form}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instants(text: &str, count: usize) -> Vec<f64> {
        let arrival = Arrival::parse(text).unwrap();
        let instants = arrival.instants(count, &mut Chance::new(3, "arrivals")).unwrap();
        instants.into_iter().map(Duration::as_secs_f64).collect()
    }

    #[test]
    fn arrival_processes_have_their_mean_gap() {
        for (text, gap) in [("every:5s", 5.0), ("poisson:5s", 5.0), ("bursts:100s:20", 5.0), ("diurnal:5s:2", 5.0)] {
            let instants = instants(text, 100_000);
            assert!(instants.is_sorted());
            let mean = instants[99_999] / 100_000.0;
            assert!((mean - gap).abs() < 0.1 * gap, "{text}: {mean}");
        }
    }

    #[test]
    fn the_jobs_of_a_burst_arrive_at_the_same_instant() {
        let instants = instants("bursts:60s:4", 8);
        assert!(instants[..4].iter().all(|at| *at == instants[0]));
        assert!(instants[4] > instants[3]);
    }

    #[test]
    fn most_diurnal_arrivals_are_in_the_first_half_of_a_day() {
        let instants = instants("diurnal:60s:2:24h", 14_400);
        let morning = instants.iter().filter(|at| *at % 86_400.0 < 43_200.0).count() as f64;
        assert!((0.75..0.89).contains(&(morning / 14_400.0)), "{morning} of 14400 in the busy half");
    }

    #[test]
    fn errors_about_arrival_processes_have_a_remedy() {
        let remedy = |text: &str| Arrival::parse(text).unwrap_err().remedy;
        assert_eq!(remedy("poison:3s"), "write `poisson:GAP`");
        assert_eq!(remedy("poisson"), "write `poisson:GAP`");
        for text in ["poisson:0s", "every:0s", "bursts:0s:3", "diurnal:0s:1.5"] {
            assert_eq!(remedy(text), "write a gap above 0, or `at-once`", "{text}");
        }
        for text in ["", "poisson", "poisson:3 parsecs", "bursts:3s:0", "diurnal:3s:4", "diurnal:3s:1.5:0s"] {
            assert!(Arrival::parse(text).is_err(), "{text}");
        }
    }
}
