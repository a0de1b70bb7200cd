//! Samplers for workloads, based on the project's random number generator.
//!
//! The samplers are implemented here, because the same seed must give the same workload in all later versions. Only
//! functions such as logarithms are the platform's; their last bit may differ between platforms.

use crate::quantities::{Malformed, parse_size};
use crate::suggest;
use amalgam_core::vocabulary::job::MAX_TASKS;
use amalgam_core::vocabulary::{Chance, Duration};
use std::fmt;

/// Distributions other than the uniform one.
pub trait Samplers {
    fn exponential(&mut self, mean: f64) -> f64;
    /// Standard normal.
    fn normal(&mut self) -> f64;
}

impl Samplers for Chance {
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Uses the method of Box and Muller. The second number of each pair is not kept.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// A distribution of non-negative amounts: `10`, `fixed:10`, `uniform:1-10`, `exponential:10` (its mean),
/// `lognormal:10:1.5` (median and sigma) or `pareto:1:1.5` (minimum and exponent).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Distribution {
    Fixed(f64),
    Uniform(f64, f64),
    Exponential(f64),
    LogNormal { median: f64, sigma: f64 },
    Pareto { minimum: f64, exponent: f64 },
}

/// The unit of a distribution's amounts, which defines how they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Seconds, written as durations: `90s`, `5m`.
    Time,
    /// MiB, written as sizes: `512MiB`.
    Memory,
    /// Plain numbers.
    Number,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Fixed(amount) => write!(f, "{amount}"),
            Distribution::Uniform(least, most) => write!(f, "uniform from {least} to {most}"),
            Distribution::Exponential(mean) => write!(f, "exponential with a mean of {mean}"),
            Distribution::LogNormal { median, sigma } => write!(f, "log-normal, median {median} and sigma {sigma}"),
            Distribution::Pareto { minimum, exponent } => write!(f, "Pareto from {minimum}, exponent {exponent}"),
        }
    }
}

const SHAPES: [&str; 5] = ["fixed", "uniform", "exponential", "lognormal", "pareto"];

impl Distribution {
    /// # Errors
    /// The problem and the remedy.
    pub fn parse(text: &str, unit: Unit) -> Result<Distribution, Malformed> {
        let Some((shape, rest)) = text.split_once(':') else {
            return Ok(Distribution::Fixed(unit.parse(text)?));
        };
        let wrong = |form: &str| Malformed::new(format!("`{text}` is not a distribution"), format!("write `{form}`"));
        match shape {
            "fixed" => Ok(Distribution::Fixed(unit.parse(rest)?)),
            "exponential" => Ok(Distribution::Exponential(unit.parse(rest)?)),
            "uniform" => {
                let (low, high) = rest.split_once('-').ok_or_else(|| wrong("uniform:LOW-HIGH"))?;
                let (low, high) = (unit.parse(low)?, unit.parse(high)?);
                if low > high {
                    return Err(wrong("uniform:LOW-HIGH` with the smaller amount first, as `uniform:1-10"));
                }
                Ok(Distribution::Uniform(low, high))
            }
            "lognormal" | "pareto" => {
                let form = format!("{shape}:AMOUNT:NUMBER");
                let (amount, number) = rest.split_once(':').ok_or_else(|| wrong(&form))?;
                let amount = unit.parse(amount)?;
                let number = Unit::Number.parse(number)?;
                match shape {
                    "lognormal" => Ok(Distribution::LogNormal { median: amount, sigma: number }),
                    _ if number > 0.0 => Ok(Distribution::Pareto { minimum: amount, exponent: number }),
                    _ => Err(wrong("pareto:MINIMUM:EXPONENT` with an exponent above 0, as `pareto:1:1.5")),
                }
            }
            _ => {
                let remedy = match suggest::closest(shape, SHAPES) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("known: {}", SHAPES.join(", ")),
                };
                Err(Malformed::new(format!("unknown distribution `{shape}`"), remedy))
            }
        }
    }

    /// Checks that the characteristic amounts are from `least` to `most`: the bounds of a uniform distribution, the
    /// mean of an exponential one, the median of a log-normal one, the minimum of a Pareto one.
    ///
    /// # Errors
    /// The problem and the remedy.
    pub(crate) fn within(self, least: f64, most: f64, what: &str) -> Result<Distribution, Malformed> {
        let (low, high) = match self {
            Distribution::Uniform(low, high) => (low, high),
            Distribution::Fixed(amount) | Distribution::Exponential(amount) => (amount, amount),
            Distribution::LogNormal { median: amount, .. } | Distribution::Pareto { minimum: amount, .. } => {
                (amount, amount)
            }
        };
        let strange = if low < least { low } else { high };
        if low >= least && high <= most {
            return Ok(self);
        }
        let remedy = format!("write amounts from {least} to {most}, such as `2` or `uniform:1-4`");
        Err(Malformed::new(format!("{strange} is not a valid {what}"), remedy))
    }

    pub(crate) fn draw(&self, chance: &mut Chance) -> f64 {
        match *self {
            Distribution::Fixed(amount) => amount,
            Distribution::Uniform(low, high) => low + (high - low) * chance.unit(),
            Distribution::Exponential(mean) => chance.exponential(mean),
            Distribution::LogNormal { median, sigma } => median * (sigma * chance.normal()).exp(),
            Distribution::Pareto { minimum, exponent } => minimum / (1.0 - chance.unit()).powf(exponent.recip()),
        }
    }

    /// Draws a whole number of at least `minimum`. All whole numbers of a uniform range are equally likely.
    pub(crate) fn draw_count(&self, chance: &mut Chance, minimum: u32) -> u32 {
        let drawn = match *self {
            Distribution::Uniform(low, high) => {
                low.floor() + chance.below((high.floor() - low.floor()) as u64 + 1) as f64
            }
            _ => self.draw(chance).round(),
        };
        (drawn as u32).max(minimum)
    }

    pub(crate) fn draw_time(&self, chance: &mut Chance) -> Duration {
        Duration::from_micros((self.draw(chance) * 1e6).round() as u64)
    }
}

