//! What daemons write to standard error: levels of parts, JSON, and ids of requests.

use crate::support::{Daemon, Scene};
use serde_json::Value;
use ureq::Agent;

/// A server with these variables, and flags after those of its addresses.
fn server(scene: &Scene, variables: &[(&str, &str)], flags: &[&str]) -> Daemon {
    let mut command =
        scene.command(&[&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"], flags].concat());
    command.envs(variables.iter().copied());
    Daemon::start(command).unwrap_or_else(|output| panic!("no server: {output}"))
}

fn ask(scene: &Scene, id: &str) {
    let url = format!("http://{}/v1/jobs/99", scene.http().address);
    let agent: Agent = Agent::config_builder().http_status_as_error(false).build().into();
    let bearer = format!("Bearer {}", scene.http().token);
    let answer = agent.get(url).header("authorization", bearer).header("x-request-id", id).call().unwrap();
    assert_eq!(answer.status(), 404);
}

#[test]
fn a_part_has_a_level_of_its_own_and_requests_have_ids() {
    let scene = Scene::new();
    let quiet = server(&scene, &[("AMALGAM_LOG", "debug,http=warn")], &[]);
    ask(&scene, "request-1");
    assert!(!quiet.kill().contains("request-1"));

    let verbose = server(&scene, &[("AMALGAM_LOG", "off,http=debug")], &[]);
    ask(&scene, "request-2");
    let said = verbose.kill();
    let line = said.lines().find(|line| line.contains("request-2")).unwrap_or_else(|| panic!("no line: {said}"));
    assert!(line.contains(" DEBUG http: answered a request request=\"request-2\" method=GET"), "{line}");
    assert!(line.contains("status=404"), "{line}");
    assert!(said.lines().all(|line| line.contains(" http: ")), "{said}");
}

#[test]
fn diagnostics_are_json_if_the_flag_or_the_variable_says_so() {
    let scene = Scene::new();
    let by_flag = (vec![("AMALGAM_LOG", "http=debug")], vec!["--log-format", "json"]);
    let by_variable = (vec![("AMALGAM_LOG", "http=debug"), ("AMALGAM_LOG_FORMAT", "json")], vec![]);
    for (variables, flags) in [by_flag, by_variable] {
        let server = server(&scene, &variables, &flags);
        ask(&scene, "request-3");
        let said = server.kill();
        let lines: Vec<Value> = said
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        let line = lines.iter().find(|line| line["request"] == "request-3").unwrap_or_else(|| panic!("none: {said}"));
        assert_eq!((&line["level"], &line["part"], &line["status"]), (&"debug".into(), &"http".into(), &404.into()));
        assert_eq!((&line["message"], &line["path"]), (&"answered a request".into(), &"/v1/jobs/99".into()));
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z') && time.len() > 20), "{line}");
    }
    // The flag decides.
    let server =
        server(&scene, &[("AMALGAM_LOG", "http=debug"), ("AMALGAM_LOG_FORMAT", "json")], &["--log-format", "text"]);
    ask(&scene, "request-4");
    assert!(server.kill().contains(" DEBUG http: answered"));
}
