//! `openb`: the pods of Alibaba's GPU trace of 2023. Each pod is a job of one task, which ran from its scheduling to
//! its deletion, with any result. Pods that were never scheduled are left out. GPUs are whole devices by default. With
//! `gpu-unit=thousandths` a pod requests the custom resource `gpu-milli`, so that pods may share a device.

use super::{TraceFormat, fields};
use crate::quantities::Malformed;
use crate::trace::RunTimes;
use crate::trace::error::WorkloadError;
use crate::trace::input;
use crate::trace::options::Key;
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::resources::GPU;
use amalgam_core::vocabulary::{ResourceSpec, Resources, WHOLE_GPU};
use std::ops::ControlFlow;
use std::path::Path;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "openb",
    about: "pods of Alibaba's GPU trace of 2023 (openb_pod_list*.csv)",
    keys: &KEYS,
    read,
};

const KEYS: [Key; 1] =
    [Key { name: "gpu-unit", default: "devices", meaning: "devices, or thousandths as the custom resource gpu-milli" }];

/// The unit in which GPUs are requested and offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GpuUnit {
    Devices,
    Thousandths,
}

pub(crate) const GPU_MILLI: &str = "gpu-milli";

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    let unit = reading.options.own("gpu-unit", gpu_unit)?;
    let (mut pending, mut sharing) = (0u64, 0u64);
    let files = reading.files(&[".csv"])?;
    let is_only = files.len() == 1;
    for file in files {
        if is_node_list(&file)? {
            let what = format!("{} lists nodes and no pods", file.display());
            if is_only {
                return Err(WorkloadError::new(what, "use it with `--nodes`, and name a file of pods here"));
            }
            reading.note(format!("{what}: it was left out"));
            continue;
        }
        reading.lines(&file, |reading, line| {
            if line.starts_with("name,") {
                return Ok(());
            }
            let [name, cpu, memory, gpus, gpu_milli, _spec, qos, _phase, created, deleted, scheduled] =
                fields::columns(line)?;
            if scheduled.is_empty() {
                pending += 1;
                return Ok(());
            }
            let scheduled = fields::seconds(scheduled, "the time of scheduling")?;
            let run_time = fields::between(scheduled, fields::seconds(deleted, "the time of deletion")?)?;
            let mut stage = DraftStage::new("pod", 1, RunTimes::Same(run_time));
            let basic = Resources::new(fields::number(cpu, "the CPU")?, fields::number(memory, "the memory")?);
            let gpus = fields::number(gpus, "the number of GPUs")?;
            let milli: u32 = fields::number(gpu_milli, "the share of a GPU")?;
            sharing += u64::from(gpus == 1 && milli < 1_000);
            stage.demand = Some(demand(basic, gpus, milli, unit));
            let arrival = Some(fields::seconds(created, "the time of creation")?);
            reading.add(Draft {
                name: name.to_owned(),
                user: qos.to_owned(),
                arrival,
                stages: vec![stage],
                ..Draft::default()
            })
        })?;
    }
    if pending > 0 {
        reading.note(format!("{pending} pods that were never scheduled were left out: they have no run time"));
    }
    if sharing > 0 && unit == GpuUnit::Devices {
        reading
            .note(format!("{sharing} pods that request less than one GPU get a whole one; see the option `gpu-unit`"));
    }
    reading.note("the user of a pod is its class of service, because the trace has no users");
    Ok(())
}

/// Whether a file is the table of nodes, which the trace has in the same directory. It is recognised by its heading.
fn is_node_list(file: &Path) -> Result<bool, WorkloadError> {
    let mut is_node_list = false;
    input::lines(file, |_, line| {
        is_node_list = line.is_ok_and(|line| line.starts_with("sn,"));
        ControlFlow::Break(())
    })?;
    Ok(is_node_list)
}

pub(crate) fn gpu_unit(text: &str) -> Result<GpuUnit, Malformed> {
    match text {
        "devices" => Ok(GpuUnit::Devices),
        "thousandths" => Ok(GpuUnit::Thousandths),
        _ => Err(Malformed::new(format!("unknown value `{text}`"), "write `devices` or `thousandths`")),
    }
}

/// The demand of a pod. `milli` is the requested part of each of the `gpus` devices, in thousandths.
fn demand(basic: Resources, gpus: u32, milli: u32, unit: GpuUnit) -> ResourceSpec {
    match unit {
        GpuUnit::Devices => ResourceSpec { basic: basic.with(GPU, gpus.saturating_mul(WHOLE_GPU)), custom: Vec::new() },
        GpuUnit::Thousandths if gpus == 0 => ResourceSpec { basic, custom: Vec::new() },
        GpuUnit::Thousandths => {
            ResourceSpec { basic, custom: vec![(GPU_MILLI.to_owned(), gpus.saturating_mul(milli))] }
        }
    }
}
