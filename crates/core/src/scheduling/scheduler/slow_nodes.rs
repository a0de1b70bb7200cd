//! Slow nodes get the tasks that are expected to end there before they would elsewhere: a task waits for room on another node if
//! that wait is shorter than what it would lose (Boutin et al. 2014: Apollo, section 3.3, estimated completion time).
//!
//! How many times as long tasks take on a node follows from the attempts that ended there ([`NodeSpeeds`]), and from the
//! probability that an attempt succeeds, since a failed task runs again. The expected wait elsewhere is the time in which as many
//! tasks end on the cluster as wait before this one and with it. An ask waits at most for as long as a task would lose, since it was
//! last granted room.

use super::{Confirm, Scheduler};
use crate::policy::node_speeds::{EndedRun, NodeSpeeds, USUAL};
use crate::policy::{AskSlot, NextAsk};
use crate::scheduling::{Booking, Ledger};
use crate::vocabulary::{AskId, Duration, GrantId, Instant, NodeId};
use std::collections::BTreeMap;

/// What was learned of the speeds of nodes, and when their room is offered.
pub(super) struct Speeds {
    learned: NodeSpeeds,
    /// By the slot of the grant.
    runs: Vec<Option<Run>>,
    /// Nodes on which attempts fail: the probability that one succeeds, in millionths.
    success: BTreeMap<NodeId, u32>,
    reviewed_at: Instant,
    offered_at: Instant,
    next_offer: Option<Instant>,
    /// Where the next offer starts among the slow nodes with room, if they are too many for one.
    offered: usize,
    /// Nodes that are not slow any more, whose room was not assigned since.
    recovered: Vec<NodeId>,
}

/// An attempt that runs.
#[derive(Clone, Copy)]
struct Run {
    grant: GrantId,
    ask: AskId,
    since: Instant,
    expected: Duration,
}

/// An ask that waits.
#[derive(Clone, Copy)]
struct Waiting {
    ask: AskSlot,
    /// The number of tasks before it.
    ahead: u64,
    /// Whether nodes that are not slow could hold its tasks.
    has_others: bool,
}

impl Speeds {
    /// Time in which the weight of an attempt's time halves: the same as that of its success.
    const HALF_LIFE: Duration = Duration::from_secs(600);

    pub(super) fn new() -> Speeds {
        Speeds {
            learned: NodeSpeeds::new(Speeds::HALF_LIFE),
            runs: Vec::new(),
            success: BTreeMap::new(),
            reviewed_at: Instant::ZERO,
            offered_at: Instant::ZERO,
            next_offer: None,
            offered: 0,
            recovered: Vec::new(),
        }
    }

    /// A task of the ask starts with this grant.
    pub(super) fn on_granted(&mut self, since: Instant, grant: GrantId, ask: AskId, expected: Option<Duration>) {
        let slot = grant.slot as usize;
        if self.runs.len() <= slot {
            self.runs.resize(slot + 1, None);
        }
        self.runs[slot] = expected.map(|expected| Run { grant, ask, since, expected });
    }

    /// Room on slow nodes is to be offered, or may be of use to other asks than before.
    fn offer_soon(&mut self) {
        let at = self.offered_at + Scheduler::SLOW_OFFERED_EVERY;
        self.next_offer = Some(self.next_offer.map_or(at, |before| before.min(at)));
    }

    fn slowness(&self, now: Instant, node: NodeId) -> u32 {
        let success = self.success.get(&node).copied().unwrap_or(1_000_000).max(1);
        let times = u64::from(self.learned.slowness(now, node)) * 1_000_000 / u64::from(success);
        u32::try_from(times).unwrap_or(u32::MAX)
    }
}

impl Scheduler {
    /// The least time between two offers of the room on slow nodes, and the time after which it is offered again while tasks wait.
    const SLOW_OFFERED_EVERY: Duration = Duration::from_millis(10);
    const SLOW_OFFERED_AGAIN: Duration = Duration::from_secs(1);
    /// Maximum numbers of asks that are examined for it, of those that fit, and of nodes.
    const EXAMINED_FOR_SLOW: usize = 4_096;
    const CONSIDERED_FOR_SLOW: usize = 256;
    const SLOW_OFFERED: usize = 64;
    /// How often it is examined whether nodes are still slow.
    const SPEEDS_REVIEWED_EVERY: Duration = Duration::from_secs(1);

