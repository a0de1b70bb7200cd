//! Queues with shares in a federation (Megha, section IV-C): no task is preempted for a queue beyond its share, and if
//! there is no room for a queue below its share, tasks of queues beyond theirs are preempted within two heartbeats.
//!
//! For the first rule, what a queue holds is counted by its processes at the nodes; for the second, by the ledgers of
//! the clusters.

use super::{Breach, Checker, HAND_OVER};
use crate::faults::Happening;
use crate::node::STOP_GRACE;
use crate::simulation::Simulation;
use amalgam_core::dispatch::Dispatcher;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::protocol::{AdmittedJob, Rule};
use amalgam_core::role::Change;
use amalgam_core::scheduling::{Blocked, Booking, Ledger};
use amalgam_core::vocabulary::{
    AttemptId, Duration, GrantId, Instant, JobId, NodeId, QueueId, Resources, TaskId, Totals,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Interval of the checks for queues below their shares.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Shares {
    jobs: BTreeMap<JobId, Arc<AdmittedJob>>,
    grants: BTreeMap<AttemptId, GrantId>,
    /// The launches of this step, which cannot have been refused yet.
    launched: Vec<(QueueId, Resources)>,
    running: BTreeMap<AttemptId, Running>,
    /// By queue: the capacity that its global master knew at the last check.
    capacity: BTreeMap<QueueId, Totals>,
    looked_at: Instant,
    /// Since when a queue has been below its share while others hold resources for it.
    lacking: BTreeMap<QueueId, Instant>,
    /// Number of launches for which others are preempted, and of checks of queues below their shares.
    given_way: u64,
    looks: u64,
}

struct Running {
    node: usize,
    queue: QueueId,
    resources: Resources,
    grant: GrantId,
}

impl Running {
    /// Whether it is being preempted: its master has selected it, or its node is stopping it. It no longer counts,
    /// however long the stop takes.
    fn is_preemptible(&self, attempt: AttemptId, world: &Simulation) -> bool {
        let is_ending = world.agent(self.node).is_some_and(|agent| agent.is_ending(attempt));
        is_ending
            || world.ledger_of(self.node).is_some_and(|ledger| {
                let is_it = |booking: Booking| booking.grant == self.grant;
                let node = NodeId(self.node as u32);
                ledger.bookings_on(node).any(is_it) && !ledger.staying_on(node).any(is_it)
            })
    }
}

/// The bookings of all clusters.
struct Booked<'a> {
    world: &'a Simulation,
    used: BTreeMap<QueueId, Totals>,
    capacity: Totals,
}

