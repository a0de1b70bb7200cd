//! Costs of a submission, an end, a cancellation and a new priority for the master while many other jobs wait.
//!
//! The real `Master` role gets the messages of clients and job managers; there is no store, no network and no process. Half of
//! the jobs wait in a chain, each for the one before it; the others wait for the limit of their queue, with random
//! priorities. Each event is followed by others that restore the numbers. Only calls of `handle` are timed, with the
//! wakeups that they request; the sizes are measured alternately, so that other load on the machine affects all.

use super::{OnCore, SEALING};
use amalgam_core::dispatch::JobState;
use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, JobAction, JobOutcome, JobUpdate, Message, ToClient, ToMaster};
use amalgam_core::role::{Change, Event, Outbox, Role};
use amalgam_core::vocabulary::{
    Chance, ClientId, Epoch, Instant, JobId, JobSpec, Program, QueueSpec, ResourceSpec, Resources, StageSpec, TaskSet,
};
use amalgam_sim::statistics::percentile;
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const CHAINED: &str = "root.chained";
const LIMITED: &str = "root.limited";
const PRIORITIES: u64 = 1_000;

/// The timed events, in this order everywhere.
pub const EVENTS: [&str; 6] = [
    "submit the next of the chain",
    "end the first of the chain",
    "submit to the limited queue",
    "end a job of the limited queue",
    "cancel one that waits there",
    "change the priority of one",
];

/// The cost of one event while this number of jobs wait: the median over rounds.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub jobs: u64,
    pub each: [Duration; EVENTS.len()],
    /// The lower bound: to remove an entry from an ordered map of this size and insert another one.
    pub floor: Duration,
}

/// Measures with each of these numbers of waiting jobs, in rounds of `events` events of each kind.
///
/// # Panics
/// If the master does not react as expected, which is a bug.
pub fn measure(sizes: &[u64], rounds: usize, events: u32) -> Vec<Waiting> {
    let mut masters: Vec<Jobs> = sizes.iter().map(|&size| Jobs::waiting(size)).collect();
    let mut samples: Vec<[Vec<Duration>; EVENTS.len() + 1]> = sizes.iter().map(|_| Default::default()).collect();
    for _ in 0..rounds {
        for (jobs, samples) in masters.iter_mut().zip(&mut samples) {
            let round = jobs.round(events);
            samples.iter_mut().zip(round).for_each(|(of_kind, took)| of_kind.push(took));
        }
    }
    let median = |of: &mut Vec<Duration>| {
        of.sort_unstable();
        percentile(of, 50)
    };
    let summary = |(&jobs, mut samples): (&u64, [Vec<Duration>; EVENTS.len() + 1])| {
        let each = std::array::from_fn(|kind| median(&mut samples[kind]));
        Waiting { jobs, each, floor: median(&mut samples[EVENTS.len()]) }
    };
    sizes.iter().zip(samples).map(summary).collect()
}

/// A master without nodes, whose jobs end when the benchmark ends them.
struct Jobs {
    master: Master,
    now: Instant,
    out: Outbox,
    chance: Chance,
    /// The running job of the chain, and its last one.
    chain: (JobId, JobId),
    /// The running job of the limited queue, and those that wait there.
    limited: JobId,
    waiting: Vec<JobId>,
    map: BTreeMap<(u64, u64), [u64; 8]>,
}

impl Jobs {
    fn waiting(jobs: u64) -> Jobs {
        let queues =
            vec![QueueSpec::named(CHAINED), QueueSpec { max_running_jobs: Some(1), ..QueueSpec::named(LIMITED) }];
        let queues = QueueTree::new(queues).expect("a sound tree");
        let master = Preset::default().master(Epoch(1), MasterSettings::default(), queues, SEALING);
        let mut jobs_of = Jobs {
            master,
            now: Instant(1),
            out: Outbox::default(),
            chance: Chance::new(jobs, "waiting jobs"),
            chain: (JobId(0), JobId(0)),
            limited: JobId(0),
            waiting: Vec::new(),
            map: BTreeMap::new(),
        };
        jobs_of.handle(Event::Connected { peer: Address::Master, incarnation: 0 });
        let first = jobs_of.submit(spec(CHAINED));
        jobs_of.chain = (first, first);
        jobs_of.limited = jobs_of.submit(spec(LIMITED));
        for number in 0..jobs / 2 {
            jobs_of.lengthen();
            jobs_of.queue_up();
            jobs_of.map.insert((number * 7_919 % jobs, number), [number; 8]);
        }
        jobs_of
    }

