//! Demands of tasks, for traces that do not have them.

use super::chance::{Distribution, Unit};
use crate::quantities::Malformed;
use crate::suggest;
use amalgam_core::vocabulary::resources::{BUILT_IN, GPU};
use amalgam_core::vocabulary::{Chance, ResourceSpec, Resources, WHOLE_GPU};
use std::sync::LazyLock;

/// A distribution of demands. All tasks of a stage have the same demand.
#[derive(Clone, PartialEq, Debug)]
pub enum Demand {
    /// One core and no memory: a slot.
    Unit,
    /// Plan CPU and plan memory of the 9.7 million batch tasks of Alibaba's trace of 2018, drawn independently.
    Alibaba2018,
    /// Cores, MiB of memory, and other kinds of resources by their indexes, in MB/s or devices.
    Drawn { cpu: Distribution, memory: Distribution, others: Vec<(usize, Distribution)> },
}

/// The assumed memory of a machine, which is 100 in Alibaba's traces. Alibaba does not publish it. Their machines have
/// 96 cores, and 4 GiB for each core are assumed.
pub(crate) const ALIBABA_MACHINE_MIB: f64 = 384.0 * 1024.0;

impl Demand {
    /// # Errors
    /// The problem and the remedy.
    pub fn parse(text: &str) -> Result<Demand, Malformed> {
        match text {
            "unit" => return Ok(Demand::Unit),
            "alibaba2018" => return Ok(Demand::Alibaba2018),
            _ => {}
        }
        if let Some(name) = suggest::closest(text, ["unit", "alibaba2018"]) {
            return Err(Malformed::new(format!("unknown demand `{text}`"), format!("did you mean `{name}`?")));
        }
        let (named, plain): (Vec<&str>, Vec<&str>) = text.split(',').partition(|part| part.contains('='));
        let [cpu, memory] = match plain[..] {
            [cpu] => [cpu, "0B"],
            [cpu, memory] => [cpu, memory],
            _ => [text, "0B"],
        };
        let (cpu, memory) = (cores(cpu), Distribution::parse(memory, Unit::Memory));
        let others: Result<Vec<_>, Malformed> = named.into_iter().map(other_kind).collect();
        let advise = |wrong: Malformed| {
            let remedy = "write `unit`, `alibaba2018`, or cores and memory such as `2,4GiB`, `uniform:1-4,uniform:1GiB-8GiB` or \
                 `1,4GiB,disk-read=20`";
            Malformed::new(wrong.problem, format!("{remedy}; cores from {LEAST_CORES} to {MOST_CORES}"))
        };
        Ok(Demand::Drawn { cpu: cpu.map_err(advise)?, memory: memory.map_err(advise)?, others: others? })
    }

    /// Describes the distribution for the notes of a workload.
    pub(crate) fn describe(&self) -> String {
        match self {
            Demand::Unit => "one core and no memory for each task (demand=unit)".to_owned(),
            Demand::Alibaba2018 => format!(
                "drawn for each stage from the batch tasks of Alibaba's trace of 2018, assuming machines of {} GiB \
                 (demand=alibaba2018)",
                ALIBABA_MACHINE_MIB / 1024.0
            ),
            Demand::Drawn { cpu, memory, others } => {
                let mut text = format!("drawn for each stage: cores {cpu}, MiB of memory {memory}");
                others.iter().for_each(|(kind, amount)| text += &format!(", {} {amount}", BUILT_IN[*kind]));
                text
            }
        }
    }

    pub(crate) fn draw(&self, chance: &mut Chance) -> ResourceSpec {
        match self {
            Demand::Unit => resources(1.0, 0.0),
            Demand::Alibaba2018 => {
                let cpu = ALIBABA_CPU.draw(chance) / 100.0;
                let memory = ALIBABA_MEMORY.draw(chance) / 100.0 * ALIBABA_MACHINE_MIB;
                resources(cpu, memory)
            }
            Demand::Drawn { cpu, memory, others } => {
                let mut drawn = resources(cpu.draw(chance), memory.draw(chance));
                for (kind, amount) in others {
                    drawn.basic.0[*kind] = units_of(*kind, amount.draw(chance));
                }
                drawn
            }
        }
    }
}

/// An amount in MB/s, or in thousandths of GPUs. GPUs are whole ones, or less than one.
fn units_of(kind: usize, amount: f64) -> u32 {
    match kind {
        GPU if amount < 1.0 => (amount * f64::from(WHOLE_GPU)).round() as u32,
        GPU => (amount.round() as u32).saturating_mul(WHOLE_GPU),
        _ => amount.round() as u32,
    }
}

/// The smallest part of a core that is counted, and the maximum number of cores of a node or a task.
const LEAST_CORES: f64 = 0.001;
const MOST_CORES: f64 = 1e6;

