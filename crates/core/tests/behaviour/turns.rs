//! Which pending jobs start and end, and in which order, compared with a simple rule that checks all jobs after each
//! event. Also that an event checks only the jobs that depend on it, and leaves the rest to later events if there are
//! many.

use amalgam_core::dispatch::JobState;
use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, JobAction, JobOutcome, JobUpdate, ToClient, ToMaster};
use amalgam_core::role::{Change, Event, Outbox, Role};
use amalgam_core::vocabulary::{
    Chance, ClientId, Epoch, Instant, JobId, JobSpec, Key, Mac, Program, QueueSpec, ResourceSpec, Resources, Sealing,
    StageSpec, TaskSet,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

const CLIENT: Address = Address::Client(ClientId(1));
const FAILED: JobOutcome = JobOutcome::Failed { exit_code: 1 };
/// Queues without a limit, with one running job, and with three.
const QUEUES: [(&str, Option<u32>); 3] = [("root.free", None), ("root.one", Some(1)), ("root.three", Some(3))];

/// A master without nodes, whose jobs end when a test requests it.
struct Jobs {
    master: Master,
    now: Instant,
    changes: Vec<Change>,
    /// The largest number of steps of one event, and of changes that it made.
    most: (u64, usize),
}

impl Jobs {
    fn new() -> Jobs {
        Jobs { master: master(&[]), now: Instant(1), changes: Vec::new(), most: (0, 0) }
    }

    fn handle(&mut self, event: Event<ToMaster>) -> Outbox {
        let (mut out, steps) = (Outbox::default(), self.master.dispatch().steps());
        self.now.0 += 1;
        self.master.handle(self.now, event, &mut out);
        self.most.0 = self.most.0.max(self.master.dispatch().steps() - steps);
        self.most.1 = self.most.1.max(out.changes.len());
        self.changes.extend(out.changes.iter().cloned());
        out
    }

    fn say(&mut self, from: Address, body: ToMaster) -> ToClient {
        let out = self.handle(Event::Message { from, body });
        let answer = out.sends.into_iter().find_map(|(_, message)| match message {
            amalgam_core::protocol::Message::ToClient(answer) => Some(answer),
            _ => None,
        });
        answer.unwrap_or(ToClient::Done)
    }

    fn submit(&mut self, spec: JobSpec) -> JobId {
        match self.say(CLIENT, ToMaster::Submit { spec: Arc::new(spec), key: None }) {
            ToClient::Submitted { job } => job,
            other => panic!("not submitted: {other:?}"),
        }
    }

    fn act(&mut self, job: JobId, action: JobAction) -> ToClient {
        self.say(CLIENT, ToMaster::Control { job, action, by: "ada".to_owned() })
    }

    /// The manager of a running job reports that the job has ended.
    fn end(&mut self, job: JobId, run: u32, outcome: JobOutcome) {
        let submitted_at = self.master.dispatch().job(job).expect("the job is known").0.submitted_at;
        let (estimated, means) = (None, Box::default());
        let body = ToMaster::JobEnded { job, submitted_at, run, outcome, estimated, means };
        self.say(Address::JobManager(job), body);
    }

    /// Handles wakeups until no work is left to do at once.
    fn settle(&mut self) {
        while let Some(due) = self.master.next_wakeup().filter(|due| *due <= Instant(self.now.0 + 10)) {
            self.now = self.now.max(due);
            self.handle(Event::Wakeup);
        }
    }

    /// Restarts the master, from a snapshot or from the whole log.
    fn restart(&mut self, from_snapshot: bool) {
        let changes = if from_snapshot { self.master.durable() } else { self.changes.clone() };
        self.master = master(&changes);
        self.handle(Event::Connected { peer: Address::Master, incarnation: 0 });
    }

    fn outcome(&self, job: JobId) -> Option<JobOutcome> {
        match self.master.dispatch().job(job)?.1 {
            JobState::Ended(end) => Some(end.outcome),
            _ => None,
        }
    }

    /// The jobs that have started, in this order.
    fn started(&self) -> Vec<JobId> {
        let started = |change: &Change| if let Change::JobStarted { job } = change { Some(*job) } else { None };
        self.changes.iter().filter_map(started).collect()
    }
}

fn master(changes: &[Change]) -> Master {
    let queue = |(name, limit): (&str, Option<u32>)| QueueSpec { max_running_jobs: limit, ..QueueSpec::named(name) };
    let queues = QueueTree::new(QUEUES.into_iter().map(queue).collect()).expect("a valid tree");
    let sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };
    let mut settings = MasterSettings::default();
    settings.dispatch.kept_jobs = 1_000_000;
    let mut master = Preset::FIFO.master(Epoch(1), settings, queues, sealing);
    master.recover(changes);
    master
}

