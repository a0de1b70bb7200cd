//! What operators change while the cluster runs: labels of nodes, limits of queues, the configuration.

use crate::world::{World, job, stage};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobOutcome, ToClient, ToMaster};
use amalgam_core::role::Role;
use amalgam_core::vocabulary::{
    Constraint, Duration, JobId, JobSpec, NodeId, QueueSettings, QueueSpec, Removable, Resources, StageSpec,
};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn answer(answer: ToClient) -> Result<(), String> {
    match answer {
        ToClient::Done => Ok(()),
        ToClient::AsBefore => Err("as before".to_owned()),
        ToClient::Refused(refusal) => Err(refusal.message),
        other => panic!("{other:?}"),
    }
}

fn restart(world: &mut World, from_snapshot: bool) {
    if from_snapshot {
        world.disk = world.server.as_ref().expect("the server runs").master.durable();
    }
    world.kill_server();
    world.start_server();
    world.settle();
}

// ---- labels --------------------------------------------------------------------------------------------------------

fn label(world: &mut World, node: u32, labels: &[(&str, Option<&str>)]) -> Result<(), String> {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect();
    answer(world.ask_master(ToMaster::Label { node: NodeId(node), labels }))
}

fn attributes(world: &World, node: usize) -> Vec<String> {
    let statuses = world.server.as_ref().expect("the server runs").master.node_statuses(world.now);
    statuses[node].attributes.iter().map(|pair| format!("{}={}", pair.name, pair.value)).collect()
}

fn constrained(constraint: &str, run: &str) -> JobSpec {
    let constraints = vec![Constraint::parse(constraint).expect("a constraint")];
    let stage = StageSpec { constraints, ..stage("s", 1, run, 1_000) };
    JobSpec { wait_for_nodes: true, ..job(vec![stage]) }
}

