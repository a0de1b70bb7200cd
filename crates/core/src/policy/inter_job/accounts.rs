//! What queues, users and jobs use, and the most that they may use: the accounts behind every order of jobs.

use super::fair_clock::{FairClock, InFairShares};
use super::queue_tree::WHOLE;
use super::{Demand, FitIndex, QueueTree, fair_shares};
use crate::policy::{Alignment, AskSlot, DemandChange, JobSlot, Offer, Outcome, QueueUsage};
use crate::vocabulary::resources::WIDTH;
use crate::vocabulary::{JobId, JobWork, QueueId, Resources, Totals, UserId};
use crate::why::Why;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Usage of queues, users and jobs, and the open asks. Slots are positions in the scheduler's request queue.
pub struct Accounts {
    pub tree: QueueTree,
    pub capacity: Totals,
    pub queues: Vec<QueueAccount>,
    pub jobs: Vec<Option<JobAccount>>,
    pub asks: Vec<Option<AskAccount>>,
    /// The asks that fit the current offer.
    index: FitIndex,
    /// Room and capacity of the offered node; `None` for other offers.
    on_offer: Option<(Resources, Resources)>,
    /// Whether some of them were excluded again because of one queue's limits.
    narrowed: bool,
    /// The only ask of a job, or [`SEVERAL`] if it has several or none.
    only_ask: Vec<AskSlot>,
    /// Parked asks that only a limit kept from the current offer: there may be room for them now.
    limited: Vec<AskSlot>,
    starts: u64,
    /// A job has reported its work for the first time since the jobs were placed in the order of their queues.
    pub(super) has_new: bool,
}

/// Value for jobs that do not have exactly one ask.
const SEVERAL: AskSlot = AskSlot::MAX;

#[derive(Clone, Default)]
pub struct QueueAccount {
    pub used: Totals,
    /// In millionths of the cluster.
    pub share: u64,
    /// When it was last served: the number of starts in the cluster until then.
    pub served_at: u64,
    pub(super) clock: FairClock,
    maximum: Totals,
    user_maximum: Totals,
    users: BTreeMap<UserId, Totals>,
    /// Whether this queue or one above it has a maximum below the whole cluster.
    is_limited: bool,
    limits_users: bool,
}

#[derive(Clone)]
pub struct JobAccount {
    pub id: JobId,
    pub queue: QueueId,
    pub user: UserId,
    pub used: Totals,
    /// In millionths of the cluster.
    pub share: u64,
    /// Ordered by priority, then rank, then age.
    pub asks: Vec<AskSlot>,
    /// One for each priority of its asks, the highest first; at least one.
    pub levels: Vec<Level>,
    /// What it holds and what its open tasks request.
    pub wanted: Totals,
    work: JobWork,
    /// The time for which all of its work, and its remaining work, would occupy the whole cluster; in nanoseconds.
    pub total_time: u64,
    pub remaining_time: u64,
    pub(super) fair: InFairShares,
    /// The maximum of its dominant share, in millionths; not applied while it holds nothing.
    pub most: Option<u64>,
}

/// The asks of a job that have the same priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    pub priority: i32,
    /// Asks with open tasks.
    pub open_asks: u32,
    /// Asks with open tasks that are not known to lack room.
    pub fresh_asks: u32,
}

impl Level {
    fn new(priority: i32) -> Level {
        Level { priority, open_asks: 0, fresh_asks: 0 }
    }
}

pub struct AskAccount {
    pub job: JobSlot,
    pub shape: Resources,
    pub priority: i32,
    pub is_gang: bool,
    rank: u32,
    pub open: u64,
    /// No open node had room for it when all nodes were tried last.
    pub parked: bool,
}

impl AskAccount {
    /// Number of its tasks that get resources at once.
    fn at_once(&self) -> u64 {
        if self.is_gang { self.open.max(1) } else { 1 }
    }

    /// The job's ask with the smallest value is served first.
    fn place(&self) -> (Reverse<i32>, u32) {
        (Reverse(self.priority), self.rank)
    }
}

impl JobAccount {
    fn new(id: JobId, queue: QueueId, user: UserId, priority: i32, fair: InFairShares) -> JobAccount {
        JobAccount {
            id,
            queue,
            user,
            used: Totals::ZERO,
            share: 0,
            asks: Vec::new(),
            levels: vec![Level::new(priority)],
            wanted: Totals::ZERO,
            work: JobWork::default(),
            total_time: 0,
            remaining_time: 0,
            fair,
            most: None,
        }
    }

