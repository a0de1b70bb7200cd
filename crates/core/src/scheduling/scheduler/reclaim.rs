//! Work of jobs beyond what they are entitled to is preempted for jobs that have less (Mercury, section 3: opportunistic
//! work uses idle room until guaranteed work needs it).
//!
//! What a job holds up to its entitlement is guaranteed; what it holds beyond that is opportunistic, whichever task it is:
//! a job's work is promoted when its entitlement grows. All of it is booked, so nothing has to be sent for that. The
//! attempts that have run for the shortest time are preempted first, since they lose least.
//!
//! A queue gets what it is guaranteed from other queues at once. Otherwise a preemption may lose as much as a stage has lost
//! since one of its tasks got room last: the next one has waited for as long as the attempts had run then (as with renting
//! skis: Karlin et al. 1988). Or it is paid out of a credit, a part of all work done so far. The credit is for attempts that
//! have hardly run, and for tasks that end before the attempt would have, of jobs that want no more than an equal part. It is
//! spent where little harm does much good: the shorter the task is compared with what the attempt has left, the more of
//! the credit it may cost.

use super::{Confirm, Scheduler};
use crate::policy::{AskSlot, JobSlot, NextAsk, Standing};
use crate::protocol::Rule;
use crate::scheduling::request_queue::OpenRequest;
use crate::scheduling::{Booking, ClaimError, Granting, Ledger};
use crate::vocabulary::{Duration, GrantId, Instant, JobId, NodeId, QueueId, Resources, Totals};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How much work of jobs beyond their entitlements is preempted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reclaim {
    /// The part of all work that may be lost by preemptions, in millionths.
    pub lost: u32,
}

impl Reclaim {
    /// The largest part that may be lost. Room that is being left counts twice in the work done, so with the whole all work could be lost.
    pub const MOST_LOST: f64 = 0.5;
}

/// Confirms a proposal in place of bookings that the function selects, and passes on the grant. Returns what is preempted.
pub type ConfirmInstead<'a> =
    dyn FnMut(&mut Ledger, &Granting, &dyn Fn(&Booking) -> bool) -> Result<(GrantId, Vec<Booking>), ClaimError> + 'a;

/// Since when jobs hold their bookings, and how much work may still be lost.
pub(super) struct Holdings {
    rules: Reclaim,
    /// By job slot: when each booking was made.
    since: Vec<BTreeMap<GrantId, Instant>>,
    /// By job slot: what it has lost by preemptions since one of its attempts ended by itself, in the unit of the credit.
    lost: Vec<u64>,
    /// Bookings that were preempted, as far as they may still be there.
    leaving: Vec<GrantId>,
    /// Work that may still be lost, in microseconds of a millionth of the cluster.
    credit: u64,
    /// The credit was counted up to this time; from then on this share of the cluster is in use, in millionths.
    counted_at: Option<Instant>,
    in_use: u64,
    next_review: Option<Instant>,
    reviewed_at: Option<Instant>,
    /// The number of jobs in the last review.
    jobs: u64,
    /// An ask found no room since the last review.
    is_stale: bool,
    /// The queue of such an ask would be within its guarantee with a task of it.
    is_owed: bool,
    are_partly_known: bool,
    /// Nodes that were tried for the tasks which got room in the last review, as an upper bound.
    tried: u64,
}

impl Holdings {
    /// The least time between reviews: shorter while a queue waits for what it is guaranteed, and longer after much work.
    fn after_change(&self) -> Duration {
        let of_all = Duration(Scheduler::REVIEWED_AFTER_FOR_EACH.0.saturating_mul(self.jobs));
        let of_tried = Duration(self.tried / Scheduler::TRIED_IN_A_MICROSECOND).min(Scheduler::REVIEWED_AFTER_CHANGE);
        let if_owed = Scheduler::REVIEWED_IF_OWED.max(of_tried);
        let least = if self.is_owed { if_owed } else { Scheduler::REVIEWED_AFTER_CHANGE };
        least.max(of_all)
    }