/// Reads the kind and the amount of a resource other than CPU and memory: `disk-read=20`.
fn other_kind(text: &str) -> Result<(usize, Distribution), Malformed> {
    let (name, amount) = text.split_once('=').unwrap_or((text, ""));
    let Some(kind) = BUILT_IN.iter().skip(2).position(|known| *known == name) else {
        let remedy = format!("known beside cores and memory: {}", BUILT_IN[2..].join(", "));
        return Err(Malformed::new(format!("unknown kind of resource `{name}`"), remedy));
    };
    Ok((kind + 2, Distribution::parse(amount, Unit::Number)?.within(0.0, 1e6, "amount")?))
}

/// Reads a distribution of cores.
pub(crate) fn cores(text: &str) -> Result<Distribution, Malformed> {
    Distribution::parse(text, Unit::Number)?.within(LEAST_CORES, MOST_CORES, "number of cores")
}

/// A demand of at least a thousandth of a core, and of memory in MiB, rounded up.
pub(crate) fn resources(cores: f64, memory_mib: f64) -> ResourceSpec {
    let millis = ((cores * 1000.0).round() as u32).max(1);
    ResourceSpec { basic: Resources::new(millis, memory_mib.ceil() as u32), custom: Vec::new() }
}

static ALIBABA_CPU: LazyLock<Histogram> =
    LazyLock::new(|| Histogram::parse(include_str!("../../distributions/alibaba2018_task_cpu.dat")));
static ALIBABA_MEMORY: LazyLock<Histogram> =
    LazyLock::new(|| Histogram::parse(include_str!("../../distributions/alibaba2018_task_mem.dat")));

/// Values and the numbers of their observations.
struct Histogram {
    /// Each value with the number of observations up to and including it.
    cumulative: Vec<(f64, u64)>,
}

impl Histogram {
    /// Reads lines of `count value`. The files are part of this program.
    ///
    /// # Panics
    /// If a file is malformed.
    fn parse(text: &str) -> Histogram {
        let mut total = 0;
        let line = |line: &str| {
            let (count, value) = line.split_once(' ')?;
            total += count.parse::<f64>().ok()? as u64;
            Some((value.parse().ok()?, total))
        };
        let cumulative =
            text.lines().map(line).collect::<Option<Vec<_>>>().expect("built-in histograms are well-formed");
        Histogram { cumulative }
    }

    fn draw(&self, chance: &mut Chance) -> f64 {
        let (_, total) = self.cumulative[self.cumulative.len() - 1];
        let drawn = chance.below(total);
        let at = self.cumulative.partition_point(|(_, up_to)| *up_to <= drawn);
        self.cumulative[at].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_read_and_drawn() {
        let mut chance = Chance::new(1, "demands");
        let mut draw = |text: &str| Demand::parse(text).unwrap().draw(&mut chance).basic;
        assert_eq!(draw("unit"), Resources::new(1_000, 0));
        assert_eq!(draw("2,4GiB"), Resources::new(2_000, 4_096));
        assert_eq!(draw("0.5"), Resources::new(500, 0));
        let drawn = draw("uniform:1-4,uniform:1GiB-8GiB");
        assert!((1_000..=4_000).contains(&drawn.cpu_millis()) && (1_024..=8_192).contains(&drawn.memory_mib()));
    }

    #[test]
    fn kinds_beside_cores_and_memory_have_names() {
        let mut chance = Chance::new(1, "demands");
        let text = "uniform:1-2,1GiB,disk-write=7,network-in=uniform:5-9";
        let drawn = Demand::parse(text).unwrap().draw(&mut chance).basic.0;
        assert_eq!((drawn[1], drawn[3]), (1_024, 7));
        assert!((5..=9).contains(&drawn[4]) && drawn[2] == 0 && drawn[5] == 0, "{drawn:?}");
        let wrong = Demand::parse("1,1GiB,disc-read=5").unwrap_err();
        assert!(wrong.remedy.contains("disk-read, disk-write"), "{wrong}");
        assert!(Demand::parse("1,1GiB,2").is_err());
    }

    #[test]
    fn alibabas_tasks_need_half_a_core_or_one() {
        let mut chance = Chance::new(1, "demands");
        let drawn: Vec<u32> = (0..10_000).map(|_| Demand::Alibaba2018.draw(&mut chance).basic.cpu_millis()).collect();
        let share = |millis| drawn.iter().filter(|drawn| **drawn == millis).count() as f64 / 10_000.0;
        // 4,051,891 and 5,617,092 of all the tasks.
        assert!((share(500) - 0.41).abs() < 0.03 && (share(1_000) - 0.57).abs() < 0.03);
    }

    #[test]
    fn wrong_demands_are_refused_with_a_remedy() {
        assert_eq!(Demand::parse("unti").unwrap_err().remedy, "did you mean `unit`?");
        assert!(Demand::parse("2,4096").unwrap_err().remedy.contains("2,4GiB"), "memory without a unit");
        for none in ["0", "0.0001", "uniform:0-2", "1e9"] {
            let wrong = Demand::parse(none).unwrap_err();
            assert!(wrong.problem.ends_with("is not a valid number of cores"), "{wrong}");
            assert!(wrong.remedy.contains("cores from 0.001 to 1000000"), "{wrong}");
        }
    }
}
