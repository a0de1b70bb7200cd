//! What a job manager that places its own tasks reports about its wants and does with its allowance, message by
//! message. Only the manager is real: the test acts as the master and all nodes.

use crate::world::{digest_of, job, sealing, stage};
use amalgam_core::job_manager::{CorrectionRules, JobManager, JobManagerSettings};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{
    Address, AdmittedJob, JobAction, ListedNode, Message, NodeList, NodeReport, RequestedActions, Rule, ToJobManager,
    ToMaster,
};
use amalgam_core::role::{Change, Event, LostCause, Outbox, Record, Role, Trigger};
use amalgam_core::vocabulary::{
    AllowanceRequest, AttemptId, Duration, EndReason, Ended, EndedFiles, Epoch, ExecutionType, HostId, InputSpec,
    Instant, JobId, NodeId, NodeWaits, OutputFile, QueueId, Resources, Sample, StageSpec, Totals, Usage, UserId, WHOLE,
    WaitMatrix, Workdir,
};
use std::sync::Arc;

use ExecutionType::{Auto, Guaranteed, Opportunistic};

const CORE: Resources = Resources::new(1_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn cores(cores: u64) -> Totals {
    let mut all = Totals::ZERO;
    all.add_times(&CORE, cores);
    all
}

/// Tasks that are expected to run for 4 s.
fn of_kind(execution: ExecutionType, tasks: u32, cpu_millis: u32) -> StageSpec {
    StageSpec { execution, expected: Some(seconds(4)), ..stage("only", tasks, "4s", cpu_millis) }
}

fn named(name: &str, stage: StageSpec) -> StageSpec {
    StageSpec { name: name.to_owned(), ..stage }
}

struct Managed {
    manager: JobManager,
    now: Instant,
    out: Outbox,
    number: u32,
}

impl Managed {
    /// The manager of a job that knows this many idle nodes, and is entitled to this many cores, but has no allowance
    /// yet.
    fn new(corrections: Option<CorrectionRules>, stages: Vec<StageSpec>, nodes: u32, share: u64) -> Managed {
        Managed::by(Preset::APOLLO, corrections, stages, nodes, share)
    }

    fn by(
        mut preset: Preset,
        corrections: Option<CorrectionRules>,
        stages: Vec<StageSpec>,
        nodes: u32,
        share: u64,
    ) -> Managed {
        let queueing = preset.entitled_mut().expect("the preset has entitlements");
        queueing.corrections = corrections;
        queueing.allowance.starved_after = seconds(1_000);
        let job = Arc::new(AdmittedJob {
            id: JobId(1),
            resources: stages.iter().map(|stage| stage.resources.basic).collect(),
            near: vec![Arc::default(); stages.len()],
            places: Vec::new(),
            spec: Arc::new(job(stages)),
            user: UserId(0),
            queue: QueueId(1),
            default_timeout: None,
            recalled: Vec::new(),
            only_guaranteed: false,
            preset: None,
            host: HostId::SERVER,
            submitted_at: Instant::ZERO,
        });
        let manager = preset.job_manager(job.clone(), Epoch(1), JobManagerSettings::default(), sealing(Epoch(1)));
        let mut managed = Managed { manager, now: Instant::ZERO, out: Outbox::default(), number: 0 };
        managed.deliver(Address::Master, ToJobManager::start(Arc::clone(&job), Some(Box::new(cores(share)))));
        let node = ListedNode {
            closed_reason: None,
            capacity: Resources::new(64_000, 0),
            attributes: Arc::default(),
            report: NodeReport::default(),
            waits: None,
        };
        let (nodes, best) = (vec![node; nodes as usize], (0..nodes).collect());
        let list = Arc::new(NodeList { nodes, best, every: seconds(1), ..NodeList::default() });
        managed.deliver(Address::Master, ToJobManager::Nodes { list, margins: Arc::default() });
        managed
    }

    fn deliver(&mut self, from: Address, body: ToJobManager) {
        self.manager.handle(self.now, Event::Message { from, body }, &mut self.out);
    }

    /// The job is to run its failed tasks again.
    fn reopen(&mut self) {
        let (job, requested_actions) =
            (Arc::clone(self.manager.job()), RequestedActions { run: 1, ..RequestedActions::default() });
        self.deliver(
            Address::Master,
            ToJobManager::Start { job, share: None, requested_actions, lost: Arc::default() },
        );
    }

    fn act(&mut self, action: JobAction) {
        self.deliver(Address::Master, ToJobManager::Act(action));
    }

    /// The master answers the report with this number.
    fn answer(&mut self, answers: u32, allowance: Totals) {
        self.number += 1;
        let (number, allowance) = (self.number, Box::new(allowance));
        self.deliver(Address::Master, ToJobManager::Allowance { number, answers, allowance });
    }

    /// The master answers the latest report, and allows this many cores.
    fn allow(&mut self, allowed: u64) {
        let answers = self.text().last().map_or(0, |wants| wants.report);
        self.answer(answers, cores(allowed));
    }

    fn text(&self) -> Vec<AllowanceRequest> {
        let text = self.out.sends.iter().filter_map(|(_, message)| match message {
            Message::ToMaster(ToMaster::AllowanceRequest { request, .. }) => Some(**request),
            _ => None,
        });
        text.collect()
    }

    /// All attempts that were sent, with their node, rule and whether they are opportunistic.
    fn sent(&self) -> Vec<(AttemptId, NodeId, Rule, bool)> {
        let sent = self.out.changes.iter().filter_map(|change| match change {
            Change::Launched { attempt, node, rule, opportunistic, .. } => {
                Some((*attempt, *node, *rule, *opportunistic))
            }
            _ => None,
        });
        sent.collect()
    }

    fn node_of(&self, attempt: AttemptId) -> NodeId {
        self.sent().iter().find(|sent| sent.0 == attempt).expect("the attempt was sent").1
    }

    fn promoted(&self) -> Vec<AttemptId> {
        let promoted = self.out.changes.iter().filter_map(|change| match change {
            Change::Promoted { attempt, .. } => Some(*attempt),
            _ => None,
        });
        promoted.collect()
    }

    /// How many were sent as guaranteed and as opportunistic attempts.
    fn kinds(&self) -> (usize, usize) {
        let opportunistic = self.sent().iter().filter(|sent| sent.3).count();
        (self.sent().len() - opportunistic, opportunistic)
    }

    fn node_says(&mut self, attempt: AttemptId, body: ToJobManager) {
        let node = self.node_of(attempt);
        self.deliver(Address::Node(node), body);
    }

    fn started(&mut self, attempt: AttemptId) {
        self.node_says(attempt, ToJobManager::Started { attempt, running_for: Duration::ZERO, at_node: None });
    }

    fn finished(&mut self, attempt: AttemptId, reason: EndReason) {
        self.ended(attempt, Ended::without_run(reason));
    }

    fn ended(&mut self, attempt: AttemptId, ended: Arc<Ended>) {
        self.node_says(attempt, ToJobManager::Finished { attempt, ended, instead: None });
    }

    /// The attempt's node reports that guaranteed tasks wait there for this time.
    fn is_busy_for(&mut self, attempt: AttemptId, busy: u64) {
        let capacity = Resources::new(64_000, 0);
        let matrix = WaitMatrix::new(&capacity, |_, _| seconds(busy), std::iter::empty(), |_, _| Duration::ZERO);
        let waits = Arc::new(NodeWaits { matrix, ..NodeWaits::default() });
        self.node_says(attempt, ToJobManager::Waits { waits, starts: Box::default() });
    }
}

// ---- what it reports -----------------------------------------------------------------------------------------------

#[test]
fn the_smallest_task_that_can_start_is_reported_even_if_the_sum_is_unchanged() {
    let stages = vec![of_kind(Guaranteed, 1, 500), named("large", of_kind(Guaranteed, 4, 1_000))];
    let mut managed = Managed::new(None, stages, 1, 8);
    let smallest = |managed: &Managed| managed.text().last().map(|wants| (wants.report, wants.one.cpu_millis()));
    assert_eq!(smallest(&managed), Some((1, 500)));
    let mut half = Totals::ZERO;
    half.add(&Resources::new(500, 0));
    managed.answer(1, half);
    assert_eq!(managed.kinds(), (1, 0), "the small task was sent");
    let small = managed.sent()[0].0;
    managed.is_busy_for(small, 0);
    let text: Vec<Totals> = managed.text().iter().map(|wants| wants.all).collect();
    assert_eq!(text, [half.zip(&cores(4), |small, large| small + large); 2]);
    assert_eq!(smallest(&managed), Some((2, 1_000)));
}

#[test]
fn a_job_above_its_allowance_reports_as_it_holds_less() {
    for (first, then, holds) in [(32, 16, vec![29, 27, 25]), (17, 16, vec![16])] {
        let mut managed = Managed::new(None, vec![of_kind(Guaranteed, 200, 1_000)], 1, 100);
        managed.allow(first);
        assert_eq!(managed.kinds(), (first as usize, 0));
        managed.allow(then);
        let text = managed.text();
        assert_eq!(text.last().map(|wants| wants.holds), Some(cores(first)), "its allowance is less than it holds");
        for (attempt, ..) in managed.sent().into_iter().take(holds.len() * 2 + 1) {
            managed.finished(attempt, EndReason::Exit(0));
        }
        let holds: Vec<Totals> = holds.into_iter().map(cores).collect();
        let heard: Vec<Totals> = managed.text()[text.len()..].iter().map(|wants| wants.holds).collect();
        assert_eq!(heard, holds, "{then} of {first} cores are allowed");
    }
}

#[test]
fn tasks_that_suit_no_node_are_not_reported_as_wants() {
    let large = |tasks| named("large", of_kind(Auto, tasks, 65_000));
    let managed = Managed::new(None, vec![large(9)], 2, 8);
    assert_eq!(managed.text(), []);
    let managed = Managed::new(None, vec![large(9), of_kind(Auto, 3, 1_000)], 2, 8);
    assert_eq!(managed.text().last().map(|wants| (wants.all, wants.one)), Some((cores(3), CORE)));
}

#[test]
fn a_job_that_runs_again_reports_no_earlier_allowance() {
    let mut managed = Managed::new(None, vec![of_kind(Guaranteed, 1, 1_000)], 1, 4);
    managed.allow(4);
    managed.finished(managed.sent()[0].0, EndReason::Exit(1));
    managed.reopen();
    let wants = managed.text().pop().expect("the job has wants again");
    assert_eq!((wants.all, wants.allowance, wants.number), (cores(1), Totals::ZERO, 0));
    assert_eq!(managed.sent().len(), 1, "nothing is sent before the next allowance");
    managed.allow(4);
    assert_eq!(managed.sent().len(), 2);
}

// ---- what it sends and promotes ------------------------------------------------------------------------------------

#[test]
fn tasks_are_sent_only_after_the_answer_to_the_latest_report() {
    let mut managed = Managed::new(None, vec![of_kind(Auto, 4, 1_000)], 4, 4);
    managed.act(JobAction::Hold);
    managed.act(JobAction::Release);
    let text: Vec<u32> = managed.text().iter().map(|wants| wants.report).collect();
    assert_eq!(text, [1, 2, 3]);
    for answers in [1, 2] {
        managed.answer(answers, Totals::ZERO);
        assert_eq!(managed.kinds(), (0, 0), "the answer is to an earlier report");
    }
    managed.answer(3, cores(2));
    assert_eq!(managed.kinds(), (2, 2));
}

/// This many tasks, all sent as opportunistic attempts, each to another of 16 nodes.
fn opportunistic(corrections: Option<CorrectionRules>, tasks: u32) -> (Managed, Vec<AttemptId>) {
    let mut managed = Managed::new(corrections, vec![of_kind(Opportunistic, tasks, 1_000)], 16, u64::from(tasks));
    managed.allow(0);
    assert_eq!(managed.kinds(), (0, tasks as usize));
    let attempts: Vec<AttemptId> = managed.sent().into_iter().map(|sent| sent.0).collect();
    (managed, attempts)
}

#[test]
fn promotion_prefers_an_immediate_start_then_running_then_waiting_then_yielding() {
    let (mut managed, attempts) = opportunistic(None, 4);
    let [yields, runs, waits, starts] = attempts[..] else { panic!("{attempts:?}") };
    assert_eq!(managed.sent().iter().map(|sent| sent.1).collect::<std::collections::BTreeSet<_>>().len(), 4);
    managed.started(yields);
    managed.now += seconds(1);
    managed.started(runs);
    managed.node_says(yields, ToJobManager::Yields { attempt: yields, has_cpu: false });
    managed.is_busy_for(waits, 60);
    let order = [starts, runs, waits, yields];
    for allowed in 1..=4 {
        managed.allow(allowed as u64);
        assert_eq!(managed.promoted(), order[..allowed]);
    }
}

#[test]
fn an_attempt_with_a_long_wait_is_launched_as_guaranteed_elsewhere_and_not_promoted() {
    let (mut managed, attempts) = opportunistic(Some(CorrectionRules::USUAL), 1);
    managed.is_busy_for(attempts[0], 60);
    managed.allow(1);
    let sent = managed.sent();
    let Some((_, node, Rule::Duplicate, false)) = sent.get(1).copied() else { panic!("{sent:?}") };
    assert_ne!(node, sent[0].1);
    assert_eq!(managed.promoted(), []);
    let upgraded = |record: &Record| matches!(record, Record::Duplicated { attempt, trigger: Trigger::Upgraded, .. } if *attempt == attempts[0]);
    assert!(managed.out.records.iter().any(upgraded), "{:?}", managed.out.records);
}

#[test]
fn attempts_launched_elsewhere_do_not_prevent_promotions() {
    const MANY: u32 = 50;
    let stages = vec![of_kind(Opportunistic, MANY, 1_000)];
    let mut managed = Managed::new(Some(CorrectionRules::USUAL), stages, 3 * MANY, u64::from(MANY));
    managed.allow(0);
    let attempts: Vec<AttemptId> = managed.sent().into_iter().map(|sent| sent.0).collect();
    attempts.iter().for_each(|attempt| managed.is_busy_for(*attempt, 60));
    managed.allow(u64::from(MANY));
    let elsewhere = managed.sent().iter().filter(|sent| sent.2 == Rule::Duplicate).count();
    assert_eq!(elsewhere + managed.promoted().len(), MANY as usize, "{:?}", managed.sent());
    assert!(elsewhere > 32, "{elsewhere}");
}

#[test]
fn a_promoted_attempt_is_expected_to_start_like_guaranteed_work() {
    let (mut managed, attempts) = opportunistic(None, 1);
    managed.now += seconds(5);
    managed.is_busy_for(attempts[0], 60);
    managed.allow(1);
    assert_eq!(managed.promoted(), attempts);
    managed.now += seconds(61);
    managed.started(attempts[0]);
    let received = managed.out.records.iter().find_map(|record| match record {
        Record::Started { waited, expected, promoted, .. } => Some((*waited, *expected, *promoted)),
        _ => None,
    });
    assert_eq!(received, Some((seconds(66), Some(seconds(65)), true)));
}

#[test]
fn a_waiting_copy_is_promoted_and_an_ended_task_is_not_duplicated() {
    let map = StageSpec { outputs: vec!["o".to_owned()], ..named("map", of_kind(Opportunistic, 1, 1_000)) };
    let inputs = vec![InputSpec { stage: 0, files: "*".to_owned() }];
    let reduce = StageSpec { after: vec![0], inputs, ..named("reduce", of_kind(Guaranteed, 1, 1_000)) };
    let mut managed = Managed::new(Some(CorrectionRules::USUAL), vec![map, reduce], 16, 4);
    managed.allow(0);
    let writer = managed.sent()[0].0;
    managed.started(writer);
    let output = OutputFile { name: "o".to_owned(), digest: digest_of("map/0/o"), bytes: 1_000 };
    let files = Some(Box::new(EndedFiles { outputs: vec![output.clone()], missing: Vec::new() }));
    let usage = Usage { wall: seconds(4), ..Usage::default() };
    managed.ended(writer, Arc::new(Ended { reason: EndReason::Exit(0), usage, message: None, files }));
    managed.allow(1);
    let reader = managed.sent()[1].0;
    let files = Box::new([(output.digest, seconds(60))]);
    managed.node_says(reader, ToJobManager::Lacks { attempt: reader, files });
    let Some((copy, _, Rule::Copy, true)) = managed.sent().get(2).copied() else { panic!("{:?}", managed.sent()) };
    managed.is_busy_for(copy, 60);
    managed.allow(2);
    assert_eq!((managed.promoted(), managed.sent().len()), (vec![copy], 3));
}

#[test]
fn the_first_attempt_to_start_is_kept_also_after_a_race() {
    let mut stage = of_kind(Opportunistic, 6, 1_000);
    Arc::make_mut(&mut stage.program).workdir = Workdir::Own;
    let mut managed = Managed::new(Some(CorrectionRules::USUAL), vec![stage], 16, 12);
    managed.allow(0);
    let attempts: Vec<AttemptId> = managed.sent().into_iter().map(|sent| sent.0).collect();
    attempts.iter().for_each(|attempt| managed.started(*attempt));
    managed.now += seconds(4);
    for attempt in &attempts[1..] {
        let usage = Usage { wall: seconds(4), cpu: seconds(4), ..Usage::default() };
        managed.ended(*attempt, Arc::new(Ended { reason: EndReason::Exit(0), usage, message: None, files: None }));
    }
    let slow = attempts[0];
    for _ in 0..3 {
        managed.now += seconds(10);
        let running_for = managed.now.since(Instant::ZERO);
        let sample =
            Sample { running_for, reported: Some(WHOLE / 50), cpu: Duration(running_for.0 / 50), read_bytes: 0 };
        managed.node_says(slow, ToJobManager::Progress { samples: vec![(slow, sample)].into() });
    }
    let Some((rival, _, Rule::Straggler, true)) = managed.sent().get(6).copied() else {
        panic!("{:?}", managed.sent())
    };
    // The race is over before the rival starts, and the rival's task is launched once more elsewhere.
    managed.finished(slow, EndReason::NodeLost);
    managed.is_busy_for(rival, 60);
    managed.allow(1);
    let Some((duplicate, _, Rule::Duplicate, false)) = managed.sent().get(7).copied() else {
        panic!("{:?}", managed.sent())
    };
    managed.started(rival);
    let superseded = |change: &Change| matches!(change, Change::Lost { attempt, cause: LostCause::Superseded, .. } if *attempt == duplicate);
    assert!(managed.out.changes.iter().any(superseded), "{:?}", managed.out.changes);
}

#[test]
fn apollo_plus_promotes_sent_attempts_before_it_sends_new_ones() {
    for (preset, promoted) in [(Preset::APOLLO, 0), (Preset::APOLLO_PLUS, 2)] {
        let mut managed = Managed::by(preset, None, vec![of_kind(Auto, 40, 1_000)], 16, 4);
        managed.allow(0);
        let attempts: Vec<AttemptId> = managed.sent().into_iter().map(|sent| sent.0).collect();
        let [yields, runs, waits, busy] = attempts[..] else { panic!("{attempts:?}") };
        managed.started(yields);
        managed.started(runs);
        managed.node_says(yields, ToJobManager::Yields { attempt: yields, has_cpu: false });
        managed.is_busy_for(busy, 60);
        managed.allow(3);
        assert_eq!(managed.promoted(), [yields, waits][..promoted], "{}", preset.name());
        assert_eq!(managed.kinds().0, 3 - promoted, "the rest of the allowance is for new attempts: {}", preset.name());
    }
}

#[test]
fn apollo_plus_duplicates_a_waiting_attempt_although_its_run_time_is_long() {
    let duplicates = |rules| {
        let mut managed = Managed::new(Some(rules), vec![of_kind(Guaranteed, 1, 1_000)], 16, 4);
        managed.allow(1);
        let attempt = managed.sent()[0].0;
        // It is expected to run for 4 s, and half of that is longer than its wait.
        let waits =
            ToJobManager::Waits { waits: Arc::default(), starts: Box::new([(attempt, Duration::from_millis(1_500))]) };
        managed.node_says(attempt, waits);
        managed.sent().iter().filter(|sent| sent.2 == Rule::Duplicate).count()
    };
    assert_eq!(duplicates(CorrectionRules::USUAL), 0);
    let further = Preset::APOLLO_PLUS.entitled().and_then(|queueing| queueing.corrections);
    assert_eq!(duplicates(further.expect("the preset has corrections")), 1);
}

#[test]
fn apollo_plus_reports_the_work_before_the_wants() {
    let text = |preset: Preset| -> Vec<&'static str> {
        let managed = Managed::by(preset, None, vec![of_kind(Guaranteed, 3, 1_000)], 4, 4);
        let of = managed.out.sends.iter().filter_map(|(_, message)| match message {
            Message::ToMaster(ToMaster::Demand { work, asks, .. })
                if asks.is_empty() && work.remaining == work.total =>
            {
                Some("work")
            }
            Message::ToMaster(ToMaster::AllowanceRequest { .. }) => Some("wants"),
            _ => None,
        });
        of.collect()
    };
    assert_eq!(text(Preset::APOLLO), ["wants"]);
    assert_eq!(text(Preset::APOLLO_PLUS), ["work", "wants"]);
}
