//! The scheduler: a request queue, the order of asks (inter-job policy) and the choice of nodes (placement policy). It
//! is hosted by a role, which has its proposals confirmed by the owner of the nodes.
//!
//! Room on one node is offered to the first ask in the order that fits. A new ask is tried on the whole cluster once
//! and then waits for room on some node. So the work of an event does not grow with the number of open tasks.

mod backfilling;
mod delays;
mod gangs;
mod reasons;
mod reclaim;
mod reservations;
mod slow_nodes;

pub use reasons::explain_fit;
pub use reclaim::{ConfirmInstead, Reclaim};

use super::ledger::{Booking, ClaimError, Ledger, WithoutSlow};
use super::locality::{Delays, Reach, local_nodes};
use super::predicting::{Outlook, Pace, Waiting};
use super::request_queue::{OpenRequest, RequestQueue};
use crate::policy::inter_job::QueueTree;
use crate::policy::node_speeds::Ratios;
use crate::policy::{
    AskSlot, Budget, Decision, DemandChange, InterJobPolicy, NewAllowance, NextAsk, Offer, OpenAsk, Outcome,
    PlacementPolicy, QueueUsage,
};
use crate::protocol::{AdmittedJob, Ask, Rule};
use crate::vocabulary::{
    AllowanceRequest, AskId, Duration, GrantId, Instant, JobId, JobWork, Late, Line, Margins, NodeId, NodeViews,
    Prediction, QueueId, Resources, Route, Totals,
};
use backfilling::Ends;
use gangs::Gangs;
use reclaim::Holdings;
use reservations::{Federated, Reservation};
use slow_nodes::Speeds;
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct Scheduler {
    queue: RequestQueue,
    inter_job: Box<dyn InterJobPolicy>,
    placement: Box<dyn PlacementPolicy>,
    settings: SchedulerSettings,
    reservation: Option<Reservation>,
    federated: Option<Federated>,
    /// Asks that all nodes together could not hold, and the count of changes of nodes for which that was found.
    hopeless: BTreeSet<AskSlot>,
    hopeless_at: u64,
    /// When asks with a locality may use more nodes.
    widenings: BTreeSet<(Instant, AskSlot)>,
    decisions: Vec<Decision>,
    /// All growths of room up to this one were offered to waiting asks.
    settled: u64,
    /// The margins of predictions of starts.
    margins: Arc<Margins>,
    pace: Pace,
    /// Numbers of open tasks, and of asks with open tasks.
    open_tasks: u64,
    open_asks: u64,
    /// The slot at which the next search for late tasks starts.
    looked_at: AskSlot,
    gangs: Gangs,
    /// When bookings end; set if reserved nodes are backfilled or work is preempted.
    ends: Option<Ends>,
    /// Something may run on reserved nodes that did not when that was tried last, which was then.
    is_backfill_due: bool,
    backfilled_at: Instant,
    /// Set if work of jobs beyond what they are entitled to may be preempted.
    holdings: Option<Box<Holdings>>,
    /// Set if slow nodes are avoided.
    speeds: Option<Box<Speeds>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulerSettings {
    /// How long an ask finds no room before a node is reserved for it; `None`: never.
    pub reserve_after: Option<Duration>,
    /// Whether other tasks may run on reserved nodes until those are needed.
    pub backfill: bool,
    pub delays: Delays,
    /// Whether work of jobs beyond what they are entitled to is preempted for others, and how much.
    pub reclaim: Option<Reclaim>,
    /// Whether slow nodes, and those on which attempts fail, are avoided.
    pub avoids_slow_nodes: bool,
}

impl SchedulerSettings {
    /// Nothing but an order.
    pub const NONE: SchedulerSettings = SchedulerSettings {
        reserve_after: None,
        backfill: false,
        delays: Delays::NONE,
        reclaim: None,
        avoids_slow_nodes: false,
    };
}

/// Where there is room for an ask that found none before.
enum RoomSince {
    None,
    On(NodeId),
    /// Too much has changed: all nodes have to be searched.
    Unknown,
}

/// A placement that the scheduler proposes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granting {
    pub ask: AskId,
    pub node: NodeId,
    pub resources: Resources,
    pub rule: Rule,
    pub passed_over: u32,
    /// The prediction for the task's start, made when it was requested.
    pub prediction: Option<Prediction>,
}