fn spec(queue: &str) -> JobSpec {
    let stage = StageSpec {
        name: "s".to_owned(),
        tasks: TaskSet::Count(1),
        program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
        resources: ResourceSpec { basic: Resources::new(1_000, 0), custom: Vec::new() },
        ..StageSpec::default()
    };
    JobSpec { stages: vec![stage], queue: queue.to_owned(), user: "ada".to_owned(), ..JobSpec::default() }
}

fn after(jobs: &[JobId]) -> JobSpec {
    JobSpec { after_jobs: jobs.to_vec(), ..spec("root.free") }
}

// ---- compared with the simple rule ---------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Debug)]
enum State {
    Pending,
    Started,
    Ended(bool),
}

struct Known {
    spec: JobSpec,
    held: bool,
    has_started: bool,
    run: u32,
    state: State,
}

/// The simple rule: checks all pending jobs in order, again and again, until none ends.
#[derive(Default)]
struct Simple {
    /// Some jobs wait for others to end with any outcome: none starts before all jobs that have to end have ended.
    has_any: bool,
    jobs: BTreeMap<JobId, Known>,
    started: Vec<JobId>,
}

impl Simple {
    fn submit(&mut self, job: JobId, spec: &JobSpec) {
        let held = spec.held;
        let known = Known { spec: spec.clone(), held, has_started: false, run: 0, state: State::Pending };
        self.jobs.insert(job, known);
        self.settle();
    }

    fn has_failed_dependency(&self, job: JobId) -> bool {
        let known = &self.jobs[&job];
        !known.has_started && known.spec.after_jobs.iter().any(|on| self.jobs[on].state == State::Ended(false))
    }

    fn may_start(&self, job: JobId) -> bool {
        let known = &self.jobs[&job];
        let succeeded = |on: &JobId| self.jobs[on].state == State::Ended(true);
        let ended = |on: &JobId| matches!(self.jobs[on].state, State::Ended(_));
        let are_met = known.spec.after_jobs.iter().all(succeeded) && known.spec.after_jobs_any.iter().all(ended);
        let limit = QUEUES.iter().find(|(name, _)| *name == known.spec.queue).and_then(|(_, limit)| *limit);
        let is_running = |other: &&Known| other.state == State::Started && other.spec.queue == known.spec.queue;
        let running = self.jobs.values().filter(is_running).count();
        (known.has_started || are_met) && limit.is_none_or(|limit| running < limit as usize)
    }

    fn settle(&mut self) {
        let mut ended_some = true;
        while std::mem::take(&mut ended_some) {
            let pending = self.jobs.iter().filter(|(_, known)| known.state == State::Pending && !known.held);
            let mut candidates: Vec<_> = pending.map(|(id, known)| (Reverse(known.spec.priority), *id)).collect();
            candidates.sort_unstable();
            let has_to_end = candidates.iter().any(|(_, job)| self.has_failed_dependency(*job));
            for (_, job) in candidates {
                if self.has_failed_dependency(job) {
                    self.jobs.get_mut(&job).unwrap().state = State::Ended(false);
                    ended_some = true;
                } else if self.may_start(job) && !(self.has_any && has_to_end) {
                    let known = self.jobs.get_mut(&job).unwrap();
                    (known.state, known.has_started) = (State::Started, true);
                    self.started.push(job);
                }
            }
        }
    }

    fn pick(&self, chance: &mut Chance, suits: impl Fn(&Known) -> bool) -> Option<JobId> {
        let all: Vec<JobId> = self.jobs.iter().filter(|(_, known)| suits(known)).map(|(id, _)| *id).collect();
        (!all.is_empty()).then(|| all[chance.below(all.len() as u64) as usize])
    }
}

fn drawn(chance: &mut Chance, known: u64, has_any: bool) -> JobSpec {
    let mut job = spec(QUEUES[chance.below(3_u64) as usize].0);
    job.priority = chance.below(3_u64) as i32;
    job.held = chance.below(8_u64) == 0;
    for _ in 0..chance.below(4_u64) * u64::from(known > 0) {
        // Recent jobs form chains. The same job may be named twice, and in both lists.
        let on = JobId(known - chance.below(known.min(6)));
        if has_any && chance.below(3_u64) == 0 { &mut job.after_jobs_any } else { &mut job.after_jobs }.push(on);
    }
    job
}