    /// The CPU time of the master for an event and for the wakeups that the event requests at once.
    fn handle(&mut self, event: Event<ToMaster>) -> Duration {
        self.out.clear();
        self.now.0 += 1;
        let watch = OnCore::start();
        self.master.handle(self.now, event, &mut self.out);
        while let Some(due) = self.master.next_wakeup().filter(|due| *due <= Instant(self.now.0 + 10)) {
            self.now = self.now.max(due);
            self.master.handle(self.now, Event::Wakeup, &mut self.out);
        }
        watch.elapsed()
    }

    fn deliver(&mut self, from: Address, body: ToMaster) -> Duration {
        self.handle(Event::Message { from, body })
    }

    fn ask(&mut self, body: ToMaster) -> Duration {
        let took = self.deliver(Address::Client(ClientId(1)), body);
        let refused =
            self.out.sends.iter().find(|(_, message)| matches!(message, Message::ToClient(ToClient::Refused(_))));
        assert!(refused.is_none(), "refused: {refused:?}");
        took
    }

    fn submit(&mut self, spec: JobSpec) -> JobId {
        self.submit_timed(spec).0
    }

    fn submit_timed(&mut self, spec: JobSpec) -> (JobId, Duration) {
        let took = self.ask(ToMaster::Submit { spec: Arc::new(spec), key: None });
        let submitted = self.out.sends.iter().find_map(|(_, message)| match message {
            Message::ToClient(ToClient::Submitted { job }) => Some(*job),
            _ => None,
        });
        (submitted.expect("an answer"), took)
    }

    /// Submits a job to the chain's end.
    fn lengthen(&mut self) -> Duration {
        let (job, took) = self.submit_timed(JobSpec { after_jobs: vec![self.chain.1], ..spec(CHAINED) });
        self.chain.1 = job;
        took
    }

    /// Submits a job to the limited queue.
    fn queue_up(&mut self) -> Duration {
        let priority = self.chance.below(PRIORITIES) as i32;
        let (job, took) = self.submit_timed(JobSpec { priority, ..spec(LIMITED) });
        self.waiting.push(job);
        took
    }

    fn end(&mut self, job: JobId) -> (JobId, Duration) {
        let (known, state) = self.master.dispatch().job(job).expect("it is known");
        assert_eq!(*state, JobState::Started, "job {job}");
        let submitted_at = known.submitted_at;
        let (estimated, means) = (None, Box::default());
        let body = ToMaster::JobEnded { job, submitted_at, run: 0, outcome: JobOutcome::Succeeded, estimated, means };
        let took = self.deliver(Address::JobManager(job), body);
        let started = self.out.changes.iter().find_map(|change| match change {
            Change::JobStarted { job } => Some(*job),
            _ => None,
        });
        (started.expect("the next begins"), took)
    }

    fn pick(&mut self) -> usize {
        self.chance.below(self.waiting.len() as u64) as usize
    }

    /// The mean of each kind of event, and of the lower bound.
    fn round(&mut self, events: u32) -> [Duration; EVENTS.len() + 1] {
        let mut sums = [Duration::ZERO; EVENTS.len() + 1];
        for _ in 0..events {
            sums[0] += self.lengthen();
            let (next, took) = self.end(self.chain.0);
            self.chain.0 = next;
            sums[1] += took;

            sums[2] += self.queue_up();
            let (next, took) = self.end(self.limited);
            self.limited = next;
            let at = self.waiting.iter().position(|job| *job == next).expect("it waited");
            self.waiting.swap_remove(at);
            sums[3] += took;

            let at = self.pick();
            let job = self.waiting.swap_remove(at);
            sums[4] += self.ask(ToMaster::Control { job, action: JobAction::Cancel, by: "ada".to_owned() });
            self.queue_up();

            let (at, priority) = (self.pick(), self.chance.below(PRIORITIES) as i32);
            let update = JobUpdate { priority: Some(priority), ..JobUpdate::default() };
            let (job, update) = (self.waiting[at], Box::new(update));
            sums[5] += self.ask(ToMaster::Update { job, update, by: "ada".to_owned() });
        }
        sums[EVENTS.len()] = self.floor(events);
        sums.map(|sum| sum / events)
    }

    fn floor(&mut self, events: u32) -> Duration {
        let keys: Vec<(u64, u64)> = self.map.keys().copied().collect();
        let drawn: Vec<(u64, u64)> = (0..events).map(|_| keys[self.chance.below(keys.len() as u64) as usize]).collect();
        let drawn: BTreeSet<(u64, u64)> = drawn.into_iter().collect();
        let watch = OnCore::start();
        for key in &drawn {
            let entry = self.map.remove(key).unwrap_or_default();
            self.map.insert(black_box(*key), entry);
        }
        watch.elapsed()
    }
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
