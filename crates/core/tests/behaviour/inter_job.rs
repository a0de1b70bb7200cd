//! What every order of jobs promises, on the policy alone and against a plain model: random jobs, asks and offers come
//! and go, and each choice is compared with a search over all jobs.

use amalgam_core::policy::inter_job::{Capacity, Demand, Drf, Fifo, QueueTree, Sjf, Srtf, Tetris, fair_shares};
use amalgam_core::policy::{DemandChange, InterJobPolicy, NextAsk, Offer, Outcome};
use amalgam_core::vocabulary::resources::{CPU, MEMORY};
use amalgam_core::vocabulary::{
    ClassTable, Duration, JobId, JobWork, QueueId, QueueSpec, Resources, Totals, UserId, Work,
};
use std::cmp::Reverse;

const JOBS: usize = 20;
const NODES: u32 = 8;
const NODE: Resources = Resources::new(16_000, 16_384);

/// A policy, and a model of everything that it was notified of.
struct Model {
    policy: Box<dyn InterJobPolicy>,
    tree: QueueTree,
    classes: ClassTable,
    capacity: Totals,
    jobs: Vec<Job>,
    chance: u64,
    /// The room that was offered last.
    room: Resources,
}

/// A job with one ask, which has the same slot as the job.
#[derive(Clone, Debug)]
struct Job {
    id: JobId,
    queue: QueueId,
    priority: i32,
    shape: Resources,
    work: JobWork,
    open: u64,
    running: u64,
}

impl Job {
    fn used(&self) -> Totals {
        let mut used = Totals::ZERO;
        (0..self.running).for_each(|_| used.add(&self.shape));
        used
    }
}

fn spec(name: &str, guaranteed: u32, maximum: u32) -> QueueSpec {
    QueueSpec { guaranteed, maximum, ..QueueSpec::named(name) }
}

fn queues() -> QueueTree {
    let specs = vec![
        spec("root.a", 500_000, 700_000),
        spec("root.a.x", 300_000, 1_000_000),
        spec("root.a.y", 100_000, 250_000),
        spec("root.b", 250_000, 1_000_000),
        spec("root.c", 0, 1_000_000),
    ];
    QueueTree::new(specs).expect("a valid tree")
}

