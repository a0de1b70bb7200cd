//! The examples as a new user runs them: no server, a fresh directory.

use crate::support::{CommandOutput, PATIENCE, Scene, reported_within, result};
use std::fs;
use std::path::{Path, PathBuf};

/// Runs an example in a copy of the repository's sources, without a server.
fn run(scene: &Scene, example: &str) -> CommandOutput {
    let mut command = scene.command(&["run", &format!("examples/{example}.toml")]);
    command.current_dir(copy_of_repository(scene));
    // Ten thousand tasks take longer in a debug build.
    let result = reported_within(4 * PATIENCE, command);
    assert_eq!(result.code, 0, "{result:?}");
    let left: Vec<_> = fs::read_dir(scene.path().join("tmp")).unwrap().collect();
    assert!(left.is_empty(), "a cluster for one run leaves nothing behind: {left:?}");
    result
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn copy_of_repository(scene: &Scene) -> PathBuf {
    let copy = scene.path().join("repository");
    let sources = glob(&repository().join("crates"), "rs");
    let examples = glob(&repository().join("examples"), "toml");
    for path in sources.into_iter().chain(examples) {
        let target = copy.join(path.strip_prefix(repository()).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(path, target).unwrap();
    }
    copy
}

fn glob(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(glob(&path, ending));
        } else if path.extension().is_some_and(|is| is == ending) {
            found.push(path);
        }
    }
    found
}

#[test]
fn wordcount_makes_the_index_that_one_process_makes() {
    let scene = Scene::new();
    let result = run(&scene, "wordcount");
    assert!(result.out.contains("verified: "), "{result:?}");
    let index = fs::read_to_string(scene.path().join("repository/target/examples/wordcount/index")).unwrap();
    let line = index.lines().find(|line| line.starts_with("amalgam ")).unwrap();
    assert!(line.contains("crates/amalgam/src/main.rs:"), "{line}");
}

#[test]
fn sweep_collects_what_every_value_led_to() {
    let result = run(&Scene::new(), "sweep");
    assert!(result.out.contains("2.8 a cycle of 1") && result.out.contains("3.5 a cycle of 4"), "{result:?}");
    assert_eq!(result.out.matches("collect: ").count(), 14, "{result:?}");
}

#[test]
fn diamond_survives_a_failing_task() {
    let scene = Scene::new();
    let result = run(&scene, "diamond");
    assert!(result.out.contains("left + right = 42"), "{result:?}");
    assert!(result.out.contains(" failed, and this is attempt "), "{result:?}");
}

#[test]
fn shuffle_counts_what_its_nodes_handed_to_each_other() {
    let scene = Scene::new();
    let mut command = scene.command(&["run", "examples/shuffle.toml", "--nodes", "3"]);
    command.current_dir(copy_of_repository(&scene));
    let result = reported_within(4 * PATIENCE, command);
    assert!(result.code == 0 && result.out.contains("30000 words"), "{result:?}");
}

#[test]
fn ranks_meet_since_they_run_at_the_same_time() {
    let result = run(&Scene::new(), "ranks");
    assert!(result.out.contains("4 ranks met at three steps") && result.out.contains("12 meetings"), "{result:?}");
}

#[test]
fn an_array_of_ten_thousand_ends() {
    let result = run(&Scene::new(), "array");
    assert!(result.err.contains("10000/10000"), "{result:?}");
}

#[test]
fn every_example_is_accepted() {
    let scene = Scene::new();
    let mut check = scene.command(&["config", "check"]);
    check.current_dir(repository());
    let jobs = ["array", "diamond", "nightly", "query", "ranks", "shuffle", "sweep", "wordcount"];
    let result = result({
        check.args(jobs.map(|name| format!("examples/{name}.toml")));
        check
    });
    assert_eq!(result.out.matches(": ok (").count(), jobs.len(), "{result:?}");
}

#[test]
fn the_example_configuration_starts_a_server() {
    let scene = Scene::new();
    let config = repository().join("examples/server.toml");
    scene.start_dev(&["--config", config.to_str().unwrap()]);
    assert!(scene.ok(&["queue", "list"]).contains("root.research.training"));
    assert_eq!(scene.run(&["run", "--queue", "root.research.interactive", "--", "true"]).code, 0);
}

/// Rows without the run time of the simulation itself, and with normalised spaces.
fn rows(text: &str) -> Vec<String> {
    let row = |line: &str| line.split_whitespace().rev().skip(1).collect::<Vec<_>>().join(" ");
    text.lines().skip_while(|line| !line.starts_with("PRESET")).take_while(|line| !line.is_empty()).map(row).collect()
}

#[test]
fn the_docs_show_what_the_scenario_and_its_story_are_now() {
    let scene = Scene::new();
    let page = fs::read_to_string(repository().join("docs/simulator.md")).unwrap();
    let shown = |command: &str| {
        let begin = page.find(&format!("$ amalgam {command}")).unwrap_or_else(|| panic!("`{command}` is not shown"));
        page[begin..].split_once('\n').unwrap().1
    };
    let run = |arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.current_dir(repository());
        let result = reported_within(8 * PATIENCE, command);
        assert_eq!(result.code, 0, "{result:?}");
        result.out
    };
    let table = run(&["sim", "run", "examples/scenario.toml"]);
    assert!(rows(&table).len() > 10, "{table}");
    assert_eq!(
        rows(shown("sim run examples/scenario.toml")),
        rows(&table),
        "put this into docs/simulator.md:\n{table}"
    );
    // README has some of the rows.
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let in_readme: Vec<String> = rows(&readme).into_iter().take_while(|row| !row.is_empty()).collect();
    assert!(in_readme.len() > 5, "{readme}");
    let all = rows(&table);
    let wrong: Vec<&String> = in_readme.iter().filter(|row| !all.contains(row)).collect();
    assert!(wrong.is_empty(), "README.md shows other rows: {wrong:?}");
    let story = run(&["sim", "run", "examples/scenario.toml", "--preset", "drf", "--story", "7.2.0"]);
    let shown: Vec<&str> =
        shown("sim run examples/scenario.toml --preset drf").lines().take_while(|line| *line != "...").collect();
    assert!(shown.len() > 5);
    assert_eq!(shown, story.lines().take(shown.len()).collect::<Vec<_>>());
}