    /// Tasks are placed on slow nodes as on others: where each node is filled when it reports, asks are not known to lack room.
    pub fn use_slow_nodes(&mut self) {
        self.speeds = None;
    }

    /// When room on slow nodes should be offered next.
    pub fn next_slow_offer(&self) -> Option<Instant> {
        self.speeds.as_ref()?.next_offer
    }

    /// An attempt has failed because of the node: how likely others succeed there is to be reported.
    pub fn note_failure(&mut self, node: NodeId) {
        if let Some(speeds) = &mut self.speeds {
            speeds.success.entry(node).or_insert(1_000_000);
        }
    }

    /// The probability that an attempt succeeds on the node, in millionths; ignored for a node without failures.
    pub fn on_success_rate(&mut self, now: Instant, node: NodeId, success: u32, ledger: &mut Ledger) {
        let Some(speeds) = &mut self.speeds else { return };
        let Some(known) = speeds.success.get_mut(&node) else { return };
        *known = success;
        if success >= 1_000_000 {
            speeds.success.remove(&node);
        }
        self.judge(now, node, ledger);
    }

    /// The node was put into use again.
    pub fn forget_speed(&mut self, now: Instant, node: NodeId, ledger: &mut Ledger) {
        if let Some(speeds) = &mut self.speeds {
            speeds.learned.forget(node);
            self.judge(now, node, ledger);
        }
    }

    /// The node is not used any more.
    pub fn on_node_removed(&mut self, node: NodeId, ledger: &mut Ledger) {
        if let Some(speeds) = &mut self.speeds {
            speeds.success.remove(&node);
            speeds.learned.forget(node);
            ledger.set_slowness(node, USUAL);
        }
    }

    /// The nodes with failures that still count.
    pub fn failing_nodes(&self) -> Vec<NodeId> {
        self.speeds.iter().flat_map(|speeds| speeds.success.keys().copied()).collect()
    }

    /// An attempt with the booking has ended.
    pub(super) fn note_speed(&mut self, now: Instant, booking: &Booking, unfinished: bool, ledger: &mut Ledger) {
        let Some(speeds) = &mut self.speeds else { return };
        let run = speeds.runs.get_mut(booking.grant.slot as usize).and_then(Option::take);
        let Some(run) = run.filter(|run| run.grant == booking.grant) else { return };
        let Some(slot) = self.queue.ask_slot(run.ask) else { return };
        let ratios = &mut self.queue.ask_mut(slot).ratios;
        let Run { ask, since, expected, .. } = run;
        speeds.learned.on_ended(now, &EndedRun { node: booking.node, ask, since, expected, unfinished }, ratios);
        self.judge(now, booking.node, ledger);
    }

    /// Sets how slow the node is.
    fn judge(&mut self, now: Instant, node: NodeId, ledger: &mut Ledger) {
        let Some(speeds) = &mut self.speeds else { return };
        let was_slow = ledger.is_slow(node);
        let times = speeds.slowness(now, node);
        if was_slow || times > USUAL {
            ledger.set_slowness(node, times);
        }
        if was_slow && !ledger.is_slow(node) {
            speeds.recovered.push(node);
            speeds.offer_soon();
        }
    }

    /// Assigns the room of nodes that are not slow any more.
    pub(super) fn review_speeds(&mut self, now: Instant, ledger: &mut Ledger, confirm: &mut Confirm<'_>) {
        let Some(speeds) = &mut self.speeds else { return };
        if ledger.has_slow_nodes() && now.since(speeds.reviewed_at) >= Self::SPEEDS_REVIEWED_EVERY {
            speeds.reviewed_at = now;
            let slow: Vec<NodeId> = ledger.slow_nodes().map(|(node, _)| node).collect();
            slow.into_iter().for_each(|node| self.judge(now, node, ledger));
        }
        let recovered = self.speeds.as_mut().map(|speeds| std::mem::take(&mut speeds.recovered)).unwrap_or_default();
        for node in recovered {
            self.fill_node(now, node, None, ledger, confirm);
        }
    }

    /// The room of slow nodes is to be offered, which has grown or may be of use to other asks.
    pub(super) fn note_slow_room(&mut self, ledger: &Ledger) {
        if let Some(speeds) = self.speeds.as_mut().filter(|_| ledger.has_slow_nodes()) {
            speeds.offer_soon();
        }
    }