    pub fn has_open(&self) -> bool {
        self.levels.iter().any(|level| level.open_asks > 0)
    }

    pub fn has_fresh(&self) -> bool {
        self.levels.iter().any(|level| level.fresh_asks > 0)
    }

    /// The highest priority among its open asks, or among all asks if none is open.
    pub fn priority(&self) -> i32 {
        let open = self.levels.iter().find(|level| level.open_asks > 0);
        open.or(self.levels.first()).map_or(0, |level| level.priority)
    }

    fn level_mut(&mut self, priority: i32) -> &mut Level {
        let at = match self.levels.binary_search_by_key(&Reverse(priority), |level| Reverse(level.priority)) {
            Ok(at) => at,
            Err(at) => {
                self.levels.insert(at, Level::new(priority));
                at
            }
        };
        &mut self.levels[at]
    }

    pub(super) fn set_work(&mut self, work: JobWork, capacity: &Totals) {
        self.work = work;
        self.weigh(capacity);
    }

    /// Measures what it holds and its work against the cluster's capacity.
    fn weigh(&mut self, capacity: &Totals) {
        self.share = self.used.dominant_share(capacity);
        self.total_time = self.work.total.on_whole(capacity);
        self.remaining_time = self.work.remaining.on_whole(capacity);
    }
}

impl Accounts {
    pub fn new(tree: QueueTree) -> Accounts {
        let queues = (0..tree.len()).map(|_| QueueAccount::default()).collect();
        let mut accounts = Accounts {
            tree,
            capacity: Totals::ZERO,
            queues,
            jobs: Vec::new(),
            asks: Vec::new(),
            index: FitIndex::default(),
            on_offer: None,
            narrowed: false,
            only_ask: Vec::new(),
            limited: Vec::new(),
            starts: 0,
            has_new: false,
        };
        accounts.on_capacity(Totals::ZERO);
        accounts
    }

    pub fn job(&self, job: JobSlot) -> &JobAccount {
        self.jobs[job as usize].as_ref().expect("a job slot in use")
    }

    pub fn ask(&self, ask: AskSlot) -> &AskAccount {
        self.asks[ask as usize].as_ref().expect("an ask slot in use")
    }

    /// Applies a change. Returns the job whose position in an order may have changed.
    pub fn on_change(&mut self, change: &DemandChange) -> Option<JobSlot> {
        match *change {
            DemandChange::Capacity(total) => self.on_capacity(total),
            DemandChange::JobAdded { job, id, queue, user, priority } => {
                let fair = self.clock(queue).enter();
                put(&mut self.jobs, job, JobAccount::new(id, queue, user, priority, fair));
            }
            DemandChange::JobRemoved { job } => {
                assert!(
                    self.job(job).asks.is_empty() && self.job(job).used == Totals::ZERO,
                    "a job left asks or resources"
                );
                self.leave_fair_shares(job);
                self.jobs[job as usize] = None;
            }
            DemandChange::Work { job, work } => {
                self.on_work(job, work);
                return Some(job);
            }
            DemandChange::AllowanceRequest { .. } => {}
            DemandChange::AskAdded { ask, job, shape, class, priority, is_gang } => {
                let account = AskAccount { job, shape, priority, is_gang, rank: 0, open: 0, parked: false };
                put(&mut self.asks, ask, account);
                self.job_mut(job).asks.push(ask);
                self.sort_asks(job);
                self.job_mut(job).level_mut(priority);
                self.index.add(ask, shape, class);
                self.index.set_gang(ask, is_gang);
                self.note_only_ask(job);
            }
            DemandChange::AskRemoved { ask } => {
                self.set_open(ask, 0);
                let job = self.ask(ask).job;
                self.asks[ask as usize] = None;
                self.job_mut(job).asks.retain(|&other| other != ask);
                self.index.remove(ask);
                self.note_only_ask(job);
                return Some(job);
            }
            DemandChange::Class { ask, class } => {
                self.index.set_class(ask, class);
                self.unpark(ask);
                return Some(self.ask(ask).job);
            }
            DemandChange::RoomFor { ask } => {
                self.unpark(ask);
                return Some(self.ask(ask).job);
            }
            DemandChange::Open { ask, count, rank, .. } => {
                self.set_rank(ask, rank);
                self.set_open(ask, count);
                return Some(self.ask(ask).job);
            }
            DemandChange::Taken { job, resources } => {
                self.add_used(job, &resources);
                return Some(job);
            }
            DemandChange::Freed { job, resources } => {
                self.free(job, &resources);
                return Some(job);
            }
            DemandChange::RoomOpened => self.unpark_all(),
            DemandChange::Queues(ref tree) => self.on_queues(tree),
        }
        None
    }