/// An ask that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocked {
    pub slot: AskSlot,
    pub shape: Resources,
    /// The number of its tasks that have to get room at once.
    pub at_once: u64,
    /// The class of nodes that it may use.
    pub class: u32,
}

/// Confirms a proposal, and passes on the grant.
pub type Confirm<'a> = dyn FnMut(&mut Ledger, &Granting) -> Result<GrantId, ClaimError> + 'a;

impl Scheduler {
    /// An ask without open tasks for this long is tried on all nodes again, from where the placement policy continues.
    const SEARCHED_AGAIN_AFTER: Duration = Duration::from_secs(1);

    pub fn new(
        inter_job: Box<dyn InterJobPolicy>,
        placement: Box<dyn PlacementPolicy>,
        settings: SchedulerSettings,
    ) -> Scheduler {
        Scheduler {
            queue: RequestQueue::default(),
            inter_job,
            placement,
            settings,
            reservation: None,
            federated: None,
            hopeless: BTreeSet::new(),
            hopeless_at: 0,
            widenings: BTreeSet::new(),
            decisions: Vec::new(),
            settled: 0,
            margins: Arc::default(),
            pace: Pace::default(),
            open_tasks: 0,
            open_asks: 0,
            looked_at: 0,
            gangs: Gangs::default(),
            ends: (settings.backfill || settings.reclaim.is_some()).then(Ends::default),
            is_backfill_due: false,
            backfilled_at: Instant::ZERO,
            holdings: settings.reclaim.map(|rules| Box::new(Holdings::new(rules))),
            speeds: settings.avoids_slow_nodes.then(|| Box::new(Speeds::new())),
        }
    }

    // ---- requests of jobs ------------------------------------------------------------------------------------------

    pub fn add_job(&mut self, admitted: &AdmittedJob, queue: QueueId) {
        let AdmittedJob { id, user, ref spec, .. } = *admitted;
        if let Some(slot) = self.queue.job_slot(id) {
            // A job that ended and was reopened before its last resources were freed.
            self.queue.job_mut(slot).ended = false;
            return;
        }
        let (job, priority) = (self.queue.add_job(id, spec.stages.iter().any(|stage| stage.gang)), spec.priority);
        self.inter_job.on_change(&DemandChange::JobAdded { job, id, queue, user, priority });
    }

    /// Whether the job has bookings.
    pub fn holds_resources(&self, id: JobId) -> bool {
        self.queue.job_slot(id).is_some_and(|job| self.queue.job(job).bookings > 0)
    }