impl Model {
    fn new(tree: QueueTree, policy: Box<dyn InterJobPolicy>, seed: u64) -> Model {
        let mut classes = ClassTable::default();
        classes.add_class_of(Default::default());
        classes.set(0, 0, true);
        let capacity = Totals(NODE.0.map(|amount| u64::from(amount) * u64::from(NODES)));
        let mut model = Model { policy, tree, classes, capacity, jobs: Vec::new(), chance: seed, room: NODE };
        model.policy.on_change(&DemandChange::Capacity(capacity));
        (0..JOBS).for_each(|slot| model.add_job(slot));
        model
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.chance >> 33) % u64::from(limit)) as u32
    }

    fn add_job(&mut self, slot: usize) {
        let leaves: Vec<QueueId> = (0..self.tree.len() as u32).map(QueueId).collect();
        let leaves: Vec<QueueId> = leaves.into_iter().filter(|&queue| self.tree.children(queue).is_empty()).collect();
        let job = Job {
            id: JobId(slot as u64 + 1),
            queue: leaves[self.below(leaves.len() as u32) as usize],
            priority: self.below(3) as i32 / 2,
            shape: Resources::new(500 * (1 + self.below(8)), 512 * (1 + self.below(8))),
            work: JobWork::default(),
            open: 0,
            running: 0,
        };
        let (job_slot, ask) = (slot as u32, slot as u32);
        let Job { id, queue, priority, shape, .. } = job;
        // Asks are ordered by their own priority, whatever the job's priority is.
        let of_job = self.below(3) as i32 - 1;
        self.policy.on_change(&DemandChange::JobAdded { job: job_slot, id, queue, user: UserId(0), priority: of_job });
        self.policy.on_change(&DemandChange::AskAdded {
            ask,
            job: job_slot,
            shape,
            class: 0,
            priority,
            is_gang: false,
        });
        self.jobs.push(job);
        self.set_work(slot);
    }

    fn set_work(&mut self, slot: usize) {
        let (seconds, total) = (1 + self.below(9), 1 + self.below(40));
        let remaining = self.below(total + 1);
        let job = &mut self.jobs[slot];
        let of = |tasks| Work::of(&job.shape, Duration::from_secs(u64::from(seconds)), tasks);
        job.work = JobWork { total: of(total), remaining: of(remaining) };
        self.policy.on_change(&DemandChange::Work { job: slot as u32, work: job.work });
    }

    /// A random change of a random job.
    fn step(&mut self) {
        let slot = self.below(JOBS as u32) as usize;
        match self.below(4) {
            0 => self.set_work(slot),
            1 | 2 => {
                let count = u64::from(self.below(6));
                self.jobs[slot].open = count;
                self.policy.on_change(&DemandChange::Open { ask: slot as u32, count, needed: count, rank: 0 });
            }
            _ if self.jobs[slot].running > 0 => {
                self.jobs[slot].running -= 1;
                let resources = self.jobs[slot].shape;
                self.policy.on_change(&DemandChange::Freed { job: slot as u32, resources });
            }
            _ => {}
        }
    }

    /// Offers the room of one node. Returns the jobs that could have been chosen, and the chosen one.
    fn offer(&mut self) -> (Vec<usize>, Option<usize>) {
        // A node has no more room than the cluster.
        let used = self.used_by(QueueId(0));
        let left = |kind: usize| u32::try_from(self.capacity.0[kind] - used.0[kind]).expect("a small cluster");
        let (cpu, memory) = (left(CPU), left(MEMORY));
        let room = Resources::new(cpu.min(1_000 * self.below(5)), memory.min(1_024 * self.below(5)));
        let could = self.could_start(&room);
        let offer = Offer::Node { node: 0, room, capacity: NODE, classes: &self.classes };
        let choice = self.policy.next(&offer);
        self.room = room;
        (could, choice.map(|NextAsk { ask, .. }| ask as usize))
    }

    fn could_start(&self, room: &Resources) -> Vec<usize> {
        let fits = |slot: &usize| {
            let job = &self.jobs[*slot];
            job.open > 0 && job.shape.fits_in(room) && !self.passes_maximum(job)
        };
        (0..JOBS).filter(fits).collect()
    }

    /// Whether one more of its tasks would take a queue above its maximum.
    fn passes_maximum(&self, job: &Job) -> bool {
        let mut next = Some(job.queue);
        while let Some(queue) = next {
            let mut used = self.used_by(queue);
            used.add(&job.shape);
            let maximum = u64::from(self.tree.spec(queue).maximum);
            let is_over = |kind: usize| used.0[kind] > self.capacity.0[kind] * maximum / 1_000_000;
            if (0..2).any(is_over) {
                return true;
            }
            next = self.tree.parent(queue);
        }
        false
    }

    fn used_by(&self, queue: QueueId) -> Totals {
        let mut used = Totals::ZERO;
        for job in self.jobs.iter().filter(|job| self.is_within(job.queue, queue)) {
            (0..job.running).for_each(|_| used.add(&job.shape));
        }
        used
    }

    fn is_within(&self, mut at: QueueId, queue: QueueId) -> bool {
        while at != queue {
            let Some(parent) = self.tree.parent(at) else { return false };
            at = parent;
        }
        true
    }

    /// The dominant share, computed directly: the largest part of any kind.
    fn share_of(&self, used: &Totals) -> f64 {
        let parts = used.0.iter().zip(&self.capacity.0).filter(|(_, of)| **of > 0);
        parts.map(|(used, of)| *used as f64 / *of as f64).fold(0.0, f64::max)
    }

    fn start(&mut self, slot: usize) {
        self.policy.outcome(slot as u32, Outcome::Started);
        self.jobs[slot].open -= 1;
        self.jobs[slot].running += 1;
    }

    /// Random steps with offers in between. `check` gets the jobs that could have been chosen, and the chosen one.
    fn run(
        tree: &QueueTree,
        policy: impl Fn(QueueTree) -> Box<dyn InterJobPolicy>,
        check: impl Fn(&Model, &[usize], usize),
    ) {
        for seed in 1..=20 {
            let mut model = Model::new(tree.clone(), policy(tree.clone()), seed);
            let mut chosen = 0;
            for _ in 0..1_000 {
                model.step();
                let (could, choice) = model.offer();
                assert_eq!(choice.is_none(), could.is_empty(), "a job that fits is chosen");
                if let Some(slot) = choice {
                    assert!(could.contains(&slot), "{:?} does not fit", model.jobs[slot]);
                    check(&model, &could, slot);
                    model.start(slot);
                    chosen += 1;
                }
            }
            assert!(chosen > 100, "{chosen}");
        }
    }
}