    fn on_queues(&mut self, tree: &QueueTree) {
        self.tree = tree.clone();
        self.queues.resize_with(self.tree.len(), QueueAccount::default);
        self.on_capacity(self.capacity);
        self.unpark_all();
    }

    pub(super) fn job_mut(&mut self, job: JobSlot) -> &mut JobAccount {
        self.jobs[job as usize].as_mut().expect("a job slot in use")
    }

    fn on_capacity(&mut self, total: Totals) {
        self.capacity = total;
        for index in 0..self.queues.len() {
            let id = QueueId(index as u32);
            let spec = self.tree.spec(id);
            let parent_limited = self.tree.parent(id).is_some_and(|parent| self.queues[parent.0 as usize].is_limited);
            let queue = &mut self.queues[index];
            queue.is_limited = parent_limited || spec.maximum < WHOLE;
            queue.limits_users = spec.user_limit < WHOLE;
            queue.maximum = fraction(&total, spec.maximum);
            queue.user_maximum = fraction(&total, spec.user_limit);
            queue.share = queue.used.dominant_share(&total);
        }
        for job in self.jobs.iter_mut().flatten() {
            job.weigh(&total);
        }
    }

    /// Limits jobs to their fair shares with these weights.
    pub fn limit_to_fair_shares(&mut self, weights: &[(JobSlot, u64)]) {
        let demands = weights.iter().map(|&(job, weight)| Demand {
            weight,
            wanted: self.job(job).wanted,
            most: u64::from(WHOLE),
        });
        let shares = fair_shares(&demands.collect::<Vec<_>>(), &self.capacity);
        for (&(job, _), fair) in weights.iter().zip(shares) {
            self.job_mut(job).most = Some(fair.share);
        }
    }

    /// A copy of what the order of one queue's jobs follows from, without asks.
    pub(super) fn without_asks(&self, queue: QueueId) -> Accounts {
        let is_of_queue = |job: &&JobAccount| job.queue == queue;
        let jobs = self.jobs.iter().map(|job| job.as_ref().filter(is_of_queue).cloned());
        Accounts {
            capacity: self.capacity,
            queues: self.queues.clone(),
            jobs: jobs.collect(),
            ..Accounts::new(self.tree.clone())
        }
    }

    /// Jobs that hold resources or have open asks.
    pub fn active_jobs(&self) -> impl Iterator<Item = JobSlot> {
        let is_active = |job: &JobAccount| job.has_open() || job.used != Totals::ZERO;
        let slots = self.jobs.iter().enumerate();
        slots.filter(move |(_, job)| job.as_ref().is_some_and(is_active)).map(|(slot, _)| slot as JobSlot)
    }

    fn set_rank(&mut self, ask: AskSlot, rank: u32) {
        let account = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        if std::mem::replace(&mut account.rank, rank) != rank {
            let job = account.job;
            self.sort_asks(job);
        }
    }

    fn sort_asks(&mut self, job: JobSlot) {
        let Accounts { jobs, asks, .. } = self;
        let place_of = |ask: &AskSlot| asks[*ask as usize].as_ref().expect("an ask slot in use").place();
        jobs[job as usize].as_mut().expect("a job slot in use").asks.sort_by_key(place_of);
    }

