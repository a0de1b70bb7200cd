//! A journal makes other roles produce the same effects, and a replay detects a role that behaves differently.

use crate::world::baselines;
use amalgam_core::hosting::{Difference, Effects, Entry, Envelope, Replay, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::master::MasterSettings;
use amalgam_core::node::NodeSettings;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToExecutor, ToMaster, ToNode};
use amalgam_core::vocabulary::{
    Attributes, ClientId, Duration, EndReason, Ended, Epoch, ExecutionType, Instant, JobSpec, Key, Mac, NodeId,
    Program, ResourceSpec, Resources, Sealing, StageSpec, TaskSet,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const NODE: NodeId = NodeId(0);
const SEALING: Sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };

fn job(tasks: u32) -> JobSpec {
    let stage = StageSpec {
        name: "s0".to_owned(),
        tasks: TaskSet::Count(tasks),
        program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
        resources: ResourceSpec { basic: Resources::new(1_000, 0), custom: Vec::new() },
        execution: ExecutionType::Guaranteed,
        retries: 1,
        ..StageSpec::default()
    };
    JobSpec { stages: vec![stage], ..JobSpec::default() }
}

/// The journal of a process with a node of two CPUs that runs four tasks, each of which fails the first time.
fn journal(preset: Preset) -> Vec<Entry> {
    let mut roles = Roles::new(preset, Epoch(1), JobManagerSettings::default(), SEALING);
    roles.keep_journal();
    roles.recover(MasterSettings::default(), QueueTree::single(), Vec::new());
    let mut effects = Effects::default();
    let node = roles.name_node("first", &mut effects).unwrap();
    let settings = NodeSettings {
        name: "first".to_owned(),
        capacity: ResourceSpec { basic: Resources::new(2_000, 1_024), custom: Vec::new() },
        attributes: Attributes::default(),
        enforcement: Vec::new(),
        orphan_lease: Duration::from_secs(60),
        stop_grace: Duration::from_secs(1),
        cache_bytes: 10 << 30,
        program: Some("0.1.0".to_owned()),
    };
    roles.add_local_node(node, settings);
    roles.connect_local_node(Instant(1), node, &mut effects);
    roles.executor_connected(Instant(2), 0, &mut effects);
    let submit = ToMaster::Submit { spec: Arc::new(job(4)), key: None };
    let message = Message::ToMaster(submit);
    let envelope = Envelope { from: Address::Client(ClientId(1)), to: Address::Master, message };
    roles.deliver(Instant(3), envelope, &mut effects);

    let (mut now, mut launched, mut tried) = (Instant(10), 0, BTreeSet::new());
    while now < Instant::ZERO + Duration::from_secs(60) {
        let is_order = |envelope: &Envelope| matches!(envelope.to, Address::Executor(_));
        let Some(at) = effects.envelopes.iter().position(is_order) else {
            let Some(wakeup) = roles.next_wakeup() else { break };
            now = wakeup;
            roles.wake_up(now, &mut effects);
            continue;
        };
        let Message::ToExecutor(order) = effects.envelopes.remove(at).message else {
            unreachable!("the message is an order")
        };
        let report = match order {
            ToExecutor::List { .. } => ExecutorReport::Executing { attempts: Vec::new() },
            ToExecutor::Launch(order) => {
                launched += 1;
                let reason = EndReason::Exit(u8::from(tried.insert(order.task)));
                ExecutorReport::Finished { attempt: order.attempt, ended: Ended::without_run(reason) }
            }
            _ => continue,
        };
        let message = Message::ToNode(ToNode::Executor(report));
        let envelope = Envelope { from: Address::Executor(NODE), to: Address::Node(NODE), message };
        roles.deliver(now, envelope, &mut effects);
    }
    assert_eq!(launched, 8, "every task has run twice");
    roles.take_journal()
}

fn replay(journal: impl IntoIterator<Item = Entry>) -> Result<(), Difference> {
    let mut replay = Replay::new(SEALING.mac);
    journal.into_iter().try_for_each(|entry| replay.apply(entry))
}

#[test]
fn a_replay_of_every_preset_has_the_same_effects() {
    for preset in Preset::all().chain(baselines::ALL.iter().copied()) {
        let journal = journal(preset);
        assert!(journal.len() > 60, "{}: {} entries", preset.name(), journal.len());
        assert_eq!(replay(journal), Ok(()), "{}", preset.name());
    }
}

#[test]
fn a_replay_detects_every_kind_of_difference() {
    let journal = journal(Preset::DRF);
    let (mut sends, mut changes, mut records) = (0, 0, 0);
    for at in 0..journal.len() {
        let mut altered = journal.clone();
        let Entry::Handled { left, .. } = &mut altered[at] else { continue };
        sends += u32::from(left.sends.pop().is_some());
        if left == journal_left(&journal[at]) {
            changes += u32::from(left.changes.pop().is_some());
        }
        if left == journal_left(&journal[at]) {
            records += u32::from(left.records.pop().is_some());
        }
        let is_altered = left != journal_left(&journal[at]);
        assert_eq!(replay(altered).is_err(), is_altered, "entry {at}");
    }
    assert!(sends > 0 && changes > 0 && records > 0, "{sends}, {changes}, {records}");
}

fn journal_left(entry: &Entry) -> &amalgam_core::role::Outbox {
    let Entry::Handled { left, .. } = entry else { panic!("no event: {entry:?}") };
    left
}

#[test]
fn a_journal_without_its_start_has_no_role_for_its_entries() {
    let journal = journal(Preset::DRF);
    assert_eq!(replay(journal[1..].to_vec()), Err(Difference::NoRole));
    let without_node = journal.iter().filter(|entry| !matches!(entry, Entry::NodeAdded { .. })).cloned();
    assert_eq!(replay(without_node), Err(Difference::NoRole));
}
