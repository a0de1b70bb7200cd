//! Thousands of short tasks while the daemons are killed repeatedly: every task ends once, and the story has a reason for each
//! task that ran twice.
//!
//! AMALGAM_KILL_SEED selects the times and victims; a failure prints the seed. The long form runs many seeds:
//! `cargo test --release -p amalgam --test e2e kill_loop -- --ignored --nocapture`

use crate::support::{Cluster, until_true};
use amalgam_daemon::api::{JobState, StoryLine, TaskState, TaskSummary};
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

const TASKS: usize = 2_000;
const KILLS: usize = 20;

/// The daemons to kill.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Victims {
    Server,
    All,
}

#[test]
fn a_server_killed_again_and_again_runs_no_task_twice() {
    kill_loop(Victims::Server, seed(), TASKS, KILLS);
}

#[test]
fn daemons_killed_again_and_again_lose_no_task() {
    kill_loop(Victims::All, seed(), TASKS, KILLS);
}

#[test]
#[ignore = "takes many minutes"]
fn many_seeds() {
    for seed in 1..=20 {
        for victims in [Victims::Server, Victims::All] {
            kill_loop(victims, seed, TASKS, KILLS);
        }
    }
}

/// The seed of a test's random choices.
pub fn seed() -> u64 {
    std::env::var("AMALGAM_KILL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn kill_loop(victims: Victims, seed: u64, tasks: usize, kills: usize) {
    println!("{victims:?}, AMALGAM_KILL_SEED={seed}");
    let mut random = Random(seed);
    // So short that an agent's death often loses its node.
    let config = match victims {
        Victims::Server => "",
        Victims::All => "heartbeat = '100ms'\nmissed_heartbeats = 3\nnode_grace = '400ms'\n",
    };
    let cluster = Cluster::start(2, 4, config);
    let scene = &cluster.scene;
    let lines = || scene.read("lines");
    let script = "echo $AMALGAM_TASK_ID $AMALGAM_ATTEMPT >> lines";
    let range = format!("0-{}", tasks - 1);
    let started = Instant::now();
    let id = scene.submit(&["--array", &range, "--", "sh", "-c", script]);

    // Kills follow the tasks' own progress, so that all of them happen during the run on any machine.
    let mut moments: Vec<usize> = (0..kills).map(|_| random.below(tasks * 19 / 20)).collect();
    moments.sort_unstable();
    let mut server_kills = 0;
    for moment in moments {
        until_true("progress", || lines().lines().count() > moment);
        thread::sleep(Duration::from_micros(random.below(20_000) as u64));
        let victim = if victims == Victims::Server { 0 } else { random.below(3) };
        match victim {
            0 => {
                server_kills += 1;
                cluster.kill_server();
                thread::sleep(Duration::from_millis(random.below(200) as u64));
                cluster.start_server();
            }
            agent => {
                cluster.kill_agent(agent - 1);
                // Back within the grace period, or too late.
                thread::sleep(Duration::from_millis(random.below(1_500) as u64));
                cluster.start_agent(agent - 1);
            }
        }
    }
    let waited = scene.run(&["wait", &id]);
    let ran = started.elapsed();

    let job = scene.job(&id).summary;
    assert_eq!((waited.code, job.state), (0, JobState::Succeeded), "seed {seed}: {waited:?} {job:?}");
    let surplus = check(&lines(), &scene.tasks(&id), &scene.story(&id), tasks, seed);
    println!(
        "{tasks} tasks, {kills} kills ({server_kills} of the server) in {:.1} s, {surplus} surplus lines, all explained",
        ran.as_secs_f64()
    );
    if victims == Victims::Server {
        assert_eq!(surplus, 0, "seed {seed}: a server's death costs no attempt");
    }
}

/// Compares the tasks' output with the store. Returns the number of lines that abandoned attempts wrote.
fn check(lines: &str, tasks: &[TaskSummary], story: &[StoryLine], count: usize, seed: u64) -> usize {
    let mut wrote: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines.lines() {
        let (task, attempt) = line.split_once(' ').unwrap_or_else(|| panic!("seed {seed}: `{line}` is no whole line"));
        wrote.entry(task).or_default().push(attempt);
    }
    let result = |kind: &str| -> Vec<(&str, &str)> {
        let of_kind = story.iter().filter(|line| line.kind == kind);
        of_kind.filter_map(|line| Some((line.task.as_deref()?, line.attempt.as_deref()?))).collect()
    };
    let ends = result("ended");
    let lost: BTreeSet<(&str, &str)> = result("lost").into_iter().collect();
    let ended: BTreeMap<&str, &str> = ends.iter().copied().collect();
    assert_eq!((ends.len(), ended.len()), (count, count), "seed {seed}: every task has ended once in the store");
    assert_eq!(tasks.len(), count);
    let mut surplus = 0;
    for task in tasks {
        assert_eq!(task.state, TaskState::Succeeded, "seed {seed}: {task:?}");
        let name = task.task.as_str();
        let attempts = wrote.get(name).map_or(&[][..], Vec::as_slice);
        let (own, others): (Vec<&str>, Vec<&str>) = attempts.iter().partition(|attempt| **attempt == ended[name]);
        assert_eq!(own.len(), 1, "seed {seed}: task {name} ended as {} and wrote {attempts:?}", ended[name]);
        for other in others {
            assert!(lost.contains(&(name, other)), "seed {seed}: nothing explains attempt {other} of task {name}");
            surplus += 1;
        }
    }
    surplus
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }
}