    pub(super) fn new(rules: Reclaim) -> Holdings {
        Holdings {
            rules,
            since: Vec::new(),
            lost: Vec::new(),
            leaving: Vec::new(),
            credit: 0,
            counted_at: None,
            in_use: 0,
            next_review: None,
            reviewed_at: None,
            jobs: 0,
            is_stale: false,
            is_owed: false,
            are_partly_known: false,
            tried: 0,
        }
    }

    /// An ask found no room. `is_owed`: its queue would be within its guarantee with a task of it.
    pub(super) fn on_blocked(&mut self, is_owed: bool) {
        self.is_stale = true;
        self.is_owed |= is_owed;
    }

    pub(super) fn on_held(&mut self, at: Instant, job: JobSlot, grant: GrantId) {
        let job = job as usize;
        if self.since.len() <= job {
            self.since.resize_with(job + 1, BTreeMap::new);
        }
        self.since[job].insert(grant, at);
    }

    pub(super) fn on_freed(&mut self, job: JobSlot, grant: GrantId) {
        if let Some(held) = self.since.get_mut(job as usize) {
            held.remove(&grant);
        }
    }

    pub(super) fn on_ended(&mut self, job: JobSlot, grant: GrantId) {
        if let Some(lost) = self.lost.get_mut(job as usize).filter(|lost| **lost > 0)
            && !self.leaving.contains(&grant)
        {
            *lost = 0;
        }
    }

    /// Another job may get the slot.
    pub(super) fn on_gone(&mut self, job: JobSlot) {
        if let Some(lost) = self.lost.get_mut(job as usize) {
            *lost = 0;
        }
    }

    /// What it costs of the credit if this much work is lost: work that is lost earns no credit.
    fn cost_of(&self, lost: u64) -> u64 {
        let earned = u128::from(lost) * u128::from(self.rules.lost) / 1_000_000;
        lost.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX))
    }

    fn on_lost(&mut self, job: JobSlot, lost: u64) {
        let job = job as usize;
        if self.lost.len() <= job {
            self.lost.resize(job + 1, 0);
        }
        self.lost[job] = self.lost[job].saturating_add(lost);
    }

    /// What the job has lost since one of its attempts ended by itself, for each one that it holds room for.
    fn lost_before(&self, job: JobSlot) -> u64 {
        let job = job as usize;
        let held = self.since.get(job).map_or(0, BTreeMap::len) as u64;
        self.lost.get(job).copied().unwrap_or(0) / held.max(1)
    }

    /// Adds the credit of the work that was done since the last call; from now on this share of the cluster is in use, in
    /// millionths.
    fn count(&mut self, now: Instant, in_use: u64) {
        let passed = self.counted_at.map_or(0, |before| u128::from(now.since(before).0));
        let earned = passed * u128::from(self.in_use) * u128::from(self.rules.lost) / 1_000_000;
        self.credit = self.credit.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX));
        (self.counted_at, self.in_use) = (Some(now), in_use.min(1_000_000));
    }
}

/// What a review of all jobs found.
struct Review {
    now: Instant,
    standings: BTreeMap<JobSlot, Standing>,
    /// What each job holds beyond its entitlement and would leave; of jobs without gangs.
    excess: BTreeMap<JobSlot, Totals>,
}

/// Bookings on a node that leave room for a task.
struct Place {
    node: NodeId,
    victims: Vec<Booking>,
    /// What they have done, in the unit of the credit.
    lost: u64,
    /// What their jobs have lost before, which counts for tasks that wait. So two jobs that are each before the other while that one runs
    /// do not take the room from each other for ever: an attempt runs for longer each time.
    lost_before: u64,
}

