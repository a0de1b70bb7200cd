//! How long a node has not been connected, also across restarts of the server; and nodes that are removed permanently.

use crate::world::{World, job, stage};
use amalgam_core::master::NodeStatus;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobOutcome, ToClient, ToMaster};
use amalgam_core::role::{Outbox, Role};
use amalgam_core::scheduling::NodeState;
use amalgam_core::vocabulary::{Duration, NodeId, Resources};

const FIRST: NodeId = NodeId(0);
const CORE: Resources = Resources::new(1_000, 0);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn statuses(world: &World) -> Vec<NodeStatus> {
    world.server.as_ref().expect("the server runs").master.node_statuses(world.now)
}

fn status(world: &World, node: NodeId) -> NodeStatus {
    statuses(world).into_iter().find(|status| status.node == node).expect("the node is known")
}

fn stop_agent(world: &mut World) {
    world.unlink(0);
    world.nodes[0].agent = None;
}

fn remove(world: &mut World, node: NodeId) -> Result<(), String> {
    match world.ask_master(ToMaster::RemoveNode { node }) {
        ToClient::Done => Ok(()),
        ToClient::Refused(refusal) => Err(refusal.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_time_a_node_has_been_silent_is_known_after_a_restart() {
    for from_snapshot in [false, true] {
        let mut world = World::with_nodes(Preset::FIFO, 2, CORE);
        stop_agent(&mut world);
        world.run_for(seconds(40));
        assert_eq!(status(&world, FIRST).state, NodeState::Lost);
        let away = |world: &World| status(world, FIRST).silent_for.expect("the node was heard from");
        assert!((seconds(38)..=seconds(41)).contains(&away(&world)));
        if from_snapshot {
            world.disk = world.server.as_ref().expect("the server runs").master.durable();
        }
        world.kill_server();
        world.run_for(seconds(10));
        world.start_server();
        world.settle();
        world.run_for(seconds(5));
        assert!((seconds(53)..=seconds(56)).contains(&away(&world)), "{:?}", away(&world));
        assert!(status(&world, FIRST).unheard_since.is_some());
        world.start_agent(0);
        world.settle();
        let back = status(&world, FIRST);
        assert_eq!((back.state, back.unheard_since), (NodeState::Up, None));
        assert!(back.silent_for.expect("the node was heard from") < seconds(2));
    }
}

#[test]
fn the_program_of_a_node_is_that_of_its_last_registration() {
    let mut world = World::with_nodes(Preset::FIFO, 2, CORE);
    let mut upgraded_to = |program: Option<&str>| {
        stop_agent(&mut world);
        world.nodes[0].program = program.map(str::to_owned);
        world.start_agent(0);
        world.settle();
        assert_eq!(status(&world, NodeId(1)).program, None, "the agent of the other node reports none");
        status(&world, FIRST).program
    };
    assert_eq!(upgraded_to(Some("0.2.0")).as_deref(), Some("0.2.0"));
    assert_eq!(upgraded_to(Some("0.3.0-rc.1+abc")).as_deref(), Some("0.3.0-rc.1+abc"));
    assert_eq!(upgraded_to(Some("0.3.0\n\u{1b}[31m")), None, "it cannot be printed");
    assert_eq!(upgraded_to(None), None, "an agent of a version that does not report it");
}

#[test]
fn a_node_lost_with_the_server_is_unheard_since_the_restart() {
    let mut world = World::with_nodes(Preset::FIFO, 1, CORE);
    world.run_for(seconds(3));
    world.kill_server();
    stop_agent(&mut world);
    world.run_for(seconds(7));
    world.start_server();
    let started = world.now;
    world.settle();
    world.run_for(seconds(5));
    let away = status(&world, FIRST);
    assert_eq!((away.silent_for, away.unheard_since), (None, Some(started)));
}

#[test]
fn a_disconnected_node_that_is_drained_can_be_removed_and_rejoins_as_a_new_one() {
    let mut world = World::with_nodes(Preset::FIFO, 2, CORE);
    let id = world.submit(job(vec![stage("s", 2, "100s", 1_000)]));
    assert!(remove(&mut world, FIRST).unwrap_err().contains("is connected"));
    assert!(remove(&mut world, NodeId(7)).unwrap_err().contains("node n7 not found"));
    stop_agent(&mut world);
    assert!(remove(&mut world, FIRST).unwrap_err().contains("may still run"));
    world.ask_master(ToMaster::Drain { node: FIRST, drained: true });
    assert_eq!(remove(&mut world, FIRST), Ok(()));
    let known = |world: &World| statuses(world).iter().map(|status| status.node).collect::<Vec<_>>();
    assert_eq!(known(&world), [NodeId(1)]);
    assert!(remove(&mut world, FIRST).unwrap_err().contains("node n0 not found"), "a node is removed once");
    for from_snapshot in [false, true] {
        if from_snapshot {
            world.disk = world.server.as_ref().expect("the server runs").master.durable();
        }
        world.kill_server();
        world.start_server();
        world.settle();
        world.run_for(seconds(1));
        assert_eq!(known(&world), [NodeId(1)], "the removal survives a restart");
    }
    let master = &mut world.server.as_mut().expect("the server runs").master;
    let again = master.name_node("host0", &mut Outbox::default());
    assert_eq!(again, Some(NodeId(2)), "its number is not used again");
    world.run_for(seconds(450));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
}