/// Checks that the chosen job is the first of those that could be chosen.
fn goes_by<K: Ord>(key: impl Fn(&Model, &Job) -> K) -> impl Fn(&Model, &[usize], usize) {
    move |model, could, slot| {
        let first = could
            .iter()
            .map(|&slot| &model.jobs[slot])
            .min_by_key(|job| (Reverse(job.priority), key(model, job), job.id));
        assert_eq!(first.map(|job| job.id), Some(model.jobs[slot].id));
    }
}

#[test]
fn fifo_chooses_the_earliest_job() {
    Model::run(&queues(), |tree| Box::new(Fifo::new(tree)), goes_by(|_, _| ()));
}

#[test]
fn sjf_never_chooses_a_job_with_more_work_than_another_that_fits() {
    Model::run(
        &queues(),
        |tree| Box::new(Sjf::new(tree)),
        goes_by(|model, job| job.work.total.on_whole(&model.capacity)),
    );
}

#[test]
fn srtf_never_chooses_a_job_with_more_work_left_than_another_that_fits() {
    let left = |model: &Model, job: &Job| job.work.remaining.on_whole(&model.capacity);
    Model::run(&queues(), |tree| Box::new(Srtf::new(tree)), goes_by(left));
}

/// Checks a choice from the root down. Of the children that contain a job that could start, the chosen one has the
/// smallest key (the smaller group, then the smaller number). In the leaf, the job with the smallest `job_key` is
/// chosen.
fn goes_by_queues<K: Ord>(
    queue_key: impl Fn(&QueueSpec, f64) -> (bool, f64),
    job_key: impl Fn(&Model, &Job) -> K,
) -> impl Fn(&Model, &[usize], usize) {
    // Shares here are multiples of a 256th and the policy counts in millionths: a smaller difference is a tie.
    const TIE: f64 = 1e-5;
    move |model, could, slot| {
        let mut at = QueueId(0);
        while !model.tree.children(at).is_empty() {
            let leads = |child: QueueId, slot: usize| model.is_within(model.jobs[slot].queue, child);
            let children = || model.tree.children(at).iter().map(|&child| QueueId(child));
            let chosen = children().find(|&child| leads(child, slot)).expect("a way to the leaf");
            let key = |queue| queue_key(model.tree.spec(queue), model.share_of(&model.used_by(queue)));
            let (group, number) = key(chosen);
            for rival in children().filter(|&child| could.iter().any(|&slot| leads(child, slot))) {
                let (other_group, other) = key(rival);
                let name = |queue| &model.tree.spec(queue).name;
                let goes_before = (other_group, other + TIE) < (group, number);
                assert!(!goes_before, "{} at {other} was passed by {} at {number}", name(rival), name(chosen));
                if group && (other_group, other) == (group, number) {
                    assert!(name(chosen) <= name(rival), "ties are decided by name");
                }
            }
            at = chosen;
        }
        let of_leaf = could.iter().map(|&slot| &model.jobs[slot]).filter(|job| job.queue == at);
        let first = of_leaf.min_by_key(|job| (Reverse(job.priority), job_key(model, job), job.id));
        assert_eq!(first.map(|job| job.id), Some(model.jobs[slot].id));
    }
}

#[test]
fn capacity_chooses_the_queue_that_uses_the_smallest_part_of_its_guarantee() {
    let key = |queue: &QueueSpec, share: f64| match queue.guaranteed {
        0 => (true, share * 1e3 / f64::from(queue.weight)),
        guaranteed => (false, share * 1e6 / f64::from(guaranteed)),
    };
    Model::run(&queues(), |tree| Box::new(Capacity::new(tree)), goes_by_queues(key, |_, _| ()));
}