impl Scheduler {
    /// How often the jobs are reviewed while tasks wait.
    const REVIEWED_EVERY: Duration = Duration::from_secs(1);
    /// The least time between reviews, if a job is new; and for each job, so that the part of the time in which jobs are examined does
    /// not grow with their number.
    const REVIEWED_AFTER_CHANGE: Duration = Duration::from_millis(50);
    const REVIEWED_AFTER_FOR_EACH: Duration = Duration::from_micros(50);
    /// The least time between reviews if a queue waits for what it is guaranteed.
    const REVIEWED_IF_OWED: Duration = Duration::from_millis(5);
    /// After a review that gave room to tasks, the next one waits for a microsecond for this many nodes that were tried, but not longer
    /// than for [`Self::REVIEWED_AFTER_CHANGE`].
    const TRIED_IN_A_MICROSECOND: u64 = 1;
    /// Maximum number of waiting asks that are examined in one review, of those that get room by preemption, and of tasks.
    const EXAMINED_ASKS: usize = 4_096;
    const RECLAIMING_ASKS: usize = 64;
    const RECLAIMING_TASKS: usize = 256;
    /// Maximum number of a job's newest bookings that may be preempted in a review, and of all together, of which each job has
    /// [`Self::LEAST_OF_JOB`].
    const EXAMINED_OF_JOB: usize = 64;
    const EXAMINED_BOOKINGS: usize = 4_096;
    const LEAST_OF_JOB: usize = 4;
    /// Maximum number of nodes that are compared for tasks of an ask, and of those on which that is tried.
    const EXAMINED_NODES: usize = 32;
    const TRIED_NODES: usize = 256;
    /// An attempt that has run for at most one part in this number of its run time has hardly run.
    const HARDLY: u64 = 20;
    /// A task that takes as long as the attempt has left, or whose run time is not known, may cost one part in this number of the
    /// credit.
    const PART_FOR_AS_LONG: u64 = 64;

    /// What the job holds, and the part of it that it is entitled to even if all queues have work, which is not preempted for others.
    /// `None` of jobs with gangs and under presets that preempt nothing, and as for [`crate::policy::InterJobPolicy::standing_if_all_have_work`].
    pub fn held_within_share(&self, job: JobId) -> Option<(Totals, Totals)> {
        self.holdings.as_ref()?;
        let slot = self.queue.job_slot(job).filter(|slot| !self.has_gangs(*slot))?;
        let standing = self.inter_job.standing_if_all_have_work(slot)?;
        Some((standing.used, standing.used.smaller_of(&standing.due)))
    }

    /// When waiting tasks should be reviewed next.
    pub fn next_reclaim(&self) -> Option<Instant> {
        self.holdings.as_ref().filter(|holdings| !holdings.are_partly_known)?.next_review
    }

    /// Nothing is reviewed while it is not known what all jobs hold: a job that holds its share elsewhere would seem to lack it.
    pub fn review_only_if(&mut self, all_is_known: bool) {
        if let Some(holdings) = &mut self.holdings {
            holdings.are_partly_known = !all_is_known;
        }
    }

    /// Preempts work of jobs beyond their entitlements for asks that found no room, if it is time.
    pub fn reclaim(&mut self, now: Instant, ledger: &mut Ledger, confirm: &mut ConfirmInstead<'_>) {
        let Some(mut holdings) = self.holdings.take_if(|holdings| !holdings.are_partly_known) else { return };
        self.reclaim_with(now, &mut holdings, ledger, confirm);
        self.holdings = Some(holdings);
    }