    fn set_open(&mut self, ask: AskSlot, count: u64) {
        let account = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        let (was_open, was_fresh) = (account.open > 0, account.open > 0 && !account.parked);
        let (shape, before) = (account.shape, std::mem::replace(&mut account.open, count));
        if count == 0 {
            account.parked = false;
            self.index.set_parked(ask, false);
        }
        if was_open != (count > 0) {
            self.index.set_open(ask, count > 0);
        }
        let (is_open, is_fresh) = (count > 0, count > 0 && !account.parked);
        let (job, priority) = (account.job, account.priority);
        let entry = self.job_mut(job);
        entry.wanted.sub_times(&shape, before);
        entry.wanted.add_times(&shape, count);
        let level = entry.level_mut(priority);
        level.open_asks = level.open_asks + u32::from(is_open) - u32::from(was_open);
        level.fresh_asks = level.fresh_asks + u32::from(is_fresh) - u32::from(was_fresh);
    }

    /// Applies the outcome for an ask. Returns the job whose position in an order may have changed.
    pub fn on_outcome(&mut self, ask: AskSlot, outcome: Outcome) -> Option<JobSlot> {
        match outcome {
            Outcome::Started => self.start(ask),
            Outcome::NoRoom => self.park(ask),
            Outcome::Refused => return None,
        }
        Some(self.ask(ask).job)
    }

    fn park(&mut self, ask: AskSlot) {
        let account = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        if account.open > 0 && !account.parked {
            account.parked = true;
            self.index.set_parked(ask, true);
            let (job, priority) = (account.job, account.priority);
            self.job_mut(job).level_mut(priority).fresh_asks -= 1;
        }
    }

    fn unpark(&mut self, ask: AskSlot) {
        let account = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        if std::mem::take(&mut account.parked) {
            self.index.set_parked(ask, false);
            let (job, priority) = (account.job, account.priority);
            self.job_mut(job).level_mut(priority).fresh_asks += 1;
        }
    }

    fn note_only_ask(&mut self, job: JobSlot) {
        let only = match self.job(job).asks[..] {
            [only] => only,
            _ => SEVERAL,
        };
        if self.only_ask.len() <= job as usize {
            self.only_ask.resize(job as usize + 1, SEVERAL);
        }
        self.only_ask[job as usize] = only;
    }

    fn unpark_all(&mut self) {
        for ask in 0..self.asks.len() {
            if self.asks[ask].is_some() {
                self.unpark(ask as AskSlot);
            }
        }
    }

    fn start(&mut self, ask: AskSlot) {
        let account = self.ask(ask);
        let (job, shape, open) = (account.job, account.shape, account.open);
        self.set_open(ask, open.saturating_sub(1));
        self.add_used(job, &shape);
        self.starts += 1;
        let (starts, leaf) = (self.starts, self.job(job).queue);
        self.up_from(leaf, |queue, _| queue.served_at = starts);
    }

    fn add_used(&mut self, job: JobSlot, resources: &Resources) {
        let capacity = self.capacity;
        let account = self.job_mut(job);
        account.used.add(resources);
        account.wanted.add(resources);
        account.share = account.used.dominant_share(&capacity);
        let (queue, user) = (account.queue, account.user);
        self.queues[queue.0 as usize].users.entry(user).or_default().add(resources);
        self.up_from(queue, |queue, capacity| {
            queue.used.add(resources);
            queue.share = queue.used.dominant_share(capacity);
        });
    }

    fn free(&mut self, job: JobSlot, resources: &Resources) {
        let capacity = self.capacity;
        let account = self.job_mut(job);
        account.used.sub(resources);
        account.wanted.sub(resources);
        account.share = account.used.dominant_share(&capacity);
        let (queue, user) = (account.queue, account.user);
        let users = &mut self.queues[queue.0 as usize].users;
        let used = users.get_mut(&user).expect("a user that frees had taken");
        used.sub(resources);
        if *used == Totals::ZERO {
            users.remove(&user);
        }
        self.up_from(queue, |queue, capacity| {
            queue.used.sub(resources);
            queue.share = queue.used.dominant_share(capacity);
        });
    }

    fn up_from(&mut self, leaf: QueueId, mut change: impl FnMut(&mut QueueAccount, &Totals)) {
        let mut next = Some(leaf);
        while let Some(queue) = next {
            change(&mut self.queues[queue.0 as usize], &self.capacity);
            next = self.tree.parent(queue);
        }
    }

    /// Finds the asks of all queues that fit the offer. Returns whether there are any.
    pub fn find(&mut self, offer: &Offer<'_>) -> bool {
        self.narrowed = false;
        self.on_offer = match offer {
            Offer::Node { room, capacity, .. } => Some((*room, *capacity)),
            Offer::Cluster { .. } => None,
        };
        match offer {
            Offer::Node { node, room, classes, .. } => self.index.find_on(room, *node, classes),
            Offer::Cluster { only_gangs } => self.index.find_fresh(*only_gangs),
        }
    }

