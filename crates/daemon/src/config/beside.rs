//! `beside`: a second preset for a part of the jobs.

use super::{Mistake, mistake};
use amalgam_core::dispatch::Beside;
use amalgam_core::preset::Preset;
use amalgam_workload::{At, Position, closest};
use serde::Deserialize;

/// A part of the jobs uses another preset.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BesideEntry {
    preset: Option<At<String>>,
    part: Option<At<f64>>,
}

/// The name of a preset that can share the cluster with `own`.
pub(super) fn beside(own: Preset, At { at, value: name }: &At<String>) -> Result<String, Mistake> {
    own.beside(name).map(|other| other.name().to_owned()).map_err(|(problem, remedy)| {
        let near = || closest(name, Preset::all().map(Preset::name)).map(|near| format!("did you mean `{near}`?"));
        let remedy = if remedy.is_empty() { near().unwrap_or("use one of the known ones".to_owned()) } else { remedy };
        mistake(*at, problem, remedy)
    })
}

impl BesideEntry {
    pub(super) fn settings(&self, section: Position, own: Preset) -> Result<Beside, Mistake> {
        let example = || {
            let other = Preset::all().find(|other| other.name() != own.name() && own.beside(other.name()).is_ok());
            let name = other.unwrap_or(Preset::APOLLO_PLUS).name();
            format!("`beside = {{ preset = \"{name}\", part = 0.5 }}`")
        };
        let Some(preset) = &self.preset else {
            let problem = "beside has no `preset`";
            return Err(mistake(section, problem, format!("write for instance {}", example())));
        };
        let Some(At { at, value: part }) = self.part else {
            let problem = "beside has no `part`";
            return Err(mistake(section, problem, format!("write a number from 0 to 1, as in {}", example())));
        };
        if !(0.0..=1.0).contains(&part) {
            return Err(mistake(at, format!("part is {part}"), "write a number from 0 to 1"));
        }
        let name = beside(own, preset)?;
        if name == own.name() {
            let problem = format!("beside names {name}, which is the cluster's preset");
            return Err(mistake(
                preset.at,
                problem,
                format!("name another preset, as in {}, or leave it out", example()),
            ));
        }
        Ok(Beside { preset: name, part: (part * 1e6).round() as u32, seed: 0 })
    }
}