    fn reclaim_with(
        &mut self,
        now: Instant,
        holdings: &mut Holdings,
        ledger: &mut Ledger,
        confirm: &mut ConfirmInstead<'_>,
    ) {
        let in_use = self.inter_job.queue_usage(QueueId(0)).dominant_share;
        if std::mem::take(&mut holdings.is_stale) || self.inter_job.has_new_jobs() {
            let soon = holdings.reviewed_at.map_or(now, |at| at + holdings.after_change());
            holdings.next_review = Some(holdings.next_review.map_or(soon, |at| at.min(soon)));
        }
        holdings.count(now, in_use);
        if holdings.next_review.is_none_or(|at| now < at) {
            return;
        }
        holdings.reviewed_at = Some(now);
        let was_owed = std::mem::take(&mut holdings.is_owed);
        holdings.leaving.retain(|grant| ledger.is_being_preempted(*grant));
        let mut review = self.review(now, holdings, ledger);
        holdings.jobs = review.standings.len() as u64;
        let later = now + Self::REVIEWED_EVERY.max(holdings.after_change());
        holdings.next_review = (self.open_tasks > 0).then_some(later);
        if review.excess.is_empty() && self.reservation.is_none() {
            return;
        }
        let (mut asks, mut seen): (Vec<AskSlot>, usize) = (Vec::new(), 0);
        self.inter_job.blocked(&mut |ask| {
            asks.extend(self.is_entitled(ask, &review).then_some(ask));
            seen += 1;
            asks.len() == Self::RECLAIMING_ASKS || seen == Self::EXAMINED_ASKS
        });
        let newest = self.newest(&review, holdings, ledger);
        let mut left = Self::RECLAIMING_TASKS;
        for ask in asks {
            let mut nodes = self.nodes_instead(ask, &review, &newest, holdings, ledger);
            while left > 0 && !nodes.is_empty() {
                let before = left;
                for node in nodes {
                    if left == 0 || !self.is_entitled(ask, &review) {
                        break;
                    }
                    // What has been preempted since may have changed what may be.
                    let place = self.place_on(node, ask, &review, holdings, ledger);
                    let Some(place) = place.filter(|place| self.may_be_lost(ask, place, &review, holdings, ledger))
                    else {
                        continue;
                    };
                    left -= usize::from(self.take(ask, &place, &mut review, holdings, ledger, confirm));
                }
                let is_next = left < before && self.is_entitled(ask, &review);
                nodes = if is_next { self.nodes_instead(ask, &review, &newest, holdings, ledger) } else { Vec::new() };
            }
        }
        let given = (Self::RECLAIMING_TASKS - left) as u64;
        let tried = [newest.len(), self.reserved_nodes().len()].map(|nodes| nodes.min(Self::TRIED_NODES) as u64);
        holdings.tried = given * tried.iter().sum::<u64>();
        // The limits of a review may have left more to do.
        if was_owed && given > 0 {
            holdings.is_owed = true;
            holdings.next_review = Some(now + holdings.after_change());
        }
    }

    fn review(&mut self, now: Instant, holdings: &Holdings, ledger: &Ledger) -> Review {
        let standings: BTreeMap<JobSlot, Standing> =
            self.inter_job.standings().into_iter().map(|standing| (standing.job, standing)).collect();
        let mut used: BTreeMap<JobSlot, Totals> = standings.values().map(|one| (one.job, one.used)).collect();
        for booking in holdings.leaving.iter().filter_map(|grant| ledger.booking(*grant)) {
            if let Some(used) = self.queue.job_slot(booking.job).and_then(|job| used.get_mut(&job)) {
                used.sub(&booking.resources);
            }
        }
        let beyond = |one: &Standing| used[&one.job].saturating_sub(&one.due);
        let excess = standings.values().map(|one| (one.job, beyond(one)));
        let excess = excess.filter(|(job, excess)| *excess != Totals::ZERO && !self.has_gangs(*job)).collect();
        Review { now, standings, excess }
    }

    /// All tasks of a gang would end with one of them.
    fn has_gangs(&self, job: JobSlot) -> bool {
        self.queue.job(job).has_gangs
    }

    /// The nodes of the newest bookings of jobs beyond their entitlements, the newest first.
    fn newest(&self, review: &Review, holdings: &Holdings, ledger: &Ledger) -> Vec<NodeId> {
        let most = Self::EXAMINED_BOOKINGS / review.excess.len().max(1);
        let most = most.clamp(Self::LEAST_OF_JOB, Self::EXAMINED_OF_JOB);
        let of_job = |job: &JobSlot| {
            let held = holdings.since.get(*job as usize).into_iter().flatten().rev();
            held.filter(|(grant, _)| !ledger.is_being_preempted(**grant)).take(most)
        };
        let of_all = review.excess.keys().flat_map(of_job);
        let mut newest: Vec<(Instant, GrantId, NodeId)> =
            of_all.filter_map(|(grant, since)| Some((*since, *grant, ledger.booking(*grant)?.node))).collect();
        newest.sort_unstable_by(|one, other| other.cmp(one));
        let mut seen = BTreeSet::new();
        newest.into_iter().map(|(_, _, node)| node).filter(|node| seen.insert(*node)).collect()
    }