#[test]
fn drf_chooses_the_smallest_weighted_dominant_share() {
    let key = |queue: &QueueSpec, share: f64| match f64::from(queue.guaranteed) / 1e6 {
        guaranteed if share < guaranteed => (false, share / guaranteed),
        _ => (true, share * 1e3 / f64::from(queue.weight)),
    };
    let share = |model: &Model, job: &Job| (model.share_of(&job.used()) * 1e9) as u64;
    let weighted = |name: &str, weight: u32| QueueSpec { weight: weight * 1_000, ..QueueSpec::named(name) };
    let guaranteed = |name: &str, weight: u32| QueueSpec { guaranteed: 125_000, ..weighted(name, weight) };
    let mixed = vec![
        weighted("root.a", 3),
        weighted("root.a.x", 1),
        weighted("root.a.y", 2),
        guaranteed("root.b", 1),
        guaranteed("root.c", 2),
        QueueSpec { maximum: 250_000, ..weighted("root.d", 1) },
    ];
    for tree in [QueueTree::single(), queues(), QueueTree::new(mixed).expect("a valid tree")] {
        Model::run(&tree, |tree| Box::new(Drf::new(tree)), goes_by_queues(key, share));
    }
}

/// Offers the room of one node to jobs in queues of their own until no job takes any. Each job is given by the weight
/// of its queue, the shape of its tasks and their number. Returns how many tasks of each then run.
fn fill_one_node(node: Resources, jobs: &[(u32, Resources, u64)]) -> Vec<u64> {
    let queue = |number: usize| format!("root.q{number:02}");
    let weighted = |(number, job): (usize, &(u32, Resources, u64))| QueueSpec {
        weight: job.0 * 1_000,
        ..QueueSpec::named(&queue(number))
    };
    let tree = QueueTree::new(jobs.iter().enumerate().map(weighted).collect()).expect("a valid tree");
    let mut classes = ClassTable::default();
    classes.add_class_of(Default::default());
    classes.set(0, 0, true);
    let mut policy = Drf::new(tree.clone());
    policy.on_change(&DemandChange::Capacity(Totals(node.0.map(u64::from))));
    for (slot, &(_, shape, count)) in (0..).zip(jobs) {
        let (id, queue) = (JobId(u64::from(slot) + 1), tree.find(&queue(slot as usize)).expect("the queue exists"));
        policy.on_change(&DemandChange::JobAdded { job: slot, id, queue, user: UserId(0), priority: 0 });
        policy.on_change(&DemandChange::AskAdded {
            ask: slot,
            job: slot,
            shape,
            class: 0,
            priority: 0,
            is_gang: false,
        });
        policy.on_change(&DemandChange::Open { ask: slot, count, needed: count, rank: 0 });
    }
    let mut room = node;
    let mut running = vec![0; jobs.len()];
    while let Some(NextAsk { ask, .. }) = policy.next(&Offer::Node { node: 0, room, capacity: node, classes: &classes })
    {
        let shape = &jobs[ask as usize].1;
        assert!(shape.fits_in(&room));
        room.0.iter_mut().zip(shape.0).for_each(|(left, taken)| *left -= taken);
        policy.outcome(ask, Outcome::Started);
        running[ask as usize] += 1;
    }
    running
}

/// Ghodsi et al. 2011, section 4.1: of 9 CPUs and 18 GB, with tasks of <1, 4> and <3, 1>, A runs three and B two, and
/// each has two thirds of its dominant resource.
#[test]
fn drf_reproduces_the_example_of_its_paper() {
    let (a, b) = (Resources::new(1_000, 4_096), Resources::new(3_000, 1_024));
    assert_eq!(fill_one_node(Resources::new(9_000, 18 * 1_024), &[(1, a, 100), (1, b, 100)]), [3, 2]);
}