    /// Updates one ask of a job; ignored for an unknown job.
    pub fn on_ask(&mut self, now: Instant, ask: &Ask, ledger: &mut Ledger) {
        let Some(job) = self.queue.job_slot(ask.id.job) else { return };
        let slot = match self.queue.ask_slot(ask.id) {
            Some(slot) => slot,
            None => self.add_ask(now, ask, job, ledger),
        };
        let request = self.queue.ask_mut(slot);
        let (before, had_tasks) = (request.open(), request.has_tasks());
        let was_idle = before == 0;
        if was_idle {
            let may_be_returned = self.speeds.is_some() || self.settings.reclaim.is_some();
            if may_be_returned && now.since(request.waiting_since) >= Self::SEARCHED_AGAIN_AFTER {
                // Its last grant may have been returned because of the node.
                request.no_room_at = None;
            }
        }
        (request.wanted, request.duplicates) = (ask.wanted, ask.duplicates);
        if was_idle || !had_tasks && request.has_tasks() {
            request.waiting_since = now;
        }
        (request.expected, request.limit) = (ask.expected, ask.limit);
        let count = request.open();
        self.predict(now, slot, before);
        self.count_open(before, count);
        let request = self.queue.ask(slot);
        let (count, needed) = (request.open(), ask.needed.saturating_sub(request.granted));
        if was_idle && count > 0 {
            self.start_delays(now, slot, ledger);
        }
        self.inter_job.on_change(&DemandChange::Open { ask: slot, count, needed, rank: ask.rank });
        if count > before {
            self.note_grown(slot);
            self.note_slow_room(ledger);
        }
        if count != before {
            // If the ask is a gang that has shrunk, it may find room.
            self.hopeless.remove(&slot);
            if self.gangs.parked.remove(&slot) {
                self.inter_job.on_change(&DemandChange::RoomFor { ask: slot });
            }
            if self.queue.ask(slot).is_gang && self.is_kept_for(slot) {
                // The nodes are as many as it needed before.
                self.end_reservation(ledger);
            }
        }
        self.end_reservation_if_unwanted(slot, ledger);
    }

    /// Sets the margins of predictions of starts.
    pub fn set_margins(&mut self, margins: Arc<Margins>) {
        self.margins = margins;
    }

    /// Predicts the starts of tasks of an ask that were not open before. In the order of submission they start after
    /// all open tasks. If jobs take turns, they start after as many tasks of each other ask as there are before them in
    /// their own.
    fn predict(&mut self, now: Instant, slot: AskSlot, before: u64) {
        let in_order = self.inter_job.rule() == Rule::Submission;
        let shape = self.queue.ask(slot).shape;
        let step = if in_order { 1 } else { self.open_asks.max(1) };
        let ahead = if in_order { self.open_tasks } else { self.open_tasks.min(before.saturating_mul(step)) };
        let room = self.pace.room(&shape);
        let each = self.pace.each(now, ahead.saturating_sub(room));
        let (line, margins) = (Line { ahead, step, room, each }, &self.margins);
        let request = self.queue.ask_mut(slot);
        let open = request.open();
        request.waiting.on_open(now, open, || Outlook { way: Route::Asked, line, margins: Arc::clone(margins) });
    }

    /// Reports tasks that have waited for longer than predicted and were not reported before. Each call examines a part
    /// of the asks.
    pub fn late(&mut self, now: Instant, report: &mut dyn FnMut(Late)) {
        /// Numbers of asks, and of tasks per group that was requested at once.
        const LOOKED_AT: (usize, u64) = (1_024, 64);
        let asks = self.queue.asks_from(self.looked_at, LOOKED_AT.0);
        asks.for_each(|ask| ask.waiting.late(now, LOOKED_AT.1, report));
        let next = self.looked_at as usize + LOOKED_AT.0;
        self.looked_at = if next < self.queue.slots() { next as AskSlot } else { 0 };
    }

    fn count_open(&mut self, before: u64, now: u64) {
        self.open_tasks = self.open_tasks - before + now;
        self.open_asks = self.open_asks - u64::from(before > 0) + u64::from(now > 0);
    }

    /// The jobs whose new shares have to be sent, with the shares.
    pub fn new_shares(&mut self) -> Vec<(JobId, Totals)> {
        let jobs = self.inter_job.new_shares().into_iter().filter(|&job| !self.queue.job(job).ended);
        jobs.map(|job| (self.queue.job(job).id, self.inter_job.share(job))).collect()
    }

    /// The share that was sent to the job, or would be, if jobs that place their tasks themselves get any.
    pub fn reported_share(&self, id: JobId) -> Option<Totals> {
        self.inter_job.reported_share(self.queue.job_slot(id)?)
    }

    /// The jobs that have to be sent what their guaranteed tasks may hold.
    pub fn new_allowances(&mut self) -> Vec<(JobId, NewAllowance)> {
        let allowances = self.inter_job.new_allowances().into_iter().filter(|new| !self.queue.job(new.job).ended);
        allowances.map(|new| (self.queue.job(new.job).id, new)).collect()
    }