    /// Whether the job would be within its entitlement with one more task of the ask.
    fn is_entitled(&self, ask: AskSlot, review: &Review) -> bool {
        let request = self.queue.ask(ask);
        let Some(standing) = review.standings.get(&request.job) else { return false };
        let mut with = standing.used;
        with.add(&request.shape);
        !request.is_gang && request.has_tasks() && with.fits_in(&standing.due) && self.inter_job.limit_on(ask).is_none()
    }

    /// The nodes on which bookings may be preempted for a task of the ask, the one with the least loss first.
    fn nodes_instead(
        &self,
        ask: AskSlot,
        review: &Review,
        newest: &[NodeId],
        holdings: &Holdings,
        ledger: &Ledger,
    ) -> Vec<NodeId> {
        if !self.is_entitled(ask, review) {
            return Vec::new();
        }
        // Its work is worth more than the room on a slow node.
        let request = self.queue.ask(ask);
        let is_owed = self.inter_job.is_guaranteed(request.job, &request.shape, None);
        let is_fast = |node: NodeId| is_owed || !ledger.is_slow(node);
        let is_of_use = |node: &NodeId| {
            is_fast(*node)
                && self.reaches(ask, *node, ledger)
                && !ledger.offer_is_closed(*node)
                && !self.is_kept_by_another(*node)
        };
        let those_of = |nodes: &mut dyn Iterator<Item = NodeId>| -> Vec<(u64, NodeId)> {
            let tried = nodes.filter(is_of_use).take(Self::TRIED_NODES);
            let places = tried.filter_map(|node| self.place_on(node, ask, review, holdings, ledger));
            let examined = places.take(Self::EXAMINED_NODES);
            let may_be = examined.filter(|place| self.may_be_lost(ask, place, review, holdings, ledger));
            may_be.map(|place| (place.lost, place.node)).collect()
        };
        let others = newest.iter().copied().filter(|node| !self.is_reserved_for_another(ask, *node));
        let mut nodes = those_of(&mut others.into_iter());
        if nodes.is_empty() && is_owed {
            // Another ask waits for all of these nodes: the queue takes its room there only if there is none elsewhere.
            nodes = those_of(&mut self.reserved_nodes().iter().copied());
        }
        nodes.sort_unstable();
        nodes.into_iter().map(|(_, node)| node).collect()
    }

    fn is_reserved_for_another(&self, ask: AskSlot, node: NodeId) -> bool {
        self.reservation.as_ref().is_some_and(|kept| kept.ask != ask && kept.has(node))
    }

    fn may_be_lost(&self, ask: AskSlot, place: &Place, review: &Review, holdings: &Holdings, ledger: &Ledger) -> bool {
        let request = self.queue.ask(ask);
        let is_kept = self.is_reserved_for_another(ask, place.node);
        let has_waited =
            || place.lost.saturating_add(place.lost_before) <= self.most_by_waiting(request, review.now, ledger);
        let has_credit =
            || holdings.cost_of(place.lost) <= self.most_of_credit(request, &place.victims, review, holdings);
        let is_little = !is_kept && place.lost < u64::MAX && (has_waited() || has_credit());
        is_little || self.is_owner(ask, place)
    }