#[test]
fn progressive_filling_with_small_tasks_ends_at_the_closed_form() {
    const JOBS: u64 = 8;
    /// A task takes at most this part of the node: one part in `TASKS`.
    const TASKS: u32 = 20_000;
    let mut node = Resources::ZERO;
    node.0[..3].fill(1_000 * TASKS);
    let capacity = Totals(node.0.map(u64::from));
    let mut state = 5u64;
    let mut below = |limit: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(limit)) as u32
    };
    for round in 0..20 {
        // The whole of a kind, or a large part of it, or nothing: the room that is left at the end fits few tasks.
        let mut job = || {
            let mut shape = Resources::ZERO;
            (0..3).for_each(|kind| shape.0[kind] = [0, 500, 750, 1_000][below(4) as usize]);
            shape.0[below(3) as usize] = 1_000;
            (1 + below(3), shape, u64::from(1 + below(TASKS)))
        };
        let jobs: Vec<(u32, Resources, u64)> = (0..JOBS).map(|_| job()).collect();
        let demand = |&(weight, shape, count): &(u32, Resources, u64)| Demand {
            weight: u64::from(weight),
            wanted: Totals(shape.0.map(|amount| u64::from(amount) * count)),
            most: 1_000_000,
        };
        let fair = fair_shares(&jobs.iter().map(demand).collect::<Vec<_>>(), &capacity);
        for (running, fair) in fill_one_node(node, &jobs).into_iter().zip(fair) {
            // Rounding may move one task of each job.
            let off = (running * 1_000_000 / u64::from(TASKS)).abs_diff(fair.share);
            assert!(off <= JOBS * 1_000_000 / u64::from(TASKS), "round {round}: {running} tasks, {fair:?} of {jobs:?}");
        }
    }
}

#[test]
fn capacity_lets_a_queue_borrow_idle_resources_and_return_them_as_tasks_end() {
    let tree = QueueTree::new(vec![spec("root.a", 750_000, 1_000_000), spec("root.b", 250_000, 500_000)]).unwrap();
    let mut model = Model::new(tree.clone(), Box::new(Capacity::new(tree.clone())), 1);
    model.jobs.iter().for_each(|job| assert!(job.open == 0));
    let of = |model: &Model, name: &str| {
        let queue = model.tree.find(name).expect("the queue exists");
        (0..JOBS).find(|&slot| model.jobs[slot].queue == queue).expect("a job in each")
    };
    let (a, b) = (of(&model, "root.a"), of(&model, "root.b"));
    let room = NODE;
    let fill = |model: &mut Model| {
        let offer = Offer::Node { node: 0, room, capacity: NODE, classes: &model.classes };
        let choice = model.policy.next(&offer).map(|choice| choice.ask as usize);
        choice.inspect(|&slot| model.start(slot))
    };
    let open = |model: &mut Model, slot: usize| {
        model.jobs[slot].open = 1_000;
        model.policy.on_change(&DemandChange::Open { ask: slot as u32, count: 1_000, needed: 1_000, rank: 0 });
    };
    open(&mut model, b);
    while fill(&mut model).is_some() {}
    let share = |model: &Model, slot: usize| model.jobs[slot].used().dominant_share(&model.capacity);
    assert!((440_000..=500_000).contains(&share(&model, b)), "it borrows up to its maximum: {}", share(&model, b));
    open(&mut model, a);
    for _ in 0..100 {
        if share(&model, b) > 250_000 && model.jobs[b].running > 0 {
            model.jobs[b].running -= 1;
            let resources = model.jobs[b].shape;
            model.policy.on_change(&DemandChange::Freed { job: b as u32, resources });
        }
        let only_a_is_below = share(&model, a) < 750_000 && share(&model, b) >= 250_000;
        let next = fill(&mut model);
        assert!(!only_a_is_below || next == Some(a), "the queue below its guarantee is chosen first");
    }
}