#[test]
fn a_label_lets_waiting_tasks_start_at_once_and_outlives_agents_and_servers() {
    for preset in [Preset::FIFO, Preset::DRF, Preset::SPARROW, Preset::APOLLO] {
        let mut world = World::new(preset);
        world.start_server();
        world.add_node(Resources::new(2_000, 0), &[("rack", "a")]);
        world.add_node(Resources::new(2_000, 0), &[("rack", "b")]);
        world.settle();
        let waits = world.submit(constrained("zone=north", "1s"));
        world.run_for(seconds(5));
        assert!(world.running_tasks().is_empty() && world.outcome(waits).is_none());

        assert_eq!(label(&mut world, 1, &[("zone", Some("north")), ("rack", Some("c"))]), Ok(()));
        world.run_for(seconds(5));
        assert_eq!(world.outcome(waits), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
        assert_eq!(attributes(&world, 1), ["rack=c", "zone=north"]);
        assert_eq!(label(&mut world, 1, &[("zone", Some("north"))]), Err("as before".to_owned()));

        world.kill_agent(1);
        world.start_agent(1);
        world.settle();
        assert_eq!(attributes(&world, 1), ["rack=c", "zone=north"], "after another start of the agent");
        for from_snapshot in [false, true] {
            restart(&mut world, from_snapshot);
            world.run_for(seconds(1));
            assert_eq!(attributes(&world, 1), ["rack=c", "zone=north"], "after another start of the server");
        }
        let runs = world.submit(constrained("zone=north", "1s"));
        world.run_for(seconds(5));
        assert_eq!(world.outcome(runs), Some(JobOutcome::Succeeded));

        assert_eq!(label(&mut world, 1, &[("zone", None), ("rack", None)]), Ok(()));
        assert_eq!(attributes(&world, 1), ["rack=b"], "the agent's own value is back");
        let waits = world.submit(constrained("zone=north", "1s"));
        world.run_for(seconds(5));
        assert_eq!(world.outcome(waits), None);
    }
}

fn tolerating(taints: &[&str], tasks: u32, run: &str) -> JobSpec {
    let constraints = taints.iter().map(|taint| Constraint::tolerating(taint)).collect();
    job(vec![StageSpec { constraints, ..stage("s", tasks, run, 1_000) }])
}

/// The nodes on which tasks run.
fn nodes_in_use(world: &World) -> Vec<usize> {
    let runs_some = |node: &usize| !world.nodes[*node].executor.running.is_empty();
    (0..world.nodes.len()).filter(runs_some).collect()
}

#[test]
fn a_node_with_taints_takes_only_tasks_that_tolerate_all_of_them() {
    for preset in Preset::all() {
        let name = preset.name();
        if preset.is_federated() {
            continue;
        }
        let mut world = World::new(preset);
        world.start_server();
        world.add_node(Resources::new(4_000, 0), &[("taint.new", "yes")]);
        world.add_node(Resources::new(4_000, 0), &[]);
        world.settle();
        // The agent's own taint counts from the start. Where the master places tasks, there are more than the other node has room for;
        // elsewhere these would use up the job's allowance.
        let tasks = if Preset::CENTRAL.contains(&preset) { 8 } else { 4 };
        let plain = world.submit(tolerating(&[], tasks, "10s"));
        world.run_for(seconds(2));
        assert_eq!(nodes_in_use(&world), [1], "{name}");
        let other = world.submit(tolerating(&["new"], 2, "10s"));
        world.run_for(seconds(2));
        assert_eq!(nodes_in_use(&world), [0, 1], "{name}: {}", world.log.join("\n"));

        // Running tasks go on, and no further one starts there.
        assert_eq!(label(&mut world, 1, &[("taint.gpu", Some("for training"))]), Ok(()), "{name}");
        assert_eq!(label(&mut world, 0, &[("taint.gpu", Some("for training"))]), Ok(()), "{name}");
        assert_eq!(world.running_tasks().len(), 6, "{name}");
        for from_snapshot in [false, true] {
            world.run_for(seconds(8));
            restart(&mut world, from_snapshot);
        }
        world.run_for(seconds(30));
        assert_eq!(world.outcome(other), Some(JobOutcome::Succeeded), "{name}");
        // What had been sent to the node's queue before started there; the rest waits.
        assert!(world.running_tasks().is_empty(), "{name}");
        let late = world.submit(tolerating(&[], 1, "1s"));
        world.run_for(seconds(5));
        assert_eq!(world.outcome(late), None, "{name}");
        let why = world.why(late).join("\n");
        let said = "each node that could run it has a taint that the stage does not tolerate: ";
        if Preset::CENTRAL.contains(&preset) {
            assert!(why.contains(said) && why.contains("`gpu` (for training)"), "{name}: {why}");
        }
        let both = world.submit(tolerating(&["gpu", "new"], 8, "1s"));
        world.run_for(seconds(20));
        assert_eq!(world.outcome(both), Some(JobOutcome::Succeeded), "{name}");
        assert_eq!(world.outcome(late), None, "{name}");

        assert_eq!(label(&mut world, 1, &[("taint.gpu", None)]), Ok(()), "{name}");
        world.run_for(seconds(60));
        for job in [plain, late] {
            assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded), "{name}: {}", world.log.join("\n"));
        }
    }
}