    /// Whether a queue has the job and none of the victims', and is guaranteed what it would hold with the task. What is free on a
    /// reserved node belongs to the job that it is reserved for, as if this one was running.
    fn is_owner(&self, ask: AskSlot, place: &Place) -> bool {
        let request = self.queue.ask(ask);
        let leave = place.victims.iter().map(|victim| victim.resources);
        let is_enough = request.shape.fits_in(&leave.fold(Resources::ZERO, |sum, more| sum.saturating_add(&more)));
        let uses_kept = !is_enough && self.is_reserved_for_another(ask, place.node);
        let others = place.victims.iter().map(|victim| self.queue.job_slot(victim.job));
        others.chain(uses_kept.then(|| self.kept_for_guest())).all(|other| {
            other.is_some_and(|other| self.inter_job.is_guaranteed(request.job, &request.shape, Some(other)))
        })
    }

    /// The job for which nodes are reserved, unless its queue is guaranteed what it would hold then.
    fn kept_for_guest(&self) -> Option<JobSlot> {
        let request = self.queue.ask(self.reservation.as_ref()?.ask);
        let tasks = if request.is_gang { request.open() } else { 1 };
        let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
        let whole = Resources(request.shape.0.map(|amount| amount.saturating_mul(tasks)));
        (!self.inter_job.is_guaranteed(request.job, &whole, None)).then_some(request.job)
    }

    /// How much work may be lost for a task of the ask because the stage has lost as much, in the unit of the credit.
    fn most_by_waiting(&self, request: &OpenRequest, now: Instant, ledger: &Ledger) -> u64 {
        let waited = now.since(request.waiting_since);
        // Where tasks are short, there is room soon in any case.
        let waited = if waited < Self::REVIEWED_EVERY { 0 } else { waited.0.saturating_mul(2) };
        waited.saturating_mul(share_of(&request.shape, ledger))
    }

    /// How much of the credit a task of the ask may cost.
    fn most_of_credit(&self, request: &OpenRequest, victims: &[Booking], review: &Review, holdings: &Holdings) -> u64 {
        let is_small = review.standings.get(&request.job).is_some_and(|standing| !standing.is_wide);
        let most = |victim: &Booking| {
            let Some(end) = self.ends.as_ref().and_then(|ends| ends.expected(victim.grant, review.now)) else {
                return holdings.credit;
            };
            let (ran, left) = (self.ran(victim, review.now, holdings), end.since(review.now));
            let takes = request.expected.unwrap_or(left);
            let has_hardly_run = ran.0.saturating_mul(Self::HARDLY - 1) <= left.0;
            if has_hardly_run || is_small && takes <= left {
                part_of(holdings.credit, left.0, takes.0.saturating_mul(Self::PART_FOR_AS_LONG))
            } else {
                0
            }
        };
        victims.iter().map(most).min().unwrap_or_default()
    }

    /// The bookings on the node that would be preempted for a task of the ask; no job is left with less than it is entitled to. A queue
    /// takes what it is guaranteed from others before it takes from its own jobs, whose bookings may be newer.
    fn place_on(
        &self,
        node: NodeId,
        ask: AskSlot,
        review: &Review,
        holdings: &Holdings,
        ledger: &Ledger,
    ) -> Option<Place> {
        let request = self.queue.ask(ask);
        let owes = |job: JobSlot| self.inter_job.is_guaranteed(request.job, &request.shape, Some(job));
        let is_owed = self.inter_job.is_guaranteed(request.job, &request.shape, None);
        let of_others = is_owed.then(|| self.place_among(node, ask, &owes, review, holdings, ledger)).flatten();
        of_others.or_else(|| self.place_among(node, ask, &|_| true, review, holdings, ledger))
    }

