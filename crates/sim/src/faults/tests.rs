use super::{Fault, Happening};
use crate::places::ProcessId;
use crate::settings::{Costs, Settings};
use crate::simulation::Simulation;
use crate::testing::{run, simulation, simulation_of};
use amalgam_core::hosting::{Fact, Gap, Managers, Roles};
use amalgam_core::job_manager::{JobManager, JobManagerSettings};
use amalgam_core::preset::Preset;
use amalgam_core::role::{Change, Record, Role};
use amalgam_core::vocabulary::{ClockOffset, Duration, Epoch, HostId, Instant, JobId};

fn crash(place: ProcessId) -> Fault {
    Fault::Crash { place, down: Duration::from_secs(2), noticed: Duration::from_millis(100) }
}

fn launches(simulation: &Simulation) -> usize {
    simulation.log().filter(|change| matches!(change, Change::Launched { .. })).count()
}

#[test]
fn a_server_that_crashes_loses_exactly_the_changes_that_were_not_durable() {
    for (crash_at, is_lost) in [(1_000_100, true), (1_001_000, false)] {
        let mut simulation = simulation(&[(crash_at, crash(ProcessId::Server))]);
        let happened = run(&mut simulation, 2_000_000);
        let undone = happened.iter().any(|happening| {
            matches!(happening, Happening::Undone(changes)
                if matches!(changes[..], [.., Change::JobAdmitted { .. }, Change::JobStarted { .. }, Change::Launched { .. }, Change::Launched { .. }]))
        });
        let admitted = simulation.log().any(|change| matches!(change, Change::JobAdmitted { .. }));
        assert_eq!((undone, admitted), (is_lost, !is_lost), "crash at {crash_at}");
        // Either the client was not answered, or the launches had left. In both cases each task runs once.
        run(&mut simulation, 20_000_000);
        assert!(simulation.is_done());
        assert_eq!(launches(&simulation), 2, "crash at {crash_at}");
    }
}

#[test]
fn tasks_outlive_their_agent_but_not_their_executor() {
    for (fault, expected) in [(crash(ProcessId::Node(0)), 2), (Fault::ExecutorDies { node: 0 }, 4)] {
        let mut simulation = simulation(&[(3_000_000, fault.clone())]);
        run(&mut simulation, 20_000_000);
        assert!(simulation.is_done());
        assert_eq!(launches(&simulation), expected, "{fault:?}");
    }
}

#[test]
fn a_process_that_hangs_handles_its_inputs_when_it_continues() {
    let pause = Fault::Pause { place: ProcessId::Node(0), length: Duration::from_secs(10) };
    let mut simulation = simulation(&[(500_000, pause)]);
    let happened = run(&mut simulation, 30_000_000);
    let task_started = happened.iter().position(|happening| matches!(happening, Happening::TaskStarted { .. }));
    assert!(task_started.is_some() && simulation.is_done());
    let end = simulation.log().find_map(|change| match change {
        Change::JobEnded { at, .. } => Some(at.0),
        _ => None,
    });
    assert!(end.is_some_and(|at| at > 15_500_000), "{end:?}");
}

#[test]
fn a_broken_connection_costs_no_running_attempt() {
    let fault = Fault::Break {
        link: 0,
        lasts: Duration::from_secs(3),
        noticed_outside: Duration::from_millis(10),
        noticed_inside: Duration::from_secs(1),
    };
    let mut simulation = simulation(&[(3_000_000, fault)]);
    run(&mut simulation, 20_000_000);
    assert!(simulation.is_done());
    assert_eq!(launches(&simulation), 2);
}