#[test]
fn wrong_labels_change_nothing_and_a_removed_node_loses_its_labels() {
    let mut world = World::new(Preset::FIFO);
    world.start_server();
    world.add_node(Resources::new(2_000, 0), &[("rack", "a")]);
    world.settle();
    let refused = |world: &mut World, node, labels: &[(&str, Option<&str>)]| label(world, node, labels).unwrap_err();
    assert!(refused(&mut world, 7, &[("zone", Some("x"))]).contains("node n7 not found"));
    assert!(refused(&mut world, 0, &[("a b", Some("x"))]).contains("`a b` is not a valid attribute name"));
    assert!(refused(&mut world, 0, &[("zone", Some("x\ny"))]).contains("`zone` has a value that is empty"));
    assert!(refused(&mut world, 0, &[("zone", None)]).contains("has no label `zone`"));
    assert!(refused(&mut world, 0, &[("taint.gpu", Some("-"))]).contains("`taint.gpu` cannot have the value `-`"));
    assert!(refused(&mut world, 0, &[("rack", None)]).contains("its agent reports it"));
    let many: Vec<String> = (0..65).map(|number| format!("l{number}")).collect();
    let many: Vec<(&str, Option<&str>)> = many.iter().map(|name| (name.as_str(), Some("x"))).collect();
    assert!(refused(&mut world, 0, &many).contains("at most 64"));
    assert_eq!(attributes(&world, 0), ["rack=a"]);

    assert_eq!(label(&mut world, 0, &[("zone", Some("x"))]), Ok(()));
    world.unlink(0);
    world.nodes[0].agent = None;
    world.ask_master(ToMaster::Drain { node: NodeId(0), drained: true });
    assert_eq!(answer(world.ask_master(ToMaster::RemoveNode { node: NodeId(0) })), Ok(()));
    let durable = format!("{:?}", world.server.as_ref().expect("the server runs").master.durable());
    assert!(!durable.contains("zone"), "{durable}");
}

// ---- queues --------------------------------------------------------------------------------------------------------

fn cluster(preset: Preset, queues: Vec<QueueSpec>) -> World {
    let mut world = World::new(preset);
    world.queues = QueueTree::new(queues).expect("a valid tree");
    world.start_server();
    for _ in 0..4 {
        world.add_node(Resources::new(2_000, 0), &[]);
    }
    world.settle();
    world
}

fn half(name: &str) -> QueueSpec {
    QueueSpec { maximum: 500_000, ..QueueSpec::named(name) }
}

fn in_queue(world: &mut World, queue: &str, tasks: u32, run: &str) -> JobId {
    let spec = job(vec![stage("s", tasks, run, 1_000)]);
    world.submit(JobSpec { queue: queue.to_owned(), ..spec })
}

fn set(world: &mut World, queue: &str, settings: QueueSettings) -> Result<(), String> {
    answer(world.ask_master(ToMaster::SetQueue { queue: queue.to_owned(), settings: Some(settings) }))
}

fn maximum(parts: u32) -> QueueSettings {
    QueueSettings { maximum: Some(parts), ..QueueSettings::default() }
}

fn of(world: &World, queue: &str) -> (QueueSpec, QueueSettings) {
    let statuses = world.server.as_ref().expect("the server runs").master.dispatch().queue_statuses();
    let found = statuses.into_iter().find(|status| status.spec.name == queue).expect("the queue is there");
    (found.spec, found.set)
}

#[test]
fn a_raised_maximum_lets_waiting_tasks_start_at_once_and_outlives_the_server() {
    let central = Preset::CENTRAL.iter().copied();
    for preset in central.chain([Preset::APOLLO, Preset::APOLLO_PLUS]) {
        // Nine tenths of the cluster can be guaranteed where jobs place their own tasks.
        let (within_half, within_all) = if preset.is_distributed() { (3, 7) } else { (4, 8) };
        let mut world = cluster(preset, vec![half("root.a"), half("root.b")]);
        in_queue(&mut world, "a", 8, "1000s");
        world.run_for(seconds(20));
        assert_eq!(world.running_tasks().len(), within_half, "{}: {}", preset.name(), world.log.join("\n"));
        assert_eq!(set(&mut world, "a", maximum(1_000_000)), Ok(()));
        world.run_for(seconds(20));
        assert_eq!(world.running_tasks().len(), within_all, "{}: {}", preset.name(), world.log.join("\n"));
        for from_snapshot in [false, true] {
            restart(&mut world, from_snapshot);
            assert_eq!(of(&world, "root.a"), (QueueSpec::named("root.a"), maximum(1_000_000)), "{}", preset.name());
        }
        // What was set is forgotten; tasks that run continue.
        let reset = ToMaster::SetQueue { queue: "root.a".to_owned(), settings: None };
        assert_eq!(answer(world.ask_master(reset.clone())), Ok(()));
        assert_eq!(answer(world.ask_master(reset)), Err("as before".to_owned()));
        restart(&mut world, true);
        assert_eq!(of(&world, "root.a"), (half("root.a"), QueueSettings::default()));
    }
}