    /// To be called after [`Accounts::find`] found asks: keeps those that the limits of this queue allow.
    pub fn find_within(&mut self, leaf: QueueId, offer: &Offer<'_>) -> bool {
        if self.narrowed {
            self.find(offer);
        }
        if !self.queues[leaf.0 as usize].is_limited {
            return true;
        }
        self.narrowed = true;
        let headroom = self.headroom(leaf);
        let parked: Vec<AskSlot> = self.index.found_and_parked().collect();
        let found = self.index.keep_fitting(&headroom);
        let Accounts { asks, jobs, index, limited, .. } = self;
        limited.extend(parked.into_iter().filter(|&ask| {
            let job = asks[ask as usize].as_ref().expect("a found ask has an account").job;
            jobs[job as usize].as_ref().is_some_and(|job| job.queue == leaf) && !index.is_found(ask)
        }));
        found
    }

    /// The resources that a queue may still take, by its maximum and those of the queues above it.
    fn headroom(&self, leaf: QueueId) -> Resources {
        let mut left = Resources([u32::MAX; WIDTH]);
        let mut next = Some(leaf);
        while let Some(id) = next {
            let queue = &self.queues[id.0 as usize];
            for kind in 0..WIDTH {
                let here = queue.maximum.0[kind].saturating_sub(queue.used.0[kind]);
                left.0[kind] = left.0[kind].min(u32::try_from(here).unwrap_or(u32::MAX));
            }
            next = self.tree.parent(id);
        }
        left
    }

    /// The job's first found ask that no limit keeps from starting.
    #[inline]
    pub fn first_found(&mut self, job: JobSlot) -> Option<AskSlot> {
        self.first_found_of(job, None)
    }

    /// The same, among asks of `priority` only if it is given.
    #[inline]
    pub fn first_found_of(&mut self, job: JobSlot, priority: Option<i32>) -> Option<AskSlot> {
        let only = self.only_ask[job as usize];
        if only != SEVERAL && !self.index.is_found(only) {
            return None;
        }
        let account = self.jobs[job as usize].as_ref().expect("a job slot in use");
        let mut best: Option<(AskSlot, (Reverse<i32>, u32))> = None;
        for &slot in &account.asks {
            let ask = self.asks[slot as usize].as_ref().expect("an ask slot in use");
            if !self.index.is_found(slot) || priority.is_some_and(|priority| ask.priority != priority) {
                continue;
            }
            if best.is_some_and(|(_, place)| place < ask.place()) {
                break;
            }
            if self.exceeds_limit(account, ask) {
                if ask.parked {
                    self.limited.push(slot);
                }
            } else if best.is_none_or(|(best, _)| self.is_better_aligned(slot, best)) {
                best = Some((slot, ask.place()));
            }
        }
        best.map(|(slot, _)| slot)
    }

    fn is_better_aligned(&self, ask: AskSlot, than: AskSlot) -> bool {
        self.on_offer.is_some_and(|(room, capacity)| {
            let alignment = Alignment::with(&room, &capacity);
            alignment.of(&self.ask(ask).shape) > alignment.of(&self.ask(than).shape)
        })
    }

    /// Passes every found ask that no limit keeps from starting to `show`, unless another ask of its job is before it
    /// by rank.
    pub fn each_found(&mut self, mut show: impl FnMut(AskSlot, &AskAccount, &JobAccount)) {
        let mut limited = std::mem::take(&mut self.limited);
        for slot in self.index.found() {
            let ask = self.ask(slot);
            let job = self.job(ask.job);
            if self.exceeds_limit(job, ask) {
                limited.extend(ask.parked.then_some(slot));
            } else if self.is_first_by_rank(slot, ask, job) {
                show(slot, ask, job);
            }
        }
        self.limited = limited;
    }

    fn is_first_by_rank(&self, slot: AskSlot, ask: &AskAccount, job: &JobAccount) -> bool {
        let before = job.asks.iter().take_while(|&&other| other != slot && self.ask(other).place() < ask.place());
        self.only_ask[ask.job as usize] == slot
            || !before.into_iter().any(|&other| self.index.is_found(other) && !self.exceeds_limit(job, self.ask(other)))
    }

