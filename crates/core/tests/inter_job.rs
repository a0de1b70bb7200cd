//! What every inter-job order promises, on the policy alone and against a plain model: random jobs, asks and rooms come
//! and go, and each choice is compared with a look at everything.

use amalgam_core::policy::inter_job::{Capacity, Demand, Drf, Fifo, QueueTree, Sjf, Srtf, Tetris, fair_shares};
use amalgam_core::policy::{Choice, DemandChange, InterJobPolicy, Offer, Outcome};
use amalgam_core::vocabulary::resources::{CPU, MEMORY};
use amalgam_core::vocabulary::{
    ClassTable, Duration, JobId, JobWork, QueueId, QueueSpec, Resources, Totals, UserId, Work,
};
use std::cmp::Reverse;

const JOBS: usize = 20;
const NODES: u32 = 8;
const NODE: Resources = Resources::new(16_000, 16_384);

/// A policy, and everything that it was told.
struct Model {
    policy: Box<dyn InterJobPolicy>,
    tree: QueueTree,
    classes: ClassTable,
    capacity: Totals,
    jobs: Vec<Job>,
    chance: u64,
    /// What was offered last.
    room: Resources,
}

/// A job with one ask, whose slot is the job's.
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
    QueueTree::new(specs).expect("a sound tree")
}

impl Model {
    fn new(tree: QueueTree, policy: Box<dyn InterJobPolicy>, seed: u64) -> Model {
        let mut classes = ClassTable::default();
        classes.add_class();
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
        self.policy.on_change(&DemandChange::JobAdded { job: job_slot, id, queue, user: UserId(0), priority });
        self.policy.on_change(&DemandChange::AskAdded { ask, job: job_slot, shape, class: 0 });
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

    /// Something happens to some job.
    fn step(&mut self) {
        let slot = self.below(JOBS as u32) as usize;
        match self.below(4) {
            0 => self.set_work(slot),
            1 | 2 => {
                let count = u64::from(self.below(6));
                self.jobs[slot].open = count;
                self.policy.on_change(&DemandChange::Open { ask: slot as u32, count, rank: 0 });
            }
            _ if self.jobs[slot].running > 0 => {
                self.jobs[slot].running -= 1;
                let resources = self.jobs[slot].shape;
                self.policy.on_change(&DemandChange::Freed { job: slot as u32, resources });
            }
            _ => {}
        }
    }

    /// Offers one node's room. The jobs that could have been chosen, and which was.
    fn offer(&mut self) -> (Vec<usize>, Option<usize>) {
        // There is no more room on a node than in the cluster.
        let used = self.used_by(QueueId(0));
        let left = |kind: usize| u32::try_from(self.capacity.0[kind] - used.0[kind]).expect("a small cluster");
        let (cpu, memory) = (left(CPU), left(MEMORY));
        let room = Resources::new(cpu.min(1_000 * self.below(5)), memory.min(1_024 * self.below(5)));
        let could = self.could_start(&room);
        let offer = Offer::Node { node: 0, room, capacity: NODE, classes: &self.classes };
        let choice = self.policy.next(&offer);
        self.room = room;
        (could, choice.map(|Choice { ask, .. }| ask as usize))
    }

    fn could_start(&self, room: &Resources) -> Vec<usize> {
        let fits = |slot: &usize| {
            let job = &self.jobs[*slot];
            job.open > 0 && job.shape.fits_in(room) && !self.passes_maximum(job)
        };
        (0..JOBS).filter(fits).collect()
    }

    /// Whether one more of its tasks takes a queue above its maximum.
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
        let is_within = |mut at: QueueId| loop {
            if at == queue {
                return true;
            }
            match self.tree.parent(at) {
                Some(parent) => at = parent,
                None => return false,
            }
        };
        let mut used = Totals::ZERO;
        for job in self.jobs.iter().filter(|job| is_within(job.queue)) {
            (0..job.running).for_each(|_| used.add(&job.shape));
        }
        used
    }

    fn start(&mut self, slot: usize) {
        self.policy.outcome(slot as u32, Outcome::Started);
        self.jobs[slot].open -= 1;
        self.jobs[slot].running += 1;
    }