#[test]
fn a_raised_number_of_jobs_starts_waiting_jobs_and_settings_are_added_to_earlier_ones() {
    let one = QueueSpec { max_running_jobs: Some(1), ..QueueSpec::named("root.a") };
    let mut world = cluster(Preset::DRF, vec![one.clone()]);
    for _ in 0..4 {
        in_queue(&mut world, "a", 1, "1000s");
    }
    world.settle();
    assert_eq!(world.running_tasks().len(), 1);
    let jobs = |most: Removable<u32>| QueueSettings { max_running_jobs: Some(most), ..QueueSettings::default() };
    assert_eq!(set(&mut world, "root.a", jobs(Removable::Value(2))), Ok(()));
    world.settle();
    assert_eq!(world.running_tasks().len(), 2);
    assert_eq!(set(&mut world, "root.a", QueueSettings { weight: Some(3_000), ..QueueSettings::default() }), Ok(()));
    assert_eq!(set(&mut world, "root.a", jobs(Removable::Absent)), Ok(()));
    world.settle();
    assert_eq!(world.running_tasks().len(), 4);
    let (spec, settings) = of(&world, "root.a");
    assert_eq!((spec.weight, spec.max_running_jobs, settings.weight), (3_000, None, Some(3_000)));
}

#[test]
fn settings_that_do_not_fit_are_refused_and_without_effect_after_the_configuration_has_changed() {
    let mut world = cluster(Preset::DRF, vec![half("root.a"), half("root.b")]);
    let guaranteed = |parts| QueueSettings { guaranteed: Some(parts), ..QueueSettings::default() };
    let refused = set(&mut world, "a", guaranteed(600_000)).unwrap_err();
    assert!(refused.contains("queue `root.a` is guaranteed more than its maximum"), "{refused}");
    assert!(set(&mut world, "c", maximum(1)).unwrap_err().contains("queue `c` not found"));
    assert_eq!(of(&world, "root.a").1, QueueSettings::default());

    assert_eq!(set(&mut world, "a", guaranteed(400_000)), Ok(()));
    assert_eq!(set(&mut world, "b", guaranteed(300_000)), Ok(()));
    // The file now says less than what is guaranteed, and `root.b` is gone.
    let less = QueueSpec { maximum: 300_000, ..QueueSpec::named("root.a") };
    let reconfigure =
        |queues: Vec<QueueSpec>| ToMaster::Reconfigure { queues, kept_jobs: 10, kept_for: None, kept_tasks: None };
    let refused = answer(world.ask_master(reconfigure(vec![less.clone(), half("root.b")]))).unwrap_err();
    assert!(refused.contains("with what `amalgam queue set` changed, queue `root.a`"), "{refused}");
    let refused = answer(world.ask_master(reconfigure(vec![half("root.a")]))).unwrap_err();
    assert!(refused.contains("queue `root.b` is missing"), "{refused}");
    assert_eq!(of(&world, "root.a").0.guaranteed, 400_000);
    world.queues = QueueTree::new(vec![less.clone()]).expect("a valid tree");
    restart(&mut world, false);
    assert_eq!(of(&world, "root.a").0, less);
}

