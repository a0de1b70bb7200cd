//! The room of the node: what attempts and probes hold, and what is free for guaranteed and for opportunistic work.

use super::Attempt;
use super::devices::DevicePool;
use super::kept::KeptRoom;
use crate::vocabulary::resources::GPU;
use crate::vocabulary::{Devices, Duration, Instant, Kinds, ResourceSpec, Resources, Totals};

/// The fields are stored in this order: see [`NodeAgent`](super::NodeAgent).
#[repr(C)]
pub(super) struct Room {
    kept: KeptRoom,
    opportunistic: OpportunisticUse,
    /// The capacity without `held`.
    free: Resources,
    /// Resources of the attempts at the executor, and of the probes whose job managers were asked for a task. May
    /// exceed the capacity if the agent has less than in an earlier run or does not know its custom kinds yet.
    held: Totals,
    capacity: Resources,
    devices: DevicePool,
    kinds: Kinds,
    /// What opportunistic work may hold at once. The master sets it.
    opportunistic_limit: Resources,
}

/// Resources of the node that opportunistic attempts hold.
#[derive(Default)]
struct OpportunisticUse {
    attempts: u32,
    held: Box<Totals>,
}

impl OpportunisticUse {
    fn add(&mut self, resources: &Resources) {
        self.attempts += 1;
        self.held.add(resources);
    }

    fn sub(&mut self, resources: &Resources) {
        self.attempts -= 1;
        self.held.sub(resources);
    }
}

impl Room {
    /// A node where nothing runs. Freed room is kept for guaranteed work for `keep_freed`.
    pub(super) fn new(capacity: Resources, keep_freed: Duration) -> Room {
        Room {
            kept: KeptRoom::for_length(keep_freed),
            opportunistic: OpportunisticUse::default(),
            free: capacity,
            held: Totals::ZERO,
            capacity,
            devices: DevicePool::new(&capacity),
            kinds: Kinds::new(),
            opportunistic_limit: Resources::MAX,
        }
    }

    pub(super) fn capacity(&self) -> &Resources {
        &self.capacity
    }

    /// The capacity without the resources that attempts and probes hold.
    pub(super) fn free(&self) -> &Resources {
        &self.free
    }

    // ---- kinds of resources ----------------------------------------------------------------------------------------

    pub(super) fn has_kinds(&self, kinds: &Kinds) -> bool {
        self.kinds == *kinds
    }

    /// Whether the list has kinds that are not known here. Kinds are only added.
    pub(super) fn lacks_kinds(&self, kinds: &Kinds) -> bool {
        kinds.custom().len() > self.kinds.custom().len()
    }