/// Reads a distribution of counts, such as numbers of tasks.
///
/// # Errors
/// The problem and the remedy.
pub(crate) fn counts(text: &str) -> Result<Distribution, Malformed> {
    Distribution::parse(text, Unit::Number)?.within(1.0, MAX_TASKS as f64, "count")
}

impl Unit {
    fn parse(self, text: &str) -> Result<f64, Malformed> {
        match self {
            Unit::Time => match Duration::parse(text) {
                Ok(time) => Ok(time.as_secs_f64()),
                Err(problem) => {
                    let (problem, remedy) = problem.split_once("; ").unwrap_or((&problem, ""));
                    Err(Malformed::new(problem, remedy))
                }
            },
            Unit::Memory => Ok(parse_size(text)? as f64 / f64::from(1 << 20)),
            Unit::Number => {
                let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
                number.ok_or_else(|| Malformed::new(format!("`{text}` is not an amount"), "write a number, at least 0"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(text: &str) -> f64 {
        let distribution = Distribution::parse(text, Unit::Number).unwrap();
        let mut chance = Chance::new(7, "test");
        (0..100_000).map(|_| distribution.draw(&mut chance)).sum::<f64>() / 100_000.0
    }

    #[test]
    fn distributions_have_their_means() {
        for (text, expected) in [
            ("5", 5.0),
            ("uniform:2-4", 3.0),
            ("exponential:10", 10.0),
            ("lognormal:1:0.5", (0.125f64).exp()),
            ("pareto:1:3", 1.5),
        ] {
            assert!((mean(text) - expected).abs() < 0.05 * expected, "{text}: {} and not {expected}", mean(text));
        }
    }

    #[test]
    fn all_counts_of_a_range_are_equally_likely() {
        let mut chance = Chance::new(1, "counts");
        let dice = Distribution::Uniform(1.0, 6.0);
        let mut seen = [0; 7];
        for _ in 0..60_000 {
            seen[dice.draw_count(&mut chance, 0) as usize] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|count| (9_500..10_500).contains(count)), "{seen:?}");
    }

    #[test]
    fn each_purpose_and_seed_has_its_own_random_numbers() {
        let first = |seed, purpose| Chance::new(seed, purpose).below(u64::MAX);
        assert_eq!(first(1, "arrivals"), first(1, "arrivals"));
        assert_ne!(first(1, "arrivals"), first(1, "demands"));
        assert_ne!(first(1, "arrivals"), first(2, "arrivals"));
    }

    #[test]
    fn errors_about_distributions_have_a_remedy() {
        let remedy = |text, unit| Distribution::parse(text, unit).unwrap_err().remedy;
        assert_eq!(remedy("exponental:3", Unit::Number), "did you mean `exponential`?");
        assert!(remedy("uniform:9-3", Unit::Number).contains("smaller amount first"));
        assert!(remedy("512", Unit::Memory).contains("MiB"), "sizes have units");
        assert!(Distribution::parse("-1", Unit::Number).is_err());
    }
}
