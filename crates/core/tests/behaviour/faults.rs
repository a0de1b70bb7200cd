//! Random jobs, and processes and connections that die at random moments, by seed. Then all faults are repaired, every
//! job must succeed, and each additional launch must be explained by an attempt that was written off.

use crate::world::{World, baselines, job, stage};
use amalgam_core::dispatch::Decide;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome, ToMaster};
use amalgam_core::role::{Change, LostCause, Role};
use amalgam_core::vocabulary::{AttemptId, Duration, EndReason, ExecutionType, JobId, NodeId, Resources, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// A split-mix generator: small, seeded, and the same on every platform.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

const PRESETS: [Preset; 5] = [Preset::FIFO, Preset::CAPACITY, Preset::SPARROW, baselines::POWER_OF_TWO, Preset::APOLLO];

/// The kinds of faults.
#[derive(Clone, Copy, PartialEq)]
enum Faults {
    ServerOnly,
    All,
}

fn run(seed: u64, faults: Faults) -> World {
    let mut chance = Chance(seed);
    let preset = PRESETS[chance.below(PRESETS.len() as u64) as usize];
    let mut world = World::new(preset);
    if chance.below(4) == 0 {
        world.settings.dispatch.decide = Decide::OnHeartbeats { most: None };
    }
    if faults == Faults::ServerOnly {
        world.orphan_lease = Duration::MAX;
    }
    world.start_server();
    let nodes = 1 + chance.below(4) as usize;
    for _ in 0..nodes {
        world.add_node(Resources::new(1_000 * (1 + chance.below(4) as u32), 0), &[]);
    }
    let mut submitted = Vec::new();
    for _ in 0..150 {
        match chance.below(13) {
            0..2 if submitted.len() < 6 && world.server.is_some() => {
                let spec = random_job(&mut chance);
                submitted.push(world.submit(spec));
            }
            2 => world.sync(),
            3 => {
                world.kill_server();
            }
            4 | 5 => {
                if world.server.is_none() {
                    world.start_server();
                }
            }
            6 if faults == Faults::All => break_something(&mut world, &mut chance, nodes),
            7 if faults == Faults::All => heal_something(&mut world, &mut chance, nodes),
            8 if world.server.is_some() => interfere(&mut world, &mut chance, &submitted, nodes),
            9 | 10 => {
                for _ in 0..chance.below(12) {
                    world.deliver_one();
                }
            }
            _ => pass_time(&mut world, &mut chance),
        }
    }
    heal(&mut world, nodes);
    undo_interference(&mut world, &submitted, nodes);
    world.run_for(Duration::from_secs(1_000));
    check(&mut world, &submitted, faults);
    world
}

fn random_job(chance: &mut Chance) -> amalgam_core::vocabulary::JobSpec {
    let count = 1 + chance.below(4) as u32;
    let stages = (0..count).map(|index| {
        let run = format!("{}ms", chance.below(4_000));
        let mut stage =
            stage(&format!("s{index}"), 1 + chance.below(5) as u32, &run, 500 + 250 * chance.below(3) as u32);
        stage.after = (0..index).filter(|_| chance.below(2) == 0).collect();
        stage.execution = if chance.below(2) == 0 { ExecutionType::Guaranteed } else { ExecutionType::Auto };
        stage.expected = Duration::parse(&run).ok().filter(|_| chance.below(2) == 0);
        stage
    });
    job(stages.collect())
}

fn break_something(world: &mut World, chance: &mut Chance, nodes: usize) {
    let node = chance.below(nodes as u64) as usize;
    match chance.below(3) {
        0 => world.kill_agent(node),
        1 => world.unlink(node),
        _ => world.kill_executor(node),
    }
}

fn heal_something(world: &mut World, chance: &mut Chance, nodes: usize) {
    let node = chance.below(nodes as u64) as usize;
    if world.nodes[node].agent.is_none() {
        world.start_agent(node);
    } else {
        world.link(node);
    }
}

/// Lets time pass, but delivers only some of the messages and syncs only sometimes.
fn pass_time(world: &mut World, chance: &mut Chance) {
    for _ in 0..chance.below(6) {
        let soon = world.now + Duration::from_secs(3_600);
        let Some(at) = world.next_event().filter(|at| *at < soon) else { return };
        world.now = world.now.max(at);
        world.happen();
        for _ in 0..chance.below(20) {
            world.deliver_one();
        }
        if chance.below(2) == 0 {
            world.sync();
        }
    }
}

/// A user holds or releases a job, or an operator drains or undrains a node.
fn interfere(world: &mut World, chance: &mut Chance, submitted: &[JobId], nodes: usize) {
    let flag = chance.below(2) == 0;
    if chance.below(2) == 0 {
        let node = NodeId(chance.below(nodes as u64) as u32);
        world.ask_master(ToMaster::Drain { node, drained: flag });
    } else if let Some(&job) = submitted.get(chance.below(submitted.len() as u64 + 1) as usize) {
        world.control(job, if flag { JobAction::Hold } else { JobAction::Release });
    }
}

fn undo_interference(world: &mut World, submitted: &[JobId], nodes: usize) {
    for node in 0..nodes as u32 {
        world.ask_master(ToMaster::Drain { node: NodeId(node), drained: false });
    }
    for &job in submitted {
        world.control(job, JobAction::Release);
    }
}

fn heal(world: &mut World, nodes: usize) {
    if world.server.is_none() {
        world.start_server();
    }
    for node in 0..nodes {
        if world.nodes[node].agent.is_none() {
            world.start_agent(node);
        }
        world.link(node);
    }
    world.settle();
}

fn check(world: &mut World, submitted: &[JobId], faults: Faults) {
    let losses = world.losses();
    for &id in submitted {
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "job {id}: {:?}", world.why(id));
    }
    assert_eq!(world.running_tasks(), [], "no task runs when all jobs have ended");
    let excused = |attempts: &BTreeSet<_>| attempts.iter().filter(|attempt| losses.contains_key(attempt)).count();
    let ends = ends(world);
    let was_preempted = |change: &Change| match change {
        Change::Finished { attempt, ended, .. } if ended.reason == EndReason::Preempted => Some(*attempt),
        _ => None,
    };
    let preempted: BTreeSet<AttemptId> = world.disk.iter().filter_map(was_preempted).collect();
    for (task, attempts) in world.launches() {
        let node_losses = ends.get(&task).copied().unwrap_or(0);
        assert!(
            attempts.len() <= excused(&attempts) + node_losses + 1,
            "task {task} was launched {} times, and only {} are explained",
            attempts.len(),
            excused(&attempts) + node_losses
        );
        if faults == Faults::ServerOnly {
            // Both attempts of a pair may become processes, and opportunistic ones may be preempted.
            let was_meant = |attempt: &AttemptId| {
                losses.get(attempt) == Some(&LostCause::Superseded) || preempted.contains(attempt)
            };
            let others = attempts.iter().filter(|attempt| !was_meant(attempt));
            assert_eq!(others.count(), 1, "task {task} was launched again although no node failed");
        }
    }
    let mut finished = BTreeSet::new();
    for change in &world.disk {
        match change {
            Change::Finished { task, ended, .. } if ended.reason.is_success() => {
                assert!(finished.insert(*task), "task {task} finished twice");
            }
            Change::Launched { task, .. } => assert!(!finished.contains(task), "finished task {task} runs again"),
            _ => {}
        }
    }
    let server = world.server.as_ref().expect("the server was started");
    for node in server.master.describe(world.now).nodes {
        assert_eq!((node.bookings, node.free), (0, node.capacity), "{} is free at the end", node.node);
    }
    for host in &world.nodes {
        assert!(host.executor.ends.is_empty(), "every end was acknowledged");
        let agent = host.agent.as_ref().expect("the agent was started").describe(world.now);
        assert_eq!((agent.free, agent.queued.len()), (agent.capacity, 0), "{} keeps no room", agent.node);
    }
}