#[test]
fn jobs_start_and_end_as_if_all_were_checked_after_each_event() {
    for seed in 0..60 {
        let mut chance = Chance::new(seed, "turns");
        let (mut jobs, mut simple) = (Jobs::new(), Simple { has_any: seed % 2 == 1, ..Simple::default() });
        for step in 0..250 {
            match chance.below(12_u64) {
                0..=4 => {
                    let spec = drawn(&mut chance, simple.jobs.len() as u64, simple.has_any);
                    let job = jobs.submit(spec.clone());
                    simple.submit(job, &spec);
                }
                5..=7 => {
                    let Some(job) = simple.pick(&mut chance, |known| known.state == State::Started) else { continue };
                    let outcome = [JobOutcome::Succeeded, JobOutcome::Succeeded, FAILED][chance.below(3_u64) as usize];
                    jobs.end(job, simple.jobs[&job].run, outcome);
                    simple.jobs.get_mut(&job).unwrap().state = State::Ended(outcome == JobOutcome::Succeeded);
                    simple.settle();
                }
                8 => {
                    let held = chance.below(2_u64) == 0;
                    let suits = |known: &Known| !matches!(known.state, State::Ended(_)) && known.held != held;
                    let Some(job) = simple.pick(&mut chance, suits) else { continue };
                    jobs.act(job, if held { JobAction::Hold } else { JobAction::Release });
                    simple.jobs.get_mut(&job).unwrap().held = held;
                    simple.settle();
                }
                9 => {
                    let Some(job) = simple.pick(&mut chance, |known| known.state == State::Pending) else { continue };
                    jobs.act(job, JobAction::Cancel);
                    simple.jobs.get_mut(&job).unwrap().state = State::Ended(false);
                    simple.settle();
                }
                10 => {
                    let Some(job) = simple.pick(&mut chance, |known| known.state == State::Ended(false)) else {
                        continue;
                    };
                    jobs.act(job, JobAction::RerunFailed);
                    let known = simple.jobs.get_mut(&job).unwrap();
                    (known.state, known.held, known.run) = (State::Pending, false, known.run + 1);
                    simple.settle();
                }
                _ => jobs.restart(chance.below(2_u64) == 0),
            }
            jobs.settle();
            assert_eq!(jobs.started(), simple.started, "seed {seed}, step {step}");
            for (job, known) in &simple.jobs {
                let state = match jobs.master.dispatch().job(*job).expect("all jobs are kept").1 {
                    JobState::Pending => State::Pending,
                    JobState::Started => State::Started,
                    JobState::Ended(end) => State::Ended(end.outcome == JobOutcome::Succeeded),
                };
                assert_eq!(state, known.state, "job {job}, seed {seed}, step {step}");
            }
        }
    }
}

// ---- how much an event checks --------------------------------------------------------------------------------------

/// A generous limit on the steps of one event, however many jobs wait.
const FEW: u64 = 20;
/// The same for an event with many consequences, a part of which is left to later events.
const PART: u64 = 1_000;

fn chain(jobs: &mut Jobs, length: u64, priority: impl Fn(u64) -> i32) {
    let mut last = None;
    for number in 0..length {
        last = Some(jobs.submit(JobSpec { priority: priority(number), ..after(last.as_slice()) }));
    }
}

#[test]
fn a_submission_and_an_end_check_only_the_jobs_that_depend_on_them() {
    let most_of = |waiting: u64| {
        let mut jobs = Jobs::new();
        chain(&mut jobs, waiting, |_| 0);
        for _ in 0..waiting / 2 {
            jobs.submit(JobSpec { held: true, ..spec("root.free") });
            jobs.submit(spec("root.one"));
        }
        jobs.most = (0, 0);
        for job in 1..=50 {
            jobs.end(JobId(job), 0, JobOutcome::Succeeded);
            jobs.submit(after(&[JobId(waiting)]));
        }
        assert_eq!(jobs.started().last(), Some(&JobId(51)));
        jobs.most
    };
    let (few, many) = (most_of(100), most_of(10_000));
    assert_eq!(few, many, "the steps of an event do not grow with the number of waiting jobs");
    assert!(few.0 <= FEW, "{few:?}");
}

#[test]
fn a_long_chain_whose_first_job_fails_ends_in_parts_with_proportional_work() {
    for (length, priority) in [(10_000_u64, 0), (3_000, 1)] {
        let mut jobs = Jobs::new();
        chain(&mut jobs, length, |number| priority * number as i32);
        let before = jobs.master.dispatch().steps();
        jobs.most = (0, 0);
        jobs.end(JobId(1), 0, FAILED);
        assert_eq!(jobs.outcome(JobId(length)), None, "the rest is left to later events");
        jobs.settle();
        let is_ended = |job| matches!(jobs.outcome(JobId(job)), Some(JobOutcome::DependencyFailed { .. }));
        assert!((2..=length).all(is_ended));
        let steps = jobs.master.dispatch().steps() - before;
        assert!(steps <= 5 * length && jobs.most.0 <= PART && jobs.most.1 <= 501, "{steps} steps, {:?}", jobs.most);
    }
}