/// Checks the choice with floating-point numbers. `fairness` is the knob f, from 0 to 1.
fn tetris_goes_by_its_score(fairness: f64) {
    let check = move |model: &Model, could: &[usize], slot: usize| {
        let mut waiting: Vec<&Job> = model.jobs.iter().filter(|job| job.open > 0).collect();
        waiting.sort_by_key(|job| (Reverse(job.priority), job.used().dominant_share(&model.capacity), job.id));
        let considered = ((waiting.len() as f64 * (1.0 - fairness) - 1e-9).ceil() as usize).max(1);
        let considered: Vec<JobId> = waiting.iter().take(considered).map(|job| job.id).collect();
        let fits: Vec<&Job> = could.iter().map(|&slot| &model.jobs[slot]).collect();
        let mut rivals: Vec<&Job> = fits.iter().copied().filter(|job| considered.contains(&job.id)).collect();
        if rivals.is_empty() {
            rivals = fits;
        }
        let highest = rivals.iter().map(|job| job.priority).max().expect("some fit");
        rivals.retain(|job| job.priority == highest);
        let alignment = |job: &Job| -> f64 {
            let part = |amount: u32, kind: usize| f64::from(amount) / f64::from(NODE.0[kind]);
            (0..2).map(|kind| part(job.shape.0[kind], kind) * part(model.room.0[kind], kind)).sum()
        };
        let remaining = |job: &Job| job.work.remaining.on_whole(&model.capacity) as f64;
        let mean = |of: &dyn Fn(&Job) -> f64| rivals.iter().map(|job| of(job)).sum::<f64>() / rivals.len() as f64;
        let (mean_alignment, mean_remaining) = (mean(&alignment), mean(&remaining));
        let epsilon = if mean_remaining > 0.0 { mean_alignment / mean_remaining } else { 0.0 };
        let score = |job: &Job| alignment(job) - epsilon * remaining(job);
        let best = rivals.iter().map(|job| score(job)).fold(f64::MIN, f64::max);
        let chosen = &model.jobs[slot];
        assert!(rivals.iter().any(|job| job.id == chosen.id), "job {} is not among the neediest", chosen.id);
        assert!(score(chosen) > best - 1e-6, "{} where {best} is available", score(chosen));
    };
    let fairness = (fairness * 1e6) as u32;
    Model::run(&queues(), |tree| Box::new(Tetris::new(tree, fairness)), check);
}

#[test]
fn tetris_without_fairness_chooses_the_best_score_of_all() {
    tetris_goes_by_its_score(0.0);
}

#[test]
fn tetris_with_fairness_chooses_the_best_score_of_the_jobs_furthest_below_their_share() {
    tetris_goes_by_its_score(0.25);
    tetris_goes_by_its_score(0.8);
    tetris_goes_by_its_score(0.999_999);
}

#[test]
fn strict_shares_give_each_job_a_task_but_none_more_than_its_fair_share() {
    let tree = QueueTree::new(vec![
        QueueSpec { weight: 3_000, ..QueueSpec::named("root.heavy") },
        spec("root.light", 0, 1_000_000),
    ])
    .expect("a valid tree");
    for seed in 1..=10 {
        let mut model = Model::new(tree.clone(), Box::new(Drf::strict(tree.clone())), seed);
        for slot in 0..JOBS {
            let open = u64::from(model.below(60)) * u64::from(model.below(2));
            model.jobs[slot].open = open;
            model.policy.on_change(&DemandChange::Open { ask: slot as u32, count: open, needed: open, rank: 0 });
        }
        let waiting = |model: &Model, queue: QueueId| {
            model.jobs.iter().filter(|job| job.queue == queue && job.open > 0).count().max(1) as u64
        };
        let demands: Vec<Demand> = (0..JOBS)
            .map(|slot| {
                let job = &model.jobs[slot];
                let weight = u64::from(tree.spec(job.queue).weight) * 1_000_000 / waiting(&model, job.queue);
                Demand {
                    weight,
                    wanted: Totals(job.shape.0.map(|amount| u64::from(amount) * job.open)),
                    most: 1_000_000,
                }
            })
            .collect();
        let fair = fair_shares(&demands, &model.capacity).into_iter().map(|fair| fair.share);
        loop {
            let offer = Offer::Node { node: 0, room: NODE, capacity: NODE, classes: &model.classes };
            let Some(choice) = model.policy.next(&offer) else { break };
            model.start(choice.ask as usize);
        }
        for (job, fair) in model.jobs.iter().zip(fair) {
            let share = job.used().dominant_share(&model.capacity);
            assert!(share <= fair + 1 || job.running == 1, "seed {seed}: {share} of {fair}: {job:?}");
            let mut more = job.used();
            more.add(&job.shape);
            let is_full = more.dominant_share(&model.capacity) + 1 > fair;
            assert!(job.open == 0 || is_full, "seed {seed}: {share} of {fair}, and no more: {job:?}");
        }
    }
}