/// Number of ends that were the node's fault, for each task.
fn ends(world: &World) -> BTreeMap<TaskId, usize> {
    let mut ends = BTreeMap::new();
    for change in &world.disk {
        if let Change::Finished { task, ended, .. } = change
            && ended.reason.is_infrastructure()
        {
            *ends.entry(*task).or_default() += 1;
        }
    }
    ends
}

#[test]
fn server_kills_alone_never_launch_a_task_twice() {
    for seed in 0..300 {
        let guarded = std::panic::catch_unwind(|| run(seed, Faults::ServerOnly));
        assert!(guarded.is_ok(), "seed {seed}: replay with run({seed}, Faults::ServerOnly)");
    }
}

#[test]
fn every_job_succeeds_after_random_faults_are_repaired() {
    for seed in 0..600 {
        let guarded = std::panic::catch_unwind(|| run(seed, Faults::All));
        assert!(guarded.is_ok(), "seed {seed}: replay with run({seed}, Faults::All)");
    }
}

#[test]
fn the_same_seed_gives_the_same_log() {
    for seed in [3, 14, 15] {
        assert_eq!(run(seed, Faults::All).log, run(seed, Faults::All).log);
    }
}

#[test]
fn a_snapshot_recovers_to_the_same_state_as_the_log() {
    for seed in 0..60 {
        let mut world = run(seed, Faults::All);
        let server = world.server.take().expect("the server was started");
        let mut snapshot = server.master.durable();
        snapshot.extend(server.jobs.values().flat_map(Role::durable));
        world.disk = snapshot;
        world.start_server();
        let again = world.server.as_ref().expect("the server was started");
        for (id, manager) in &server.jobs {
            let (was, is) = (manager.describe(world.now), again.jobs[id].describe(world.now));
            assert_eq!(
                (was.dag, was.running, was.cancelled),
                (is.dag, is.running, is.cancelled),
                "seed {seed}, job {id}"
            );
        }
        let states = |master: &amalgam_core::master::Master| -> Vec<_> {
            master.describe(world.now).jobs.iter().map(|job| (job.job.id, job.state.clone())).collect()
        };
        assert_eq!(states(&server.master), states(&again.master), "seed {seed}");
    }
}