#[test]
fn the_written_part_of_a_log_is_recovered_after_a_disk_failure() {
    for (reached, is_admitted) in [(0, false), (600, true)] {
        let (down, noticed) = (Duration::from_secs(2), Duration::ZERO);
        let mut simulation =
            simulation(&[(1_000_100, Fault::DiskFails { place: ProcessId::Server, reached, down, noticed })]);
        run(&mut simulation, 2_000_000);
        let has = |wanted: fn(&Change) -> bool| simulation.log().any(wanted);
        assert_eq!(has(|change| matches!(change, Change::JobAdmitted { .. })), is_admitted, "{reached} thousandths");
        assert!(!has(|change| matches!(change, Change::Launched { .. })), "launches are last in the turn");
        // The client was not answered and submits again. In both cases there is one job, each task of which runs once.
        run(&mut simulation, 20_000_000);
        assert!(simulation.is_done());
        assert_eq!(launches(&simulation), 2, "{reached} thousandths");
    }
}

#[test]
fn a_node_that_cannot_start_processes_fails_launches_until_it_can() {
    let mut simulation = simulation(&[(500_000, Fault::CannotLaunch { node: 0, lasts: Duration::from_secs(4) })]);
    let happened = run(&mut simulation, 30_000_000);
    let paused = happened.iter().filter_map(Happening::record);
    assert!(paused.filter(|record| matches!(record, Record::NodePaused { .. })).count() > 0);
    assert!(simulation.is_done() && launches(&simulation) > 2);
}

#[test]
fn a_slow_disk_delays_its_server_or_its_node() {
    let task_started = |place: Option<ProcessId>| {
        let slow = place.map(|place| (500_000, Fault::DiskSlow { place, lasts: Duration::from_secs(9) }));
        let mut simulation = simulation(slow.as_slice());
        while simulation.now().0 < 20_000_000 {
            simulation.step();
            let happened = simulation.take_happened();
            if happened.iter().any(|happening| matches!(happening, Happening::TaskStarted { .. })) {
                return simulation.now().0;
            }
        }
        panic!("no task started");
    };
    // The log of the submission and the launch take a hundred times as long: 99 times longer, in microseconds.
    let (usual, Costs { disk, launch, .. }) = (task_started(None), Costs::default());
    assert_eq!(task_started(Some(ProcessId::Server)), usual + 99 * disk / 1_000);
    assert!(task_started(Some(ProcessId::Node(0))) >= usual + 99 * launch / 1_000);
}

/// A job of 20 tasks of 5 s, of which the one node runs two at a time, whose manager has a process of its own.
fn simulation_with_a_host(plan: &[(u64, Fault)]) -> Simulation {
    let settings = Settings { preset: Preset::APOLLO, manager_processes: 1, ..Settings::default() };
    simulation_of(settings, 20, plan)
}

#[test]
fn a_job_whose_manager_has_its_own_process_continues_while_the_master_is_down() {
    let away =
        Fault::Crash { place: ProcessId::Server, down: Duration::from_secs(600), noticed: Duration::from_millis(100) };
    let mut simulation = simulation_with_a_host(&[(12_000_000, away)]);
    let happened = run(&mut simulation, 590_000_000);
    let ended = happened.iter().filter(|happening| matches!(happening, Happening::Ended { .. })).count();
    let committed = simulation.log().filter(|change| matches!(change, Change::Finished { .. })).count();
    assert_eq!((ended, committed), (20, 20), "each task runs once, and none waits for the master");
    assert!(simulation.master().is_none() && !simulation.is_done());
    run(&mut simulation, 640_000_000);
    assert!(simulation.is_done(), "the master learns that the job has ended");
    assert_eq!(launches(&simulation), 20);
}

#[test]
fn a_restarted_process_of_job_managers_adopts_running_attempts_and_repeats_none() {
    let crash = crash(ProcessId::Managers(0));
    let mut simulation = simulation_with_a_host(&[(12_000_000, crash.clone()), (23_000_000, crash)]);
    run(&mut simulation, 120_000_000);
    assert!(simulation.is_done());
    assert_eq!(launches(&simulation), 20);
}