    /// What a job requests to hold whose tasks are placed elsewhere.
    pub fn on_allowance_request(&mut self, id: JobId, request: Box<AllowanceRequest>) {
        if let Some(job) = self.queue.job_slot(id) {
            self.inter_job.on_change(&DemandChange::AllowanceRequest { job, request });
        }
    }

    pub fn on_work(&mut self, id: JobId, work: &JobWork) {
        if let Some(job) = self.queue.job_slot(id) {
            self.inter_job.on_change(&DemandChange::Work { job, work: *work });
        }
    }

    fn add_ask(&mut self, now: Instant, ask: &Ask, job: u32, ledger: &mut Ledger) -> AskSlot {
        let (shape, class) = (ask.resources, ledger.class(&ask.constraints));
        let slot = self.queue.add_ask(OpenRequest {
            id: ask.id,
            job,
            shape,
            class,
            widest_class: class,
            locality: Arc::clone(&ask.locality),
            reach: Reach::Anywhere,
            delayed_since: now,
            execution: ask.execution,
            is_gang: ask.is_gang,
            priority: ask.priority,
            expected: None,
            limit: None,
            wanted: 0,
            duplicates: 0,
            granted: 0,
            waiting_since: now,
            no_room_at: None,
            ratios: Ratios::default(),
            waiting: Waiting::default(),
        });
        let (priority, is_gang) = (ask.priority, ask.is_gang);
        self.inter_job.on_change(&DemandChange::AskAdded { ask: slot, job, shape, class, priority, is_gang });
        slot
    }

    /// The job requests nothing more; it is removed when its last resources are freed.
    pub fn end_job(&mut self, id: JobId, ledger: &mut Ledger) {
        let Some(job) = self.queue.job_slot(id) else { return };
        for ask in self.queue.job(job).asks.clone() {
            if self.is_kept_for(ask) {
                self.end_reservation(ledger);
            }
            self.gangs.parked.remove(&ask);
            self.hopeless.remove(&ask);
            self.set_reach(ask, Reach::Anywhere, ledger);
            self.inter_job.on_change(&DemandChange::AskRemoved { ask });
            self.count_open(self.queue.ask(ask).open(), 0);
            self.queue.remove_ask(ask);
        }
        self.queue.job_mut(job).ended = true;
        self.forget_if_done(job);
    }

    fn forget_if_done(&mut self, job: u32) {
        let entry = self.queue.job(job);
        if entry.ended && entry.bookings == 0 {
            self.queue.remove_job(job);
            if let Some(holdings) = &mut self.holdings {
                holdings.on_gone(job);
            }
            self.inter_job.on_change(&DemandChange::JobRemoved { job });
        }
    }

    /// Whether no limit keeps the job from holding this much more.
    pub fn may_hold(&self, id: JobId, more: &Resources) -> bool {
        self.queue.job_slot(id).is_some_and(|job| self.inter_job.limit_for(job, more).is_none())
    }

    /// The job holds resources that this scheduler did not assign.
    pub fn on_adopted(&mut self, booking: &Booking) {
        let resources = booking.resources;
        if let Some(job) = self.queue.job_slot(booking.job) {
            self.queue.job_mut(job).bookings += 1;
            self.pace.on_held(&resources);
            if let Some(holdings) = &mut self.holdings {
                holdings.on_held(Instant::ZERO, job, booking.grant);
            }
            self.inter_job.on_change(&DemandChange::Taken { job, resources });
        }
    }

    /// An attempt with the booking has ended, which is freed next.
    pub fn on_ended(&mut self, now: Instant, booking: &Booking, unfinished: bool, ledger: &mut Ledger) {
        self.note_speed(now, booking, unfinished, ledger);
        if let (Some(job), Some(holdings)) = (self.queue.job_slot(booking.job), &mut self.holdings) {
            holdings.on_ended(job, booking.grant);
        }
    }

