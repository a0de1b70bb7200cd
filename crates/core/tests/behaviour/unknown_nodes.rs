//! Nodes that a global master hears of after it has started, as after a restart: attempts of jobs that ended before may run there.

use crate::first_refusal::Believer;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, JobOutcome, Message, NodeNews, ToGlobalMaster, ToJobManager, ToMaster};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    ClientId, Duration, Instant, JobId, JobSpec, NodeId, Program, Resources, StageSpec, TaskSet,
};
use std::sync::Arc;

/// Whether the manager of the job hears that the node is there.
fn is_notified(believer: &mut Believer, job: JobId, node: NodeId, at: u64) -> bool {
    let (name, capacity, attributes) = (format!("n{}", node.0), Resources::new(4_000, 0), Arc::default());
    let out = believer.hear_news(Duration::from_secs(at), NodeNews::Joined { node, name, capacity, attributes });
    out.sends.iter().any(|(to, message)| {
        let returned = |message: &Message| match message {
            Message::ToJobManager(ToJobManager::NodesReturned { nodes }) => nodes.contains(&node),
            _ => false,
        };
        *to == Address::JobManager(job) && returned(message)
    })
}

#[test]
fn the_manager_of_an_ended_job_hears_of_a_node_that_was_not_there_before() {
    let mut believer = Believer::new(Preset::AMALGAM_IN_FEDERATIONS);
    let job = JobId(1);
    let program = Arc::new(Program { command: vec!["true".into()], ..Program::default() });
    let stage = StageSpec { name: "s".to_owned(), tasks: TaskSet::Count(1), program, ..StageSpec::default() };
    let spec = JobSpec { stages: vec![stage], ..JobSpec::default() };
    let submit = ToMaster::Submit { spec: Arc::new(spec), key: None };
    let ended = ToMaster::JobEnded {
        job,
        submitted_at: Instant(1),
        run: 0,
        outcome: JobOutcome::Succeeded,
        estimated: None,
        means: Box::default(),
    };
    for (from, body) in [(Address::Client(ClientId(1)), submit), (Address::JobManager(job), ended)] {
        let event = Event::Message { from, body: ToGlobalMaster::OfJobs(Box::new(body)) };
        believer.global.handle(Instant(1), event, &mut Outbox::default());
    }
    assert!(!is_notified(&mut believer, job, NodeId(1), 1), "it was there all the time");
    assert!(is_notified(&mut believer, job, NodeId(2), 2), "it was not");
}