    /// Many random steps with offers in between; `check` sees what could have been chosen, and what was.
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
                assert_eq!(choice.is_none(), could.is_empty(), "whoever fits is served");
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
fn fifo_serves_the_earliest() {
    Model::run(&queues(), |tree| Box::new(Fifo::new(tree)), goes_by(|_, _| ()));
}

#[test]
fn sjf_never_serves_a_job_with_more_work_than_another_that_fits() {
    Model::run(
        &queues(),
        |tree| Box::new(Sjf::new(tree)),
        goes_by(|model, job| job.work.total.on_whole(&model.capacity)),
    );
}

#[test]
fn srtf_never_serves_a_job_with_more_work_left_than_another_that_fits() {
    let left = |model: &Model, job: &Job| job.work.remaining.on_whole(&model.capacity);
    Model::run(&queues(), |tree| Box::new(Srtf::new(tree)), goes_by(left));
}

#[test]
fn under_capacity_a_queue_below_its_guarantee_goes_before_any_sibling_above_its_own() {
    let check = |model: &Model, could: &[usize], slot: usize| {
        let below = |queue: QueueId| {
            let share = model.used_by(queue).dominant_share(&model.capacity);
            share < u64::from(model.tree.spec(queue).guaranteed)
        };
        // From the root down: of the children that lead to somebody who could start, one below its guarantee.
        let mut at = QueueId(0);
        while !model.tree.children(at).is_empty() {
            let leads = |child: QueueId, job: &Job| {
                let mut next = Some(job.queue);
                std::iter::from_fn(|| {
                    let here = next?;
                    next = model.tree.parent(here);
                    Some(here)
                })
                .any(|queue| queue == child)
            };
            let children = model.tree.children(at).iter().map(|&child| QueueId(child));
            let chosen = children.clone().find(|&child| leads(child, &model.jobs[slot])).expect("a way to the leaf");
            let mut rivals = children.filter(|&child| could.iter().any(|&slot| leads(child, &model.jobs[slot])));
            assert!(below(chosen) || !rivals.any(below), "{} was passed", model.tree.spec(chosen).name);
            at = chosen;
        }
        let of_leaf = could.iter().map(|&slot| &model.jobs[slot]).filter(|job| job.queue == at);
        let first = of_leaf.min_by_key(|job| (Reverse(job.priority), job.id)).expect("the chosen one is there");
        assert_eq!(first.id, model.jobs[slot].id, "within a queue the earlier goes first");
    };
    Model::run(&queues(), |tree| Box::new(Capacity::new(tree)), check);
}

#[test]
fn under_capacity_a_queue_borrows_what_is_idle_and_gives_it_back_as_tasks_end() {
    let tree = QueueTree::new(vec![spec("root.a", 750_000, 1_000_000), spec("root.b", 250_000, 500_000)]).unwrap();
    let mut model = Model::new(tree.clone(), Box::new(Capacity::new(tree.clone())), 1);
    model.jobs.iter().for_each(|job| assert!(job.open == 0));
    let of = |model: &Model, name: &str| {
        let queue = model.tree.find(name).expect("it is there");
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
        model.policy.on_change(&DemandChange::Open { ask: slot as u32, count: 1_000, rank: 0 });
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
        assert!(!only_a_is_below || next == Some(a), "the queue below its guarantee goes first");
    }
}

/// f as a part of 1, and what is chosen in floating point.
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
        assert!(score(chosen) > best - 1e-6, "{} where {best} was to be had", score(chosen));
    };
    let fairness = (fairness * 1e6) as u32;
    Model::run(&queues(), |tree| Box::new(Tetris::new(tree, fairness)), check);
}

#[test]
fn tetris_takes_the_best_score_of_all_when_it_need_not_be_fair() {
    tetris_goes_by_its_score(0.0);
}

#[test]
fn tetris_takes_the_best_score_among_the_jobs_furthest_below_their_share() {
    tetris_goes_by_its_score(0.25);
    tetris_goes_by_its_score(0.8);
    tetris_goes_by_its_score(0.999_999);
}

#[test]
fn with_strict_shares_nobody_gets_more_than_its_fair_share_but_everybody_gets_a_task() {
    let tree = QueueTree::new(vec![
        QueueSpec { weight: 3_000, ..QueueSpec::named("root.heavy") },
        spec("root.light", 0, 1_000_000),
    ])
    .expect("a sound tree");
    for seed in 1..=10 {
        let mut model = Model::new(tree.clone(), Box::new(Drf::strict(tree.clone())), seed);
        for slot in 0..JOBS {
            let open = u64::from(model.below(60)) * u64::from(model.below(2));
            model.jobs[slot].open = open;
            model.policy.on_change(&DemandChange::Open { ask: slot as u32, count: open, rank: 0 });
        }
        let waiting = |model: &Model, queue: QueueId| {
            model.jobs.iter().filter(|job| job.queue == queue && job.open > 0).count().max(1) as u64
        };
        let demands: Vec<Demand> = (0..JOBS)
            .map(|slot| {
                let job = &model.jobs[slot];
                let weight = u64::from(tree.spec(job.queue).weight) * 1_000_000 / waiting(&model, job.queue);
                Demand { weight, wants: Totals(job.shape.0.map(|amount| u64::from(amount) * job.open)) }
            })
            .collect();
        let fair = fair_shares(&demands, &model.capacity);
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