    pub fn on_freed(&mut self, now: Instant, booking: &Booking) {
        let resources = booking.resources;
        if let Some(job) = self.queue.job_slot(booking.job) {
            self.queue.job_mut(job).bookings -= 1;
            self.pace.on_freed(now, &resources);
            if let Some(holdings) = &mut self.holdings {
                holdings.on_freed(job, booking.grant);
            }
            self.inter_job.on_change(&DemandChange::Freed { job, resources });
            self.forget_if_done(job);
        }
    }

    pub fn on_capacity(&mut self, capacity: &Totals) {
        self.pace.on_capacity(capacity);
        self.inter_job.on_change(&DemandChange::Capacity(*capacity));
    }

    /// Limits of queues have changed, or queues were added.
    pub fn on_queues(&mut self, tree: QueueTree) {
        self.inter_job.on_change(&DemandChange::Queues(Box::new(tree)));
    }

    pub fn on_room_opened(&mut self) {
        self.inter_job.on_change(&DemandChange::RoomOpened);
    }

    pub fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        self.inter_job.queue_usage(queue)
    }

    pub fn open_tasks(&self) -> u64 {
        self.open_tasks
    }

    // ---- decisions -------------------------------------------------------------------------------------------------

    /// Assigns the room of one node, with at most `most` grants.
    pub fn fill_node(
        &mut self,
        now: Instant,
        node: NodeId,
        most: Option<u32>,
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) {
        if let Some(kept) = self.reservation.as_ref().filter(|kept| kept.has(node)) {
            let ask = kept.ask;
            self.is_backfill_due = true;
            return if self.queue.ask(ask).is_gang {
                self.try_kept_gang(now, ask, ledger, confirm);
            } else {
                self.try_reservation(now, ask, node, most, ledger, confirm);
            };
        }
        if ledger.is_reserved(node) {
            return;
        }
        if ledger.is_slow(node) {
            return self.note_slow_room(ledger);
        }
        for _ in 0..most.unwrap_or(u32::MAX) {
            let room = ledger.offer(node);
            if room.is_zero() {
                return;
            }
            let capacity = ledger.node_capacity(node);
            let offer = Offer::Node { node: ledger.index(node), room, capacity, classes: ledger.classes() };
            let Some(choice) = self.inter_job.next(&offer) else { return };
            let rule = self.inter_job.rule();
            if self.grant(now, choice, node, rule, ledger, confirm).is_err() {
                self.inter_job.outcome(choice.ask, Outcome::Refused);
                return;
            }
        }
    }

    /// Tries every new ask on the whole cluster, or only gangs. Returns the asks that found no room.
    pub fn fill_cluster(
        &mut self,
        now: Instant,
        only_gangs: bool,
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) -> Vec<AskId> {
        let mut blocked = Vec::new();
        self.review_speeds(now, ledger, confirm);
        self.rouse_gangs(ledger);
        while let Some(choice) = self.inter_job.next(&Offer::Cluster { only_gangs }) {
            if self.queue.ask(choice.ask).is_gang {
                if self.place_gang(now, choice, ledger, confirm) {
                    self.rouse_gangs(ledger);
                } else {
                    self.gangs.parked.insert(choice.ask);
                    self.park(choice.ask, ledger);
                    blocked.push(self.queue.ask(choice.ask).id);
                }
                continue;
            }
            match self.room_since(choice.ask, ledger) {
                RoomSince::Unknown => {}
                RoomSince::None => {
                    // Blocked as before: nothing new to report.
                    self.queue.ask_mut(choice.ask).no_room_at = Some(ledger.growths());
                    self.inter_job.outcome(choice.ask, Outcome::NoRoom);
                    self.note_slow_room(ledger);
                    continue;
                }
                RoomSince::On(node) => {
                    let rule = self.inter_job.rule();
                    if self.grant(now, choice, node, rule, ledger, confirm).is_ok() {
                        continue;
                    }
                }
            }
            if !self.place_one(now, choice, self.inter_job.rule(), ledger, confirm) {
                self.park(choice.ask, ledger);
                self.note_blocked(choice.ask);
                blocked.push(self.queue.ask(choice.ask).id);
            }
        }
        // Asks that waited before were tried when room grew on reserved nodes; gangs may use it together with other room.
        let grown = self.settled != ledger.growths() && !self.gangs.parked.is_empty();
        self.is_backfill_due |= !blocked.is_empty() || grown;
        self.settled = ledger.growths();
        if !only_gangs && self.is_backfill_due {
            self.backfill(now, ledger, confirm);
        }
        if !only_gangs {
            if !blocked.is_empty() {
                self.note_slow_room(ledger);
            }
            self.offer_slow_room(now, ledger, confirm);
        }
        blocked
    }

    /// Jobs are reviewed soon if work is preempted for asks that found no room.
    fn note_blocked(&mut self, ask: AskSlot) {
        let is_owed = self.is_owed(ask);
        if let Some(holdings) = &mut self.holdings {
            holdings.on_blocked(is_owed);
        }
    }

    /// The same where an ask is known to find no room, and gets more tasks that its queue is guaranteed room for.
    fn note_grown(&mut self, ask: AskSlot) {
        let is_owed = self.is_owed(ask);
        if let Some(holdings) = self.holdings.as_mut().filter(|_| is_owed) {
            holdings.on_blocked(true);
        }
    }

    /// Whether the queue of the ask would be within its guarantee with a task of it; false where nothing is preempted.
    fn is_owed(&self, ask: AskSlot) -> bool {
        let request = self.queue.ask(ask);
        self.holdings.is_some()
            && self.inter_job.is_guaranteed(request.job, &request.shape, None)
            && self.inter_job.limit_on(ask).is_none()
    }

    /// Places one task of the ask with the placement policy. Returns whether it was granted.
    fn place_one(
        &mut self,
        now: Instant,
        choice: NextAsk,
        rule: Rule,
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) -> bool {
        let request = self.queue.ask(choice.ask);
        let (slot, shape, class, count) = (choice.ask, request.shape, request.class, request.open());
        let (execution, expected, is_gang) = (request.execution, None, request.is_gang);
        let ask = OpenAsk { slot, shape, class, count, probes: 0, execution, expected };
        let mut decisions = std::mem::take(&mut self.decisions);
        decisions.clear();
        ledger.tighten();
        if self.placement.compares_room() {
            ledger.order_by_room();
        }
        let others = WithoutSlow(ledger);
        // A gang would wait for many nodes.
        let view: &dyn NodeViews = if is_gang || !ledger.has_slow_nodes() { &*ledger } else { &others };
        self.placement.place(now, &[ask], Budget { starts: 1 }, view, &mut decisions);
        let mut started = false;
        for decision in &decisions {
            if let Decision::Start { node, .. } = *decision {
                started |= self.grant(now, choice, ledger.node(node), rule, ledger, confirm).is_ok();
            }
        }
        self.decisions = decisions;
        started
    }

    fn park(&mut self, ask: AskSlot, ledger: &Ledger) {
        self.queue.ask_mut(ask).no_room_at = Some(ledger.growths());
        self.inter_job.outcome(ask, Outcome::NoRoom);
    }

    /// Whether some ask of the queue found no room and no limit holds it back.
    pub fn has_blocked(&self, queue: QueueId) -> bool {
        let mut has_some = false;
        self.inter_job.blocked_in(queue, &mut |_| {
            has_some = true;
            true
        });
        has_some
    }

    /// Asks of a queue that found no room, that no limit holds back and that `is_wanted` selects by their shape and the
    /// number of tasks that have to get room at once. In the queue's order the first ask of each shape and class, at
    /// most `most`.
    pub fn blocked_in(&self, queue: QueueId, most: usize, is_wanted: impl Fn(&Resources, u64) -> bool) -> Vec<Blocked> {
        /// Maximum number of asks that are examined.
        const LOOKED_AT: usize = 4_096;
        let (mut blocked, mut seen): (Vec<Blocked>, usize) = (Vec::new(), 0);
        self.inter_job.blocked_in(queue, &mut |slot| {
            let request = self.queue.ask(slot);
            let OpenRequest { shape, class, is_gang, .. } = *request;
            let at_once = if is_gang { request.open() } else { 1 };
            let is_new = || blocked.iter().all(|other| (other.shape, other.class) != (shape, class));
            if is_wanted(&shape, at_once) && is_new() {
                blocked.push(Blocked { slot, shape, at_once, class });
            }
            seen += 1;
            blocked.len() == most || seen == LOOKED_AT
        });
        blocked
    }

    /// Places the ask on a node that its host chose. Returns whether that was confirmed.
    pub fn give(
        &mut self,
        now: Instant,
        ask: AskSlot,
        node: NodeId,
        rule: Rule,
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) -> bool {
        self.grant(now, NextAsk { ask, passed_over: 0, parked: true }, node, rule, ledger, confirm).is_ok()
    }

    /// The owner of a node refused a placement there.
    pub fn on_refused(&mut self, now: Instant, node: usize) {
        self.placement.on_refused(now, node);
    }

    /// Where an ask that found no room before can find room: only where room has grown since.
    fn room_since(&self, ask: AskSlot, ledger: &Ledger) -> RoomSince {
        let request = self.queue.ask(ask);
        let Some(mut grown) = request.no_room_at.and_then(|since| ledger.grown_since(since)) else {
            return RoomSince::Unknown;
        };
        let others = WithoutSlow(ledger);
        match grown.find(|&index| others.has_room(index, request.class, &request.shape)) {
            Some(index) => RoomSince::On(ledger.node(index)),
            None => RoomSince::None,
        }
    }

    fn grant(
        &mut self,
        now: Instant,
        choice: NextAsk,
        node: NodeId,
        rule: Rule,
        ledger: &mut Ledger,
        confirm: &mut Confirm<'_>,
    ) -> Result<GrantId, ClaimError> {
        let request = self.queue.ask_mut(choice.ask);
        let (ask, resources, passed_over) = (request.id, request.shape, choice.passed_over);
        let prediction = request.waiting.next(now);
        let proposal = Granting { ask, node, resources, rule, passed_over, prediction };
        let grant = confirm(ledger, &proposal)?;
        let open = request.open();
        if let Some(ends) = &mut self.ends {
            let (end, latest) = request.ends(now);
            ends.set(grant, end, latest);
        }
        if let Some(speeds) = &mut self.speeds {
            // What is granted in place of others waits for them.
            let expected = request.expected.filter(|_| rule != Rule::Reclaimed);
            speeds.on_granted(now, grant, ask, expected);
        }
        request.granted += 1;
        request.waiting.on_placed();
        let left = request.open();
        request.waiting_since = now;
        if choice.parked {
            request.no_room_at = Some(self.settled);
        }
        let job = request.job;
        self.queue.job_mut(job).bookings += 1;
        self.count_open(open, left);
        self.pace.on_held(&resources);
        if let Some(holdings) = &mut self.holdings {
            holdings.on_held(now, job, grant);
        }
        self.inter_job.outcome(choice.ask, Outcome::Started);
        if left == 0 {
            self.gangs.parked.remove(&choice.ask);
        }
        self.end_reservation_if_unwanted(choice.ask, ledger);
        // The tasks of a gang use any room, so that they start at the same time.
        let request = self.queue.ask(choice.ask);
        if !request.is_gang && local_nodes(&request.locality).contains(&node) {
            self.start_delays(now, choice.ask, ledger);
        }
        Ok(grant)
    }
}