    /// The job's parked asks of this priority that no limit keeps from starting.
    pub fn blocked(&self, job: JobSlot, priority: i32) -> impl Iterator<Item = AskSlot> {
        let is_blocked = move |slot: &AskSlot| {
            let ask = self.ask(*slot);
            ask.priority == priority && ask.parked && self.limit_on(*slot).is_none()
        };
        self.job(job).asks.iter().copied().filter(is_blocked)
    }

    /// Unparks the asks that only a limit kept from starting, so that they are tried on all nodes again. Returns their
    /// jobs.
    pub fn unpark_limited(&mut self) -> Vec<JobSlot> {
        let limited = std::mem::take(&mut self.limited);
        for &ask in &limited {
            self.unpark(ask);
        }
        limited.into_iter().map(|ask| self.ask(ask).job).collect()
    }

    #[inline]
    fn exceeds_limit(&self, job: &JobAccount, ask: &AskAccount) -> bool {
        let leaf = &self.queues[job.queue.0 as usize];
        (leaf.is_limited || leaf.limits_users || job.most.is_some())
            && self.limit_hit(job, &ask.shape, ask.at_once()).is_some()
    }

    /// The limit that `count` tasks of the shape would exceed.
    fn limit_hit(&self, job: &JobAccount, shape: &Resources, count: u64) -> Option<Why> {
        let mut more = Totals::ZERO;
        more.add_times(shape, count);
        let leaf = &self.queues[job.queue.0 as usize];
        if leaf.limits_users {
            let used = leaf.users.get(&job.user).copied().unwrap_or_default();
            if let Some(kind) = first_excess(&used, &more, &leaf.user_maximum) {
                return Some(Why::UserLimit {
                    queue: self.tree.spec(job.queue).name.clone(),
                    kind,
                    used: used.0[kind],
                    limit: leaf.user_maximum.0[kind],
                    requested: more.0[kind],
                });
            }
        }
        if let Some(most) = job.most.filter(|_| job.used != Totals::ZERO) {
            let used = job.used.zip(&more, |used, more| used + more);
            if used.dominant_share(&self.capacity) > most {
                return Some(Why::FairShare { used: job.share, most });
            }
        }
        let mut next = Some(job.queue);
        while let Some(id) = next.filter(|_| leaf.is_limited) {
            let queue = &self.queues[id.0 as usize];
            if let Some(kind) = first_excess(&queue.used, &more, &queue.maximum) {
                return Some(Why::QueueLimit {
                    queue: self.tree.spec(id).name.clone(),
                    kind,
                    used: queue.used.0[kind],
                    limit: queue.maximum.0[kind],
                    requested: more.0[kind],
                });
            }
            next = self.tree.parent(id);
        }
        None
    }

    pub fn limit_on(&self, ask: AskSlot) -> Option<Why> {
        let ask = self.ask(ask);
        self.limit_hit(self.job(ask.job), &ask.shape, ask.at_once())
    }

    pub fn limit_for(&self, job: JobSlot, more: &Resources) -> Option<Why> {
        self.limit_hit(self.job(job), more, 1)
    }

    pub fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        let account = &self.queues[queue.0 as usize];
        QueueUsage { used: account.used, maximum: account.maximum, dominant_share: account.share }
    }
}

fn put<T>(slots: &mut Vec<Option<T>>, slot: u32, value: T) {
    let slot = slot as usize;
    if slots.len() <= slot {
        slots.resize_with(slot + 1, || None);
    }
    assert!(slots[slot].is_none(), "slot {slot} is in use");
    slots[slot] = Some(value);
}

fn fraction(total: &Totals, millionths: u32) -> Totals {
    let mut part = *total;
    for amount in &mut part.0 {
        *amount = (u128::from(*amount) * u128::from(millionths) / u128::from(WHOLE)) as u64;
    }
    part
}

/// The first kind in which `used` plus `more` exceeds `limit`.
fn first_excess(used: &Totals, more: &Totals, limit: &Totals) -> Option<usize> {
    (0..WIDTH).find(|&kind| more.0[kind] > 0 && used.0[kind].saturating_add(more.0[kind]) > limit.0[kind])
}
