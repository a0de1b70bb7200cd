//! What a seed met: faults, events, and how often each rule had something to check.

use crate::checkers::Checker;
use crate::faults::{Fault, Happening};
use amalgam_core::protocol::{JobOutcome, Rule};
use amalgam_core::role::{Change, LostCause, Record, TokenFault};
use amalgam_core::vocabulary::EndReason;
use amalgam_core::vocabulary::resources::FIRST_CUSTOM;
use amalgam_core::why::Why;
use serde::Serialize;
use std::collections::BTreeMap;

/// Counts by name.
pub type Counts = BTreeMap<&'static str, u64>;

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Coverage {
    /// Faults that struck.
    pub faults: Counts,
    /// Events that followed from faults and from users' requests.
    pub events: Counts,
    /// By rule: how often it could have been broken.
    pub rules: Counts,
}

/// The number of seeds that met something, and how often they met it in total.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Met {
    pub seeds: u64,
    pub times: u64,
}

/// The coverage of many seeds.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct TotalCoverage {
    pub presets: BTreeMap<&'static str, Met>,
    pub faults: BTreeMap<&'static str, Met>,
    pub events: BTreeMap<&'static str, Met>,
    pub rules: BTreeMap<&'static str, Met>,
}

impl Coverage {
    pub fn take_in(&mut self, happening: &Happening) {
        match happening {
            Happening::Fault(Fault::Heal) => {}
            Happening::Fault(fault) => count(&mut self.faults, fault.kind()),
            Happening::Repeated { .. } => count(&mut self.faults, "message repeated"),
            Happening::Undone(changes) if !changes.is_empty() => count(&mut self.events, "changes lost in a crash"),
            Happening::TaskStarted { resources, .. }
                if resources.0[FIRST_CUSTOM..].iter().any(|amount| *amount > 0) =>
            {
                count(&mut self.events, "task with custom resources");
            }
            _ => {}
        }
        let names = (happening.change().and_then(of_change), happening.record().and_then(of_record));
        [names.0, names.1].into_iter().flatten().for_each(|name| count(&mut self.events, name));
    }

    pub fn conclude(&mut self, checkers: &[Box<dyn Checker>]) {
        self.rules = checkers.iter().map(|checker| (checker.rule(), checker.subjects())).collect();
        self.events.extend(checkers.iter().flat_map(|checker| checker.saw()));
    }
}

impl TotalCoverage {
    pub fn add(&mut self, preset: &'static str, coverage: &Coverage) {
        add(&mut self.presets, &Counts::from([(preset, 1)]));
        add(&mut self.faults, &coverage.faults);
        add(&mut self.events, &coverage.events);
        add(&mut self.rules, &coverage.rules);
    }

    /// The number of seeds that met the preset, fault, event or rule with this name.
    pub fn seeds(&self, name: &str) -> u64 {
        let groups = [&self.presets, &self.faults, &self.events, &self.rules];
        groups.into_iter().find_map(|group| group.get(name)).map_or(0, |met| met.seeds)
    }
}

fn count(counts: &mut Counts, name: &'static str) {
    *counts.entry(name).or_default() += 1;
}

fn add(total: &mut BTreeMap<&'static str, Met>, counts: &Counts) {
    for (name, times) in counts {
        let met = total.entry(name).or_default();
        met.seeds += u64::from(*times > 0);
        met.times += times;
    }
}