#[test]
fn the_servers_copy_of_a_job_manager_equals_it_even_if_facts_are_reported_twice() {
    let mut simulation = simulation_with_a_host(&[(12_000_000, crash(ProcessId::Managers(0)))]);
    let happened = run(&mut simulation, 27_000_000);
    let reported = happened.into_iter().filter_map(|happening| match happening {
        Happening::Reported(ProcessId::Managers(0), fact) => Some((Instant(7), fact)),
        _ => None,
    });
    let reported: Vec<(Instant, Fact)> = reported.collect();
    let (settings, sealing) = (JobManagerSettings::default(), crate::sealing::of_life(7, Epoch(1)));
    let mut server = Roles::new(Preset::APOLLO, Epoch(1), settings, sealing).with_managers(Managers::Shared);
    let host = HostId(1);
    let half = reported.len() / 2;
    let new = |first: usize, facts: &[(Instant, Fact)], server: &mut Roles| {
        server.follow(host, first as u64, facts.to_vec()).map(|news| news.len())
    };
    let gap = Gap { expected: 0, received: half as u64 };
    assert_eq!(new(half, &reported[half..], &mut server), Err(gap), "the facts before these are missing");
    assert_eq!(new(0, &reported[..half], &mut server), Ok(half));
    assert_eq!(new(0, &reported[..half], &mut server), Ok(0));
    assert_eq!(new(half - 3, &reported[half - 3..], &mut server), Ok(reported.len() - half));
    assert_eq!(server.heard(host), reported.len() as u64);
    let (known, real) = (&server.jobs[&JobId(1)], simulation.job_manager(JobId(1)).unwrap());
    assert!(real.dag().stage(0).succeeded > 4 && real.running().count() > 0);
    assert_eq!(known.dag(), real.dag());
    assert!(known.running().eq(real.running()));
    let mut again = Roles::new(Preset::APOLLO, Epoch(2), settings, sealing).with_managers(Managers::Shared);
    again.recover(Default::default(), amalgam_core::policy::inter_job::QueueTree::single(), server.durable());
    assert_eq!((again.heard(host), again.jobs[&JobId(1)].dag()), (reported.len() as u64, real.dag()));
    let mut late = Roles::new(Preset::APOLLO, Epoch(3), settings, sealing).with_managers(Managers::Shared);
    new(0, &reported[..half], &mut late).unwrap();
    let news = late.follow_anew(host, 1_000, real.durable());
    assert_eq!((late.jobs[&JobId(1)].dag(), late.heard(host)), (real.dag(), 1_000));
    assert!(late.jobs[&JobId(1)].running().eq(real.running()));
    let logged = reported[..half].iter().filter_map(|(_, fact)| match fact {
        Fact::Change(change) => Some(change.clone()),
        Fact::Record(_) => None,
    });
    let logged = logged.chain(news).collect();
    let mut again = Roles::new(Preset::APOLLO, Epoch(4), settings, sealing).with_managers(Managers::Shared);
    again.recover(Default::default(), amalgam_core::policy::inter_job::QueueTree::single(), logged);
    assert_eq!((again.heard(host), again.jobs[&JobId(1)].dag()), (1_000, real.dag()));
    let gone = late.follow_anew(host, 2_000, Vec::new());
    assert_eq!(gone, [Change::Unmanaged { job: JobId(1) }, Change::Heard { host, next: 2_000 }]);
    assert!(late.jobs.is_empty());
}

#[test]
fn the_instants_of_another_process_are_converted_to_the_local_clock() {
    let mut simulation = simulation_with_a_host(&[]);
    run(&mut simulation, 27_000_000);
    let real = simulation.job_manager(JobId(1)).unwrap();
    let mut reported = real.durable();
    let offset = ClockOffset::between(Instant(1_000), Instant(500));
    reported.iter_mut().for_each(|change| change.set_clock(offset));
    let (settings, sealing) = (JobManagerSettings::default(), crate::sealing::of_life(7, Epoch(1)));
    let mut server = Roles::new(Preset::APOLLO, Epoch(1), settings, sealing).with_managers(Managers::Shared);
    server.follow_anew(HostId(1), 1, reported);
    let known = &server.jobs[&JobId(1)];
    let moved = |at: Instant| at + Duration::from_micros(500);
    assert_eq!(known.dag().first_launch(), real.dag().first_launch().map(moved));
    let at = |manager: &JobManager| manager.dag().stage(0).record(0).unwrap().at;
    assert_eq!(at(known), moved(at(real)));
}
