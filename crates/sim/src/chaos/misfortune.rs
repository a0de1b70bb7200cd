//! The faults of a seed and their times.

use super::draws::{is_one_in, one_of};
use super::scenario::UNSAFE_FOR;
use crate::faults::{Fault, Intrusion, Moment, Planned};
use crate::places::{Places, ProcessId};
use amalgam_core::protocol::JobAction;
use amalgam_core::vocabulary::{Chance, Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ServerCrash,
    AgentCrash,
    ExecutorDeath,
    Break,
    Pause,
    Act,
    SubmitAgain,
    Drain,
    DiskFailure,
    SlowDisk,
    LaunchFault,
    HostCrash,
    HostPause,
    HostSlowDisk,
}

const KINDS: [Kind; 11] = [
    Kind::ServerCrash,
    Kind::AgentCrash,
    Kind::ExecutorDeath,
    Kind::Break,
    Kind::Pause,
    Kind::Act,
    Kind::SubmitAgain,
    Kind::Drain,
    Kind::DiskFailure,
    Kind::SlowDisk,
    Kind::LaunchFault,
];

/// Faults of processes of job managers and of global masters, if there are any.
const OF_HOSTS: [Kind; 3] = [Kind::HostCrash, Kind::HostPause, Kind::HostSlowDisk];

/// Draws the faults. The last one ends all faults.
pub fn plan(places: &Places, jobs: usize, chance: &mut Chance) -> Vec<Planned> {
    // Each seed has a few kinds only: if all kinds occurred together, one could hide the effects of another.
    let mut kinds: Vec<Kind> = KINDS.into_iter().filter(|_| is_one_in(3, chance)).collect();
    if places.managers > 0 || places.federation.is_some() {
        kinds.extend(OF_HOSTS.into_iter().filter(|_| is_one_in(2, chance)));
    }
    let count = if kinds.is_empty() { 0 } else { 1 + chance.below(30_u64) };
    let mut plan: Vec<Planned> = (0..count)
        .map(|_| {
            let kind = one_of(chance, &kinds);
            let at = Instant(chance.below(UNSAFE_FOR.as_micros()));
            Planned { at, upon: moment(kind, chance), fault: fault(kind, places, jobs, chance) }
        })
        .collect();
    plan.push(Planned { at: Instant::ZERO + UNSAFE_FOR, upon: None, fault: Fault::Heal });
    plan
}

/// In half of the seeds, an intruder sends launches without a key.
pub fn intrusions(chance: &mut Chance) -> Vec<Planned> {
    let count = if is_one_in(2, chance) { 10 + chance.below(30_u64) } else { 0 };
    let intrusion = |_| {
        let fault = Fault::Intrude { how: one_of(chance, &Intrusion::ALL), which: chance.below(u32::MAX) };
        let moment = one_of(chance, &[None, Some(Moment::TaskStarts), Some(Moment::TaskEnds)]);
        let upon = moment.map(|moment| (moment, Duration::from_micros(chance.below(50_000_u64))));
        Planned { at: Instant(chance.below(UNSAFE_FOR.as_micros())), upon, fault }
    };
    (0..count).map(intrusion).collect()
}

/// Many faults wait for a moment with messages in transit. A log can only fail while it is written.
fn moment(kind: Kind, chance: &mut Chance) -> Option<(Moment, Duration)> {
    let moment = one_of(chance, &[None, Some(Moment::InTurn), Some(Moment::TaskStarts), Some(Moment::TaskEnds)]);
    let moment = if kind == Kind::DiskFailure { Some(Moment::InTurn) } else { moment };
    let most = one_of(chance, &[1, 1_000, 50_000]);
    moment.map(|moment| (moment, Duration::from_micros(chance.below(most))))
}

fn fault(kind: Kind, places: &Places, jobs: usize, chance: &mut Chance) -> Fault {
    let node = chance.below(places.nodes as u64) as usize;
    let job = chance.below(jobs as u64) as u32;
    let one_in = |count: usize, chance: &mut Chance| chance.below(count as u64) as usize;
    let (mut server, mut link, mut host) = (ProcessId::Server, node, ProcessId::Server);
    if places.federation.is_some() {
        server = ProcessId::Cluster(one_in(places.clusters(), chance));
    }
    let place = one_of(chance, &[server, ProcessId::Node(node)]);
    if places.managers > 0 || places.federation.is_some() {
        link = one_in(places.links(), chance);
    }
    if places.managers > 0 {
        host = ProcessId::Managers(one_in(places.managers, chance));
    } else if places.federation.is_some() {
        host = ProcessId::Global(one_in(places.globals(), chance));
    }
    match kind {
        Kind::ServerCrash => crash(server, chance),
        Kind::HostCrash => crash(host, chance),
        Kind::AgentCrash => crash(ProcessId::Node(node), chance),
        Kind::ExecutorDeath => Fault::ExecutorDies { node },
        Kind::Break => Fault::Break {
            link,
            lasts: length(chance),
            noticed_outside: length(chance),
            noticed_inside: length(chance),
        },
        Kind::Pause => Fault::Pause { place, length: length(chance) },
        Kind::HostPause => Fault::Pause { place: host, length: length(chance) },
        Kind::Act => {
            let actions = [JobAction::Cancel, JobAction::Hold, JobAction::Release, JobAction::RerunFailed];
            Fault::Act { job, action: one_of(chance, &actions) }
        }
        Kind::SubmitAgain => Fault::SubmitAgain { job },
        Kind::Drain => Fault::Drain { node, drained: is_one_in(2, chance) },
        Kind::DiskFailure => {
            let reached = chance.below(1_001_u32);
            let place = if places.federation.is_some() { one_of(chance, &[server, host]) } else { server };
            Fault::DiskFails { place, reached, down: length(chance), noticed: length(chance) }
        }
        Kind::SlowDisk => Fault::DiskSlow { place, lasts: length(chance) },
        Kind::HostSlowDisk => Fault::DiskSlow { place: host, lasts: length(chance) },
        Kind::LaunchFault => Fault::CannotLaunch { node, lasts: length(chance) },
    }
}

fn crash(place: ProcessId, chance: &mut Chance) -> Fault {
    Fault::Crash { place, down: length(chance), noticed: length(chance) }
}

/// From zero up to longer than any grace period.
fn length(chance: &mut Chance) -> Duration {
    let most = one_of(chance, &[1, 20_000, 2_000_000, 90_000_000]);
    Duration::from_micros(chance.below(most))
}