    /// The same among the bookings of some jobs.
    fn place_among(
        &self,
        node: NodeId,
        ask: AskSlot,
        is_considered: &dyn Fn(JobSlot) -> bool,
        review: &Review,
        holdings: &Holdings,
        ledger: &Ledger,
    ) -> Option<Place> {
        let request = self.queue.ask(ask);
        let mut excess: BTreeMap<JobSlot, Totals> = BTreeMap::new();
        let mut allowed = BTreeSet::new();
        for booking in ledger.staying_on(node) {
            let Some(job) = self.queue.job_slot(booking.job).filter(|job| *job != request.job) else { continue };
            if !is_considered(job) {
                continue;
            }
            let Some(whole) = review.excess.get(&job) else { continue };
            let left = excess.entry(job).or_insert(*whole);
            if left.holds(&booking.resources) > 0 {
                left.sub(&booking.resources);
                allowed.insert(booking.grant);
            }
        }
        let grant = GrantId { slot: u32::MAX, ..GrantId::default() };
        let wanted = Booking { grant, job: request.id.job, node, resources: request.shape };
        let victims = ledger.preempted_for(&wanted, |booking| allowed.contains(&booking.grant))?;
        let lost = victims.iter().map(|victim| self.lost_by(victim, review.now, holdings, ledger));
        let lost = lost.fold(0, u64::saturating_add);
        let jobs = victims.iter().filter_map(|victim| self.queue.job_slot(victim.job));
        let lost_before = jobs.map(|job| holdings.lost_before(job)).fold(0, u64::saturating_add);
        Some(Place { node, victims, lost, lost_before })
    }

    /// How long the attempt of the booking has run, as far as this incarnation of the master knows.
    fn ran(&self, booking: &Booking, now: Instant, holdings: &Holdings) -> Duration {
        let job = self.queue.job_slot(booking.job);
        let since = job.and_then(|job| holdings.since.get(job as usize)?.get(&booking.grant));
        now.since(since.copied().unwrap_or(Instant::ZERO))
    }

    /// What it has done so far, in the unit of the credit.
    fn lost_by(&self, victim: &Booking, now: Instant, holdings: &Holdings, ledger: &Ledger) -> u64 {
        self.ran(victim, now, holdings).0.saturating_mul(share_of(&victim.resources, ledger))
    }

    fn take(
        &mut self,
        ask: AskSlot,
        place: &Place,
        review: &mut Review,
        holdings: &mut Holdings,
        ledger: &mut Ledger,
        confirm: &mut ConfirmInstead<'_>,
    ) -> bool {
        let Place { node, ref victims, lost, .. } = *place;
        let job = self.queue.ask(ask).job;
        let shape = self.queue.ask(ask).shape;
        let mut preempted = Vec::new();
        let may_be_preempted = |booking: &Booking| victims.iter().any(|victim| victim.grant == booking.grant);
        let confirm: &mut Confirm<'_> = &mut |ledger, proposal| {
            let (grant, victims) = confirm(ledger, proposal, &may_be_preempted)?;
            preempted = victims;
            Ok(grant)
        };
        let choice = NextAsk { ask, passed_over: 0, parked: true };
        let Ok(grant) = self.grant(review.now, choice, node, Rule::Reclaimed, ledger, confirm) else { return false };
        holdings.on_held(review.now, job, grant);
        holdings.credit = holdings.credit.saturating_sub(holdings.cost_of(lost));
        review.standings.entry(job).and_modify(|standing| standing.used.add(&shape));
        holdings.leaving.extend(preempted.iter().map(|victim| victim.grant));
        for victim in &preempted {
            if let Some(job) = self.queue.job_slot(victim.job) {
                holdings.on_lost(job, self.lost_by(victim, review.now, holdings, ledger));
            }
            if let Some(left) = self.queue.job_slot(victim.job).and_then(|job| review.excess.get_mut(&job)) {
                debug_assert!(
                    left.holds(&victim.resources) > 0,
                    "the job of {victim:?} has less than it is entitled to"
                );
                *left = less(left, &victim.resources);
            }
        }
        true
    }
}

/// In millionths of the cluster.
fn share_of(amount: &Resources, ledger: &Ledger) -> u64 {
    let mut held = Totals::ZERO;
    held.add(amount);
    held.dominant_share(ledger.capacity())
}

/// The whole amount, or this fraction of it if that is less.
fn part_of(amount: u64, part: u64, of: u64) -> u64 {
    if part >= of { amount } else { (u128::from(amount) * u128::from(part) / u128::from(of)) as u64 }
}

fn less(from: &Totals, amount: &Resources) -> Totals {
    let mut held = Totals::ZERO;
    held.add(amount);
    from.saturating_sub(&held)
}