#[test]
fn many_jobs_after_one_job_start_in_order_and_in_parts() {
    let mut jobs = Jobs::new();
    jobs.submit(spec("root.free"));
    for number in 0..20_000 {
        jobs.submit(JobSpec { priority: number % 3, ..after(&[JobId(1)]) });
    }
    jobs.most = (0, 0);
    jobs.end(JobId(1), 0, JobOutcome::Succeeded);
    assert_eq!(jobs.started(), [JobId(1)], "all jobs are notified before the first starts");
    jobs.settle();
    let mut wanted: Vec<JobId> = (2..=20_001).map(JobId).collect();
    wanted.sort_by_key(|job| (Reverse((job.0 - 2) % 3), *job));
    assert_eq!(jobs.started()[1..], wanted[..]);
    assert!(jobs.most.0 <= PART, "{:?}", jobs.most);
}

#[test]
fn a_job_after_thousands_is_notified_of_each_end_once() {
    let mut jobs = Jobs::new();
    let first: Vec<JobId> = (0..5_000).map(|_| jobs.submit(spec("root.free"))).collect();
    let last = jobs.submit(after(&first));
    let before = jobs.master.dispatch().steps();
    first.iter().for_each(|job| jobs.end(*job, 0, JobOutcome::Succeeded));
    assert_eq!(jobs.started().last(), Some(&last));
    assert!(jobs.master.dispatch().steps() - before <= 5 * 5_000);
    let many = JobSpec { after_jobs: vec![last; 10_001], ..spec("root.free") };
    let refused = jobs.say(CLIENT, ToMaster::Submit { spec: Arc::new(many), key: None });
    assert!(matches!(refused, ToClient::Refused(refusal) if refusal.message.contains("at most 10000")));
}

#[test]
fn the_consequences_of_an_event_continue_after_a_crash() {
    let mut jobs = Jobs::new();
    chain(&mut jobs, 2_000, |_| 0);
    jobs.end(JobId(1), 0, FAILED);
    assert_eq!(jobs.outcome(JobId(2_000)), None);
    for from_snapshot in [false, true] {
        jobs.restart(from_snapshot);
    }
    jobs.settle();
    assert!((2..=2_000).all(|job| jobs.outcome(JobId(job)).is_some()));
    let ends = jobs.changes.iter().filter(|change| matches!(change, Change::JobEnded { .. })).count();
    assert_eq!(ends, 2_000, "each job ends once");
}

// ---- what users change ---------------------------------------------------------------------------------------------

fn update(jobs: &mut Jobs, job: JobId, update: JobUpdate) -> ToClient {
    jobs.say(CLIENT, ToMaster::Update { job, update: Box::new(update), by: "bob".to_owned() })
}

#[test]
fn a_pending_job_is_reordered_when_its_priority_or_queue_changes() {
    for restart in [None, Some(false), Some(true)] {
        let mut jobs = Jobs::new();
        let ids: Vec<JobId> = (0..4).map(|_| jobs.submit(spec("root.one"))).collect();
        let urgent = JobUpdate { priority: Some(5), ..JobUpdate::default() };
        assert_eq!(update(&mut jobs, ids[2], urgent.clone()), ToClient::Done);
        assert_eq!(update(&mut jobs, ids[2], urgent), ToClient::AsBefore);
        restart.into_iter().for_each(|from_snapshot| jobs.restart(from_snapshot));
        jobs.end(ids[0], 0, JobOutcome::Succeeded);
        assert_eq!(jobs.started(), [ids[0], ids[2]]);
        let elsewhere = |queue: &str| JobUpdate { queue: Some(queue.to_owned()), ..JobUpdate::default() };
        assert_eq!(update(&mut jobs, ids[3], elsewhere("free")), ToClient::Done);
        assert_eq!(jobs.started(), [ids[0], ids[2], ids[3]]);
        restart.into_iter().for_each(|from_snapshot| jobs.restart(from_snapshot));
        assert_eq!(jobs.master.dispatch().queue_name(ids[3]), Some("root.free"));
        let refused =
            [(ids[1], "root.none", "not found"), (ids[0], "free", "has ended"), (JobId(9), "free", "job 9 not found")];
        for (job, queue, why) in refused {
            let answer = update(&mut jobs, job, elsewhere(queue));
            assert!(matches!(&answer, ToClient::Refused(refusal) if refusal.message.contains(why)), "{answer:?}");
        }
    }
}