fn of_change(change: &Change) -> Option<&'static str> {
    match change {
        Change::Launched { rule, .. } => match rule {
            Rule::Ready => Some("task bound to a probe"),
            Rule::Moved => Some("task moved to another queue"),
            Rule::Sampling => Some("task sent to a queue"),
            Rule::Duplicate => Some("duplicate launched"),
            Rule::Exploration => Some("duplicate tried another node"),
            Rule::Copy => Some("finished task copied for a slow file"),
            Rule::Straggler => Some("duplicate of a slow attempt launched"),
            Rule::Completion => Some("task sent where it ends first"),
            Rule::Share { .. } => Some("attempts preempted for a queue within its share"),
            Rule::Reservation => Some("task started on its reserved node"),
            _ => None,
        },
        Change::Finished { ended, .. } => match ended.reason {
            EndReason::Preempted => Some("attempt preempted"),
            EndReason::Shed => Some("attempt shed"),
            EndReason::Timeout => Some("attempt timed out"),
            EndReason::Cancelled => Some("attempt cancelled"),
            EndReason::Withdrawn(ref why) if why.contains("found room") => {
                Some("attempt of a gang without room for all")
            }
            EndReason::Withdrawn(ref why) if why.contains("gang") => Some("attempt withdrawn with its gang"),
            EndReason::Withdrawn(_) => Some("attempt withdrawn because its input is written again"),
            EndReason::NoInput(_) => Some("attempt without its input"),
            EndReason::NodeFault(_) => Some("attempt not launched"),
            EndReason::NodeLost => Some("attempt lost with its executor"),
            EndReason::Exit(code) if code > 0 => Some("attempt failed"),
            _ => None,
        },
        Change::Promoted { .. } => Some("attempt promoted"),
        Change::Lost { cause, .. } => match cause {
            LostCause::NodeLost => Some("attempt written off with its node"),
            LostCause::Unknown => Some("attempt unknown to its node"),
            LostCause::NotTaken => Some("launch refused by its node"),
            LostCause::Refused(_) => Some("refused launch written off"),
            LostCause::Superseded => Some("attempt superseded by a duplicate"),
            LostCause::Copied => Some("copy of a finished task ended"),
        },
        Change::JobEnded { outcome, .. } => match outcome {
            JobOutcome::Succeeded => Some("job succeeded"),
            JobOutcome::Failed { .. } => Some("job failed"),
            JobOutcome::Cancelled => Some("job cancelled"),
            JobOutcome::DependencyFailed { .. } => Some("job's dependency failed"),
        },
        Change::OutputLost { .. } => Some("finished task run again for its output"),
        Change::Rerun { .. } => Some("job rerun"),
        Change::JobForgotten { .. } => Some("job forgotten"),
        _ => None,
    }
}

fn of_record(record: &Record) -> Option<&'static str> {
    match record {
        Record::Blocked { why, .. } => of_why(why),
        Record::Queued { .. } => Some("attempt waited at its node"),
        Record::GangStarts { .. } => Some("gang started together"),
        Record::Adopted { .. } => Some("running attempt adopted"),
        Record::Orphaned { .. } => Some("attempt without an owner killed"),
        Record::Retried { costs_none: false, .. } => Some("retry used"),
        Record::Stale { .. } | Record::StaleGrant { .. } => Some("late message dropped"),
        Record::TokenRefused { why: TokenFault::Expired, .. } => Some("expired token refused"),
        Record::TokenRefused { why: TokenFault::NotAuthentic, .. } => Some("foreign token refused"),
        Record::NodeLost { .. } => Some("node lost"),
        Record::Overtaken { .. } => Some("slow attempt overtaken"),
        Record::Yielding { .. } => Some("attempt yielded its CPU"),
        Record::Resumed { .. } => Some("attempt resumed"),
        Record::NodePaused { .. } => Some("node paused"),
        Record::LaunchRefused { .. } => Some("launch refused by a cluster's master"),
        Record::Repartitioned { .. } => Some("node of another partition lent"),
        Record::StaleMessage { .. } => Some("stale view of a cluster dropped"),
        _ => None,
    }
}

fn of_why(why: &Why) -> Option<&'static str> {
    match why {
        Why::Held => Some("job held"),
        Why::AfterJobs { .. } | Why::AfterEnds { .. } => Some("job waited for another"),
        Why::QueueJobs { .. } => Some("limit on running jobs reached"),
        Why::QueueLimit { .. } => Some("queue's maximum reached"),
        Why::UserLimit { .. } => Some("user's limit reached"),
        Why::FairShare { .. } => Some("strict fair share reached"),
        Why::Constraints { .. } => Some("constraint met by no node"),
        Why::Occupied { .. } => Some("no room"),
        Why::Gang { .. } => Some("gang without room for all of it"),
        Why::Reserved { .. } => Some("node reserved for another task"),
        Why::Quota { .. } => Some("opportunistic quota reached"),
        Why::Allowance { .. } => Some("job's allowance reached"),
        _ => None,
    }
}