    /// The indexes of custom kinds are known now: resolves the capacity that the node has by name, and the devices.
    pub(super) fn on_kinds<'a>(
        &mut self,
        kinds: Kinds,
        mut offered: ResourceSpec,
        at_executor: impl Iterator<Item = &'a Attempt>,
    ) {
        offered.custom.retain(|(name, _)| kinds.index(name).is_some());
        self.capacity = kinds.resolve(&offered).unwrap_or(offered.basic);
        self.kinds = kinds;
        self.devices = DevicePool::new(&self.capacity);
        for attempt in at_executor {
            let wanted = &attempt.template.shape.resources;
            self.devices.hold(&attempt.devices, wanted, attempt.shared_gpu, &self.kinds);
        }
        self.free = self.free_beside(&self.held);
    }

    // ---- what is held ----------------------------------------------------------------------------------------------

    /// Holds resources for a probe whose job manager is asked for a task, or for an attempt.
    pub(super) fn hold(&mut self, resources: &Resources) {
        self.held.add(resources);
        self.free = self.free_beside(&self.held);
    }

    /// Frees resources that were held.
    pub(super) fn release(&mut self, resources: &Resources) {
        self.held.sub(resources);
        self.free = self.free_beside(&self.held);
    }

    /// The capacity without `held`; of the GPUs, the most that one task may have.
    fn free_beside(&self, held: &Totals) -> Resources {
        let mut free = held.left_of(&self.capacity);
        free.0[GPU] = free.0[GPU].min(self.devices.free_gpus());
        free
    }

    /// A queued attempt starts. Returns the devices that it gets.
    pub(super) fn on_start(&mut self, attempt: &Attempt) -> Devices {
        let resources = &attempt.template.shape.resources;
        let devices = self.devices.allocate(resources, attempt.shared_gpu, &self.kinds);
        self.hold(resources);
        if attempt.is_opportunistic() {
            self.opportunistic.add(resources);
        } else {
            self.kept.use_up(resources);
        }
        devices
    }

    /// The attempt was at the executor before this agent started.
    pub(super) fn adopt(&mut self, attempt: &Attempt) {
        self.devices.hold(&attempt.devices, &attempt.template.shape.resources, attempt.shared_gpu, &self.kinds);
        self.hold(&attempt.holds());
        if attempt.is_opportunistic() {
            self.opportunistic.add(&attempt.holds());
        }
    }

    /// The attempt is no longer at the executor.
    pub(super) fn on_end(&mut self, attempt: &Attempt) {
        self.devices.give_back(&attempt.devices, &attempt.template.shape.resources, &self.kinds);
        self.release(&attempt.holds());
        if attempt.is_opportunistic() {
            self.opportunistic.sub(&attempt.holds());
        }
    }

    /// An opportunistic attempt gives its CPU to guaranteed work.
    pub(super) fn on_yield(&mut self, cpu: &Resources) {
        self.release(cpu);
        self.opportunistic.held.sub(cpu);
    }

    /// An attempt that has yielded has its CPU again.
    pub(super) fn on_resume(&mut self, cpu: &Resources, is_opportunistic: bool) {
        self.hold(cpu);
        if is_opportunistic {
            self.opportunistic.held.add(cpu);
        } else {
            self.kept.use_up(cpu);
        }
    }

    /// An opportunistic attempt with these resources is guaranteed from now on, because the ledger books it.
    pub(super) fn on_booked(&mut self, resources: &Resources) {
        self.opportunistic.sub(resources);
        self.kept.use_up(resources);
    }

    /// An opportunistic attempt with these resources is guaranteed from now on, because its job is entitled to them.
    pub(super) fn on_entitled(&mut self, resources: &Resources) {
        self.opportunistic.sub(resources);
    }

    /// The free resources if attempts that hold this CPU yielded it.
    pub(super) fn free_without(&self, cpu: impl Iterator<Item = Resources>) -> Resources {
        let mut held = self.held;
        cpu.for_each(|cpu| held.sub(&cpu));
        self.free_beside(&held)
    }

    // ---- kept for guaranteed work ----------------------------------------------------------------------------------

    /// Guaranteed work has freed this room. It is kept for guaranteed work for a short time.
    pub(super) fn keep_freed(&mut self, now: Instant, resources: &Resources) {
        self.kept.keep(now, resources);
    }

    /// Frees the room that has been kept for long enough for opportunistic work, too. Returns true if there was any.
    pub(super) fn expire_kept(&mut self, now: Instant) -> bool {
        self.kept.expire(now)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.kept.next_expiry()
    }

    // ---- opportunistic work ----------------------------------------------------------------------------------------

    /// The master has set what opportunistic work may hold at once.
    pub(super) fn limit_opportunistic(&mut self, limit: Resources) {
        self.opportunistic_limit = limit;
    }

    /// Whether opportunistic attempts are at the executor.
    pub(super) fn has_opportunistic(&self) -> bool {
        self.opportunistic.attempts > 0
    }

    /// What opportunistic work may hold in addition to what it holds. One attempt may always run.
    pub(super) fn left_for_opportunistic(&self) -> Resources {
        if self.has_opportunistic() { self.left_of_limit() } else { Resources::MAX }
    }

    /// The part of `room` that opportunistic work may take.
    pub(super) fn opportunistic_part_of(&self, room: &Resources) -> Resources {
        if self.has_opportunistic() { room.smaller_of(&self.left_of_limit()) } else { *room }
    }

    /// The part of the free room that opportunistic work may take now.
    pub(super) fn free_for_opportunistic(&self) -> Resources {
        self.opportunistic_part_of(&self.not_kept())
    }

    /// The part of the free room that an opportunistic attempt may take that has yielded. If it is the only one, it
    /// may have its CPU, however little the others leave.
    pub(super) fn free_for_resuming(&self) -> Resources {
        if self.opportunistic.attempts == 1 { self.not_kept() } else { self.free_for_opportunistic() }
    }

    /// The part of the free room that opportunistic work of other nodes may come for.
    pub(super) fn spare(&self) -> Resources {
        self.left_of_limit().smaller_of(&self.not_kept())
    }

    fn left_of_limit(&self) -> Resources {
        self.opportunistic.held.left_of(&self.opportunistic_limit)
    }

    fn not_kept(&self) -> Resources {
        self.kept.left_of(&self.free)
    }

    /// # Panics
    /// If the attempts at the executor, and the probes, which hold `for_probes`, do not hold what is counted here.
    pub(super) fn check_invariants(&self, at_executor: &[&Attempt], for_probes: Totals) {
        let mut held = for_probes;
        at_executor.iter().for_each(|entry| held.add(&entry.holds()));
        assert_eq!(self.held, held, "resources that attempts and probes hold");
        let mut opportunistic = Totals::ZERO;
        let those = at_executor.iter().filter(|entry| entry.is_opportunistic());
        those.for_each(|entry| opportunistic.add(&entry.holds()));
        assert_eq!(*self.opportunistic.held, opportunistic, "resources that opportunistic attempts hold");
        assert_eq!(self.free, self.free_beside(&self.held), "free resources are those that nothing holds");
        let devices = at_executor.iter().map(|entry| (&entry.devices, &entry.template.shape.resources));
        self.devices.check_invariants(devices, &self.capacity, &self.kinds);
    }
}