impl Shares {
    fn take_in(&mut self, world: &Simulation, happening: &Happening) -> Result<(), Breach> {
        match happening {
            Happening::TaskStarted { node, attempt, resources, .. } => {
                if let (Some(job), Some(grant)) = (self.jobs.get(&attempt.job), self.grants.get(attempt)) {
                    let running = Running { node: *node, queue: job.queue, resources: *resources, grant: *grant };
                    self.running.insert(*attempt, running);
                }
            }
            Happening::Ended { attempt, .. } => drop(self.running.remove(attempt)),
            _ => {}
        }
        match happening.change() {
            Some(Change::JobAdmitted { job, .. }) => {
                self.jobs.insert(job.id, Arc::clone(job));
            }
            Some(Change::Lost { attempt, .. }) => drop(self.running.remove(attempt)),
            // The queue got room but lost the attempt, so the time below its share restarts.
            Some(Change::Finished { task, ended, .. }) if ended.reason.is_loss() => {
                if let Some(job) = self.jobs.get(&task.job) {
                    self.lacking.remove(&job.queue);
                }
            }
            Some(Change::Launched { attempt, task, grant: Some(grant), rule, .. }) => {
                self.grants.insert(*attempt, *grant);
                if let Some(job) = self.jobs.get(&task.job) {
                    self.launched.push((job.queue, job.resources[task.stage as usize]));
                }
                if let Rule::Share { .. } = rule {
                    self.check_launch(world, *task)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_launch(&mut self, world: &Simulation, task: TaskId) -> Result<(), Breach> {
        let (Some(job), Some(dispatcher)) = (self.jobs.get(&task.job), world.dispatcher(task.job)) else {
            return Ok(());
        };
        self.given_way += 1;
        let mut held = Totals::ZERO;
        let launched = self.launched.iter().filter(|(queue, _)| *queue == job.queue);
        launched.for_each(|(_, resources)| held.add(resources));
        let of_queue = self.running.iter().filter(|(_, running)| running.queue == job.queue);
        let staying = of_queue.filter(|(attempt, running)| !running.is_preemptible(**attempt, world));
        staying.for_each(|(_, running)| held.add(&running.resources));
        // Nodes may have left in the same turn.
        let now = *dispatcher.rooms.capacity();
        let before = self.capacity.get(&job.queue).copied().unwrap_or_default();
        let (part, share) =
            (held.dominant_share(&now.larger_of(&before)), share_of(&world.settings().queues, job.queue));
        if part <= share {
            return Ok(());
        }
        let name = &world.settings().queues.spec(job.queue).name;
        Err(Breach::of_task(task, format!("tasks are preempted for it, but {name} has {part} of {share} millionths")))
    }

    fn look_for_lack(&mut self, world: &Simulation) -> Result<(), Breach> {
        if world.some_hang() {
            // The time restarts when no process hangs.
            self.lacking.clear();
            return Ok(());
        }
        let Some(booked) = Booked::of(world) else { return Ok(()) };
        let shares: Vec<(QueueId, u64)> = world.settings().queues.shares().filter(|(_, share)| *share > 0).collect();
        for (queue, share) in shares {
            let mut dispatchers = world.dispatchers();
            let lack = dispatchers.find_map(|dispatcher| booked.lacks(queue, share, dispatcher));
            let Some((node, _)) = lack else {
                self.lacking.remove(&queue);
                continue;
            };
            self.looks += 1;
            let since = *self.lacking.entry(queue).or_insert(world.now());
            if world.now().since(since) > longest_lack(world) {
                let name = &world.settings().queues.spec(queue).name;
                return Err(Breach::new(format!(
                    "{name} is below its share for {}, but queues beyond theirs hold enough on {node}",
                    world.now().since(since)
                )));
            }
        }
        Ok(())
    }
}

impl<'a> Booked<'a> {
    /// `None` if the bookings of some node, or the queue of some job, are unknown.
    fn of(world: &'a Simulation) -> Option<Booked<'a>> {
        let mut booked = Booked { world, used: BTreeMap::new(), capacity: Totals::ZERO };
        for node in world.nodes() {
            let (ledger, id) = (world.ledger_of(node)?, NodeId(node as u32));
            if ledger.expects_nodes() {
                return None;
            }
            booked.capacity.add(&ledger.node_capacity(id));
            for booking in ledger.bookings_on(id) {
                let queue = world.dispatcher(booking.job)?.queue_of(booking.job)?;
                booked.used.entry(queue).or_default().add(&booking.resources);
            }
        }
        Some(booked)
    }

    /// A node with enough room for a waiting task of the queue if tasks of one queue beyond its share were preempted,
    /// and that other queue. `None` if there is none, or if the task would take the queue beyond its share.
    fn lacks(&self, queue: QueueId, share: u64, dispatcher: &Dispatcher) -> Option<(NodeId, QueueId)> {
        let queues = &self.world.settings().queues;
        queues.global_of(queue)?;
        let is_beyond =
            |(other, used): &(&QueueId, &Totals)| used.dominant_share(&self.capacity) > share_of(queues, **other);
        let beyond: Vec<QueueId> = self.used.iter().filter(is_beyond).map(|(other, _)| *other).collect();
        // Gangs are excluded: they take all their room or none, and may have to wait for a part of it.
        let is_wanted = |shape: &Resources, at_once| at_once == 1 && self.is_within(queue, share, shape);
        let asks = dispatcher.scheduler.blocked_in(queue, usize::MAX, is_wanted);
        asks.iter().find_map(|ask| {
            let nodes = self.world.nodes().filter(|node| dispatcher.rooms.classes().meets(ask.class, *node));
            let mut places = nodes.flat_map(|node| beyond.iter().map(move |other| (node, *other)));
            places
                .find(|(node, other)| self.could_leave(*other, *node, ask))
                .map(|(node, other)| (NodeId(node as u32), other))
        })
    }

    fn is_within(&self, queue: QueueId, share: u64, more: &Resources) -> bool {
        let mut with = self.used.get(&queue).copied().unwrap_or_default();
        with.add(more);
        with.dominant_share(&self.capacity) <= share
    }

    fn could_leave(&self, other: QueueId, node: usize, ask: &Blocked) -> bool {
        let Some(ledger) = self.world.ledger_of(node).filter(|ledger| is_open(ledger, node)) else { return false };
        let id = NodeId(node as u32);
        let is_of_other = |job: JobId| self.world.dispatcher(job).and_then(|it| it.queue_of(job)) == Some(other);
        let theirs = ledger.staying_on(id).filter(|booking| is_of_other(booking.job));
        let room = theirs.fold(ledger.node_free(id), |room, booking| room.saturating_add(&booking.resources));
        ask.shape.fits_in(&room) && ask.shape.fits_in(&ledger.node_capacity(id))
    }
}

/// Two heartbeats, the time to stop preempted attempts, and the network delays of launches, ends and reports.
fn longest_lack(world: &Simulation) -> Duration {
    const ROUTES: u64 = 6;
    let network = &world.settings().network;
    let again = if network.loss > 0.0 { network.retransmission } else { Duration::ZERO };
    let way = network.delay + network.jitter + again;
    Duration(2 * world.settings().master.heartbeat.0 + ROUTES * way.0) + STOP_GRACE + HAND_OVER
}

fn is_open(ledger: &Ledger, node: usize) -> bool {
    !ledger.offer_is_closed(NodeId(node as u32))
}

/// In millionths.
fn share_of(queues: &QueueTree, queue: QueueId) -> u64 {
    u64::from(queues.spec(queue).guaranteed)
}

impl Checker for Shares {
    fn rule(&self) -> &'static str {
        "a queue below its share gets it within two heartbeats, and no task is preempted for a queue beyond its share"
    }

    /// Launches for which others are preempted.
    fn subjects(&self) -> u64 {
        self.given_way
    }

    fn saw(&self) -> Vec<(&'static str, u64)> {
        vec![("check of a queue below its share", self.looks)]
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        if world.settings().federation.is_none() {
            return Ok(());
        }
        self.launched.clear();
        happened.iter().try_for_each(|happening| self.take_in(world, happening))?;
        for dispatcher in world.dispatchers() {
            let queues = dispatcher.running().map(|(_, queue)| queue);
            self.capacity.extend(queues.map(|queue| (queue, *dispatcher.rooms.capacity())));
        }
        if world.is_healed() && world.now() >= self.looked_at + LOOK_EVERY {
            self.looked_at = world.now();
            self.look_for_lack(world)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{job, nodes, run};
    use amalgam_core::preset::Preset;
    use amalgam_core::role::Record;
    use amalgam_core::vocabulary::QueueSpec;
    use amalgam_workload::trace::{MalformedLines, Workload};

    /// The paper's four users with their shares of 48 cores and their global masters, and one user without a share.
    const USERS: [(&str, u32, Option<u8>); 5] = [
        ("root.a", 100_000, Some(0)),
        ("root.b", 250_000, Some(1)),
        ("root.c", 150_000, Some(1)),
        ("root.d", 500_000, Some(2)),
        ("root.e", 0, None),
    ];
    const SECOND: u64 = 1_000_000;

    /// Three clusters of four nodes with four cores. The user without a share holds all cores before the others arrive
    /// at 100 s.
    fn world(preset: Preset) -> Simulation {
        let queue = |(name, guaranteed, global): (&str, u32, Option<u8>)| QueueSpec {
            guaranteed,
            global,
            ..QueueSpec::named(name)
        };
        let queues = QueueTree::new(USERS.map(queue).to_vec()).unwrap();
        let settings = Settings { preset, federation: Some((3, 3)), queues, ..Settings::default() };
        let of_user = |(name, _, _): (&str, u32, Option<u8>)| {
            let arrives = if name == "root.e" { 1 } else { 100 };
            job(name, 48, Duration::from_secs(arrives), Duration::from_secs(3_600))
        };
        let jobs = USERS.map(of_user).to_vec();
        let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
        let mut world = Simulation::new(settings, &nodes(12, 4), &workload);
        world.open();
        world.plan(Vec::new());
        world
    }

    /// Cores that each user's tasks hold at the nodes.
    fn cores(world: &Simulation) -> [u32; 5] {
        let mut cores = [0; 5];
        for live in world.nodes().filter_map(|node| world.agent(node)).flat_map(|agent| agent.live()) {
            let queue = world.dispatcher(live.attempt.job).and_then(|it| it.queue_name(live.attempt.job));
            let user = USERS.iter().position(|(name, _, _)| Some(*name) == queue).unwrap();
            cores[user] += live.resources.cpu_millis() / 1_000;
        }
        cores
    }

    #[test]
    fn within_two_heartbeats_every_user_has_its_share_less_one_task_and_keeps_it() {
        for preset in Preset::FEDERATED {
            let mut world = world(preset);
            run(&mut world, 99 * SECOND);
            assert_eq!(cores(&world), [0, 0, 0, 0, 48]);
            let is_preempting = |happening: &Happening| matches!(happening.record(), Some(Record::Preempting { .. }));
            let until = 100 * SECOND + 2 * world.settings().master.heartbeat.0;
            let started = run(&mut world, until);
            assert_eq!(cores(&world), [4, 12, 7, 24, 1], "{}", preset.name());
            assert_eq!(started.iter().filter(|happening| is_preempting(happening)).count(), 47);
            let later = run(&mut world, until + 600 * SECOND);
            assert_eq!(later.iter().filter(|happening| is_preempting(happening)).count(), 0);
            assert_eq!(cores(&world), [4, 12, 7, 24, 1]);
        }
    }

    #[test]
    fn a_preemption_for_a_queue_beyond_its_share_is_noticed() {
        let mut world = world(Preset::MEGHA);
        let mut happened = run(&mut world, 200 * SECOND);
        let check = |happened: &[Happening]| {
            let mut checker = Shares::default();
            happened.chunks(1).try_for_each(|step| checker.check(&world, step))
        };
        assert_eq!(check(&happened), Ok(()));
        let is_of_a = |happening: &Happening| match happening.change() {
            Some(Change::Launched { task, rule: Rule::Share { .. }, .. }) => {
                world.dispatcher(task.job).and_then(|it| it.queue_name(task.job)) == Some("root.a")
            }
            _ => false,
        };
        // The queue has four cores by now, and may have 4.8.
        let again = happened.iter().rfind(|happening| is_of_a(happening)).cloned().unwrap();
        happened.push(again);
        let breach = check(&happened).unwrap_err();
        assert!(breach.what.contains("root.a has 104166 of 100000 millionths"), "{}", breach.what);
    }

    #[test]
    fn a_queue_below_its_share_for_too_long_is_noticed() {
        // The others' tasks have just arrived and wait, and the user without a share holds all cores.
        let mut world = world(Preset::MEGHA);
        run(&mut world, 100 * SECOND + 1_000);
        let mut checker = Shares::default();
        let looks = (0..40).try_for_each(|_| checker.look_for_lack(&world));
        assert_eq!(looks, Ok(()), "no time passes");
        assert!(checker.looks > 0, "some queue is below its share");
        let too_long = longest_lack(&world) + Duration(1);
        checker.lacking.values_mut().for_each(|since| *since = since.before(too_long));
        let breach = checker.look_for_lack(&world).unwrap_err();
        assert!(breach.what.contains(" is below its share for "), "{}", breach.what);
    }
}