#[test]
fn a_new_configuration_takes_effect_at_once_with_queues_that_are_added() {
    for preset in Preset::CENTRAL.iter().copied().chain([Preset::APOLLO, Preset::APOLLO_PLUS]) {
        let mut world = cluster(preset, vec![half("root.b")]);
        let old = in_queue(&mut world, "b", 8, "10s");
        world.settle();
        let added = vec![QueueSpec::named("root.b"), half("root.a"), half("root.a2")];
        let order = ToMaster::Reconfigure { queues: added, kept_jobs: 1, kept_for: None, kept_tasks: None };
        assert_eq!(answer(world.ask_master(order)), Ok(()), "{}", preset.name());
        let new = in_queue(&mut world, "a", 2, "1s");
        let newest = in_queue(&mut world, "a2", 2, "1s");
        world.run_for(seconds(60));
        for job in [old, new, newest] {
            // Only one ended job is kept.
            let outcome = world.outcome(job);
            assert!(outcome.is_none() || outcome == Some(JobOutcome::Succeeded), "{}", preset.name());
        }
        let master = &world.server.as_ref().expect("the server runs").master;
        let known: Vec<JobId> = master.dispatch().jobs_from(JobId(0)).map(|(job, _)| job.id).collect();
        assert_eq!(known.len(), 1, "{}: {known:?}", preset.name());
        assert!(world.running_tasks().is_empty());
    }
}

// ---- retention -----------------------------------------------------------------------------------------------------

#[test]
fn jobs_are_forgotten_when_too_many_tasks_are_remembered_except_the_newest_job() {
    let mut world = World::new(Preset::FIFO);
    world.settings.dispatch.kept_tasks = Some(50);
    world.start_server();
    world.add_node(Resources::new(100_000, 0), &[]);
    world.settle();
    let mut known_after = |tasks| {
        world.submit(job(vec![stage("s", tasks, "1s", 1_000)]));
        world.run_for(seconds(30));
        let master = &world.server.as_ref().expect("the server runs").master;
        master.dispatch().jobs_from(JobId(0)).map(|(job, _)| job.id.0).collect::<Vec<_>>()
    };
    assert_eq!(known_after(20), [1]);
    assert_eq!(known_after(30), [1, 2]);
    assert_eq!(known_after(1), [2, 3]);
    assert_eq!(known_after(49), [3, 4]);
    assert_eq!(known_after(80), [5], "the newest job has more tasks than are remembered");
    assert_eq!(known_after(2), [6]);
    assert_eq!(known_after(48), [6, 7]);

    // A job for which another one waits is kept, and the newest with it, although both have too many tasks.
    let awaited = JobId(7);
    let held = JobSpec { after_jobs: vec![awaited], held: true, ..job(vec![stage("s", 1, "1s", 1_000)]) };
    world.submit(held);
    world.submit(job(vec![stage("s", 80, "1s", 1_000)]));
    world.run_for(seconds(30));
    let master = &world.server.as_ref().expect("the server runs").master;
    let known: Vec<u64> = master.dispatch().jobs_from(JobId(0)).map(|(job, _)| job.id.0).collect();
    assert_eq!(known, [7, 8, 9]);
}

#[test]
fn old_jobs_are_forgotten_a_few_at_a_time_except_those_that_pending_ones_wait_for() {
    let mut world = World::new(Preset::FIFO);
    world.settings.dispatch.kept_for = Some(seconds(1_000));
    world.start_server();
    for _ in 0..10 {
        world.add_node(Resources::new(20_000, 0), &[]);
    }
    world.settle();
    let jobs: Vec<JobId> = (0..200).map(|_| world.submit(job(vec![stage("s", 1, "1s", 1_000)]))).collect();
    world.run_for(seconds(500));
    assert!(jobs.iter().all(|job| world.outcome(*job) == Some(JobOutcome::Succeeded)));
    let held = JobSpec { after_jobs: vec![jobs[0]], held: true, ..job(vec![stage("s", 1, "1s", 1_000)]) };
    let waits = world.submit(held);
    let known = |world: &World| {
        let master = &world.server.as_ref().expect("the server runs").master;
        master.dispatch().jobs_from(JobId(0)).map(|(job, _)| job.id).collect::<Vec<_>>()
    };
    world.run_for(seconds(490));
    assert_eq!(known(&world).len(), 201);
    world.run_for(seconds(60));
    assert_eq!(known(&world), [jobs[0], waits]);
    restart(&mut world, false);
    assert_eq!(known(&world), [jobs[0], waits], "also after a restart");
}