    /// Starts tasks on slow nodes that are expected to end there before they would elsewhere.
    pub(super) fn offer_slow_room(&mut self, now: Instant, ledger: &mut Ledger, confirm: &mut Confirm<'_>) {
        let Some(speeds) = self.speeds.as_mut().filter(|speeds| speeds.next_offer.is_some_and(|at| at <= now)) else {
            return;
        };
        (speeds.offered_at, speeds.next_offer) = (now, None);
        let has_room = |node: &NodeId| !ledger.offer_is_closed(*node) && !ledger.offer(*node).is_zero();
        let is_kept = |node: &NodeId| self.reservation.as_ref().is_some_and(|kept| kept.has(*node));
        let slow = ledger.slow_nodes().filter(|(node, _)| has_room(node) && !is_kept(node));
        let mut nodes: Vec<(u32, NodeId)> = slow.map(|(node, times)| (times, node)).collect();
        if nodes.is_empty() {
            return;
        }
        if nodes.len() > Self::SLOW_OFFERED {
            let first = speeds.offered % nodes.len();
            nodes.rotate_left(first);
            nodes.truncate(Self::SLOW_OFFERED);
            speeds.offered = first + Self::SLOW_OFFERED;
        }
        nodes.sort_unstable();
        // The asks of which a task has room there, each with the number of tasks before it.
        let (mut asks, mut ahead, mut seen): (Vec<(AskSlot, u64)>, u64, usize) = (Vec::new(), 0, 0);
        self.inter_job.blocked(&mut |ask| {
            let request = self.queue.ask(ask);
            let fits = |(_, node): &(u32, NodeId)| {
                request.shape.fits_in(&ledger.offer(*node)) && self.reaches(ask, *node, ledger)
            };
            asks.extend((!request.is_gang && nodes.iter().any(fits)).then_some((ask, ahead)));
            (ahead, seen) = (ahead + request.open(), seen + 1);
            asks.len() == Self::CONSIDERED_FOR_SLOW || seen == Self::EXAMINED_FOR_SLOW
        });
        let mut has_others = BTreeMap::new();
        for (ask, before) in asks {
            let (class, shape) = (self.queue.ask(ask).widest_class, self.queue.ask(ask).shape);
            let has_others =
                *has_others.entry((class, shape)).or_insert_with(|| ledger.has_others_than_slow(class, &shape));
            for &(times, node) in &nodes {
                let waiting = Waiting { ask, ahead: before, has_others };
                self.start_on_slow(now, waiting, (times, node), ledger, confirm);
            }
        }
        if let Some(speeds) = self.speeds.as_mut().filter(|_| ahead > 0) {
            let again = now + Self::SLOW_OFFERED_AGAIN;
            speeds.next_offer = Some(speeds.next_offer.map_or(again, |at| at.min(again)));
        }
    }

    fn start_on_slow(
        &mut self,
        now: Instant,
        waiting: Waiting,
        (times, node): (u32, NodeId),
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) {
        let Waiting { ask, .. } = waiting;
        let choice = NextAsk { ask, passed_over: 0, parked: true };
        while self.queue.ask(ask).open() > 0
            && self.queue.ask(ask).shape.fits_in(&ledger.offer(node))
            && self.reaches(ask, node, ledger)
            && self.inter_job.limit_on(ask).is_none()
            && !self.waits_for_another(now, waiting, times)
        {
            if self.grant(now, choice, node, self.inter_job.rule(), ledger, confirm).is_err() {
                return;
            }
        }
    }

    /// Whether the last task of the ask is expected to end sooner if it waits for room on a node that is not slow, behind the
    /// tasks before it. `times`: how many times as long it takes on the slow node, in thousandths.
    fn waits_for_another(&self, now: Instant, waiting: Waiting, times: u32) -> bool {
        let Waiting { ask, ahead, has_others } = waiting;
        let request = self.queue.ask(ask);
        let Some(expected) = request.expected else { return false };
        let lost = u128::from(expected.0) * u128::from(times.saturating_sub(USUAL)) / u128::from(USUAL);
        let awaited = ahead + request.open();
        // In nanoseconds.
        let wait = u128::from(awaited) * u128::from(self.pace.each(now, awaited)) / 1_000;
        let waited = u128::from(now.since(request.waiting_since).0);
        has_others && wait < lost && waited < lost
    }
}
