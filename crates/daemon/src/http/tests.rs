//! Tests of the HTTP interface over real connections, with a fake cluster as the backend.

use super::fake::FakeServer;
use super::openapi::{CALLS, openapi};
use crate::api::*;
use crate::auth::{self, Holder, Scope, Scopes, TokenEntry, Which};
use crate::encoding;
use crate::versions::WIRE;
use amalgam_core::vocabulary::{IndexRange, Items, JobSpec, Program, StageSpec, TaskSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use ureq::Agent;

struct Client {
    _state: TempDir,
    server: FakeServer,
    agent: Agent,
    ada: String,
    bob: String,
}

struct Answered {
    status: u16,
    body: String,
}

impl Answered {
    fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
    fn error(&self) -> (u16, ErrorCode, String) {
        let error: Error = self.json();
        assert!(!error.remedy.is_empty(), "{error:?}");
        (self.status, error.error, error.message)
    }
}

impl Client {
    fn start() -> Client {
        let state = tempfile::tempdir().unwrap();
        let server = FakeServer::start(state.path(), "ada");
        let ada = auth::client_token(server.tokens.path(), "ada").unwrap();
        let bob = auth::add(
            server.tokens.path(),
            auth::TokenEntry::new(auth::Holder::User { name: "bob".to_owned(), admin: false }).unwrap(),
            false,
        )
        .unwrap()
        .token()
        .unwrap()
        .to_owned();
        let agent = Agent::config_builder().http_status_as_error(false).build().new_agent();
        Client { _state: state, server, agent, ada, bob }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address)
    }

    fn get(&self, token: &str, path: &str) -> Answered {
        let call = self.agent.get(self.url(path)).header("authorization", format!("Bearer {token}"));
        answered(call.call().unwrap())
    }

    fn post(&self, token: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answered {
        let mut call = self.agent.post(self.url(path)).header("authorization", format!("Bearer {token}"));
        for (name, value) in headers {
            call = call.header(*name, *value);
        }
        answered(call.send(body).unwrap())
    }

    fn submit(&self, token: &str, job: &JobSpec) -> u64 {
        let answer = self.post(token, "/v1/jobs", &[SPEC], &serde_json::to_vec(job).unwrap());
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.json::<Submitted>().job
    }

    fn act(&self, token: &str, job: u64, action: Action) -> Option<Error> {
        let body = serde_json::to_vec(&ActionRequest { jobs: vec![job], action, tasks: Vec::new() }).unwrap();
        self.post(token, "/v1/jobs/actions", &[], &body).json::<Vec<ActionResult>>().remove(0).error
    }
}

/// The header of a body that is a checked job in JSON.
const SPEC: (&str, &str) = ("content-type", JOB_JSON);

fn answered(mut response: ureq::http::Response<ureq::Body>) -> Answered {
    Answered { status: response.status().as_u16(), body: response.body_mut().read_to_string().unwrap() }
}

fn job(tasks: TaskSet, command: &[&str]) -> JobSpec {
    let command = command.iter().map(|&word| word.into()).collect();
    let stage = StageSpec {
        name: "main".to_owned(),
        after: vec![],
        tasks,
        program: Arc::new(Program { command, ..Program::default() }),
        resources: Default::default(),
        execution: Default::default(),
        constraints: vec![],
        ..StageSpec::default()
    };
    JobSpec { name: "test".to_owned(), submit_dir: "/tmp".into(), stages: vec![stage], ..JobSpec::default() }
}

#[test]
fn only_health_checks_are_answered_without_a_known_token() {
    let client = Client::start();
    for call in CALLS {
        let path = call.path.replace("{job}", "1").replace("{node}", "1");
        let answer = answered(client.agent.get(client.url(&path)).call().unwrap());
        match call.path {
            "/healthz" | "/readyz" => assert_eq!(answer.status, 200),
            "/ca.pem" => {
                assert_eq!((answer.status, answer.error().1), (404, ErrorCode::NotFound), "it has no authority")
            }
            _ => assert_eq!(answer.error().1, ErrorCode::Unauthorized, "{path}"),
        }
    }
    for header in ["Basic x", "Bearer", "Bearer wrong", ""] {
        let answer = client.agent.get(client.url("/v1/jobs")).header("authorization", header).call().unwrap();
        assert_eq!(answered(answer).error().0, 401, "{header}");
    }
}

#[test]
fn every_answer_has_the_id_of_its_request() {
    let client = Client::start();
    let ask = |token: &str, path: &str, id: &str| {
        let call = client.agent.get(client.url(path)).header("authorization", format!("Bearer {token}"));
        let answer = call.header("x-request-id", id).call().unwrap();
        let header = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        (header, answered(answer))
    };
    for (token, path, status) in [
        (client.ada.as_str(), "/v1/jobs", 200),
        (&client.ada, "/v1/jobs/7", 404),
        (&client.ada, "/v1/x", 404),
        ("wrong", "/v1/jobs", 401),
        ("", "/healthz", 200),
    ] {
        let (header, answer) = ask(token, path, "build-7");
        assert_eq!((header.as_str(), answer.status), ("build-7", status), "{path}");
        let (made, refused) = ask(token, path, "not allowed");
        assert!(made.len() == 16 && made.bytes().all(|byte| byte.is_ascii_hexdigit()), "{path}: {made}");
        if status >= 400 {
            assert_eq!(answer.json::<Error>().request.as_deref(), Some("build-7"), "{path}");
            assert_eq!(refused.json::<Error>().request.as_deref(), Some(made.as_str()), "{path}");
            assert!(!refused.json::<Error>().remedy.is_empty());
        }
    }
}

#[test]
fn every_described_call_exists_and_every_answer_has_a_schema() {
    let client = Client::start();
    client.submit(&client.ada, &job(TaskSet::Count(1), &["echo", "x"]));
    // Streams do not end, and this server has no authority.
    for call in CALLS.iter().filter(|call| call.method == "get" && !["/v1/events", "/ca.pem"].contains(&call.path)) {
        let mut path = call.path.replace("{job}", "1").replace("{node}", "1");
        if path.ends_with("/output") {
            path += "?task=0.0";
        }
        if path.ends_with("/content") {
            path += "?task=main.0&name=said";
        }
        let answer = client.get(&client.ada, &path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let text = serde_json::to_string(&openapi()).unwrap();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(openapi().pointer(pointer).is_some(), "{pointer} not found");
    }
}

/// A call that has parameters names all of them in the answer to an unknown one.
#[test]
fn the_described_parameters_are_exactly_those_that_are_read() {
    let client = Client::start();
    let mut checked = 0;
    for call in CALLS.iter().filter(|call| call.path.starts_with("/v1/")) {
        let path = call.path.replace("{job}", "1").replace("{node}", "1") + "?zzz=1";
        let answer = match call.method {
            "get" => client.get(&client.ada, &path),
            _ => client.post(&client.ada, &path, &[], b""),
        };
        let described: Vec<&str> = call.parameters.iter().map(|(name, _)| *name).collect();
        let Some((_, known)) = answer.body.split_once("unknown field `zzz`, ") else {
            assert!(described.is_empty(), "{} {} reads no parameters: {}", call.method, call.path, answer.body);
            continue;
        };
        let mut read: Vec<&str> = known.split('`').skip(1).step_by(2).filter(|name| !name.contains(' ')).collect();
        let last = read.iter().position(|name| name.starts_with('/')).unwrap_or(read.len());
        read.truncate(last);
        assert_eq!(described, read, "{} {}: {}", call.method, call.path, answer.body);
        checked += 1;
    }
    assert!(checked > 5, "{checked} calls with parameters");
}

#[test]
fn a_submitted_job_is_listed_and_has_details_output_and_a_story() {
    let client = Client::start();
    let id = client.submit(&client.ada, &job(TaskSet::Count(2), &["echo", "hello", "you"]));
    let listed: Listing<JobSummary> = client.get(&client.ada, "/v1/jobs?state=succeeded&user=ada").json();
    assert_eq!((listed.items.len(), listed.items[0].user.as_str(), listed.items[0].tasks.succeeded), (1, "ada", 2));
    assert_eq!(client.get(&client.ada, "/v1/jobs?state=held").json::<Listing<JobSummary>>().items, []);

    let detail: JobDetail = client.get(&client.ada, &format!("/v1/jobs/{id}")).json();
    assert_eq!(
        (detail.summary.state, detail.stages[0].tasks.total, detail.exit_code),
        (JobState::Succeeded, 2, Some(0))
    );
    let output = |query: &str| client.get(&client.ada, &format!("/v1/jobs/{id}/output?task=0.1{query}")).body;
    assert_eq!((output("").as_str(), output("&stream=stderr").as_str()), ("hello you\n", ""));
    assert_eq!((output("&offset=6&follow=true").as_str(), output("&limit=5").as_str()), ("you\n", "hello"));
    let story: Listing<StoryLine> = client.get(&client.ada, &format!("/v1/jobs/{id}/story?task=0.1")).json();
    assert_eq!(story.items.iter().map(|line| line.kind.as_str()).collect::<Vec<_>>(), ["task-ended"]);
}

#[test]
fn lists_are_returned_in_pages() {
    let client = Client::start();
    for _ in 0..5 {
        client.submit(&client.ada, &job(TaskSet::Count(1), &["echo"]));
    }
    let (mut seen, mut cursor) = (vec![], String::new());
    loop {
        let page: Listing<JobSummary> = client.get(&client.ada, &format!("/v1/jobs?limit=2{cursor}")).json();
        assert!(page.items.len() <= 2);
        seen.extend(page.items.iter().map(|job| job.id));
        let Some(next) = page.next else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, [5, 4, 3, 2, 1]);
}

#[test]
fn a_repeated_submission_with_the_same_key_is_one_job() {
    let client = Client::start();
    let body = serde_json::to_vec(&job(TaskSet::Count(1), &["echo"])).unwrap();
    let submit = |key: &str| client.post(&client.ada, "/v1/jobs", &[SPEC, ("idempotency-key", key)], &body);
    assert_eq!(submit("a").json::<Submitted>(), submit("a").json::<Submitted>());
    assert_eq!(submit("b").json::<Submitted>().job, 2);
    assert_eq!(submit("").error().0, 400);
}

#[test]
fn other_users_jobs_are_listed_but_cannot_be_read_or_changed() {
    let client = Client::start();
    let adas = client.submit(&client.ada, &job(TaskSet::Count(1), &["hang"]));
    let bobs = client.submit(&client.bob, &job(TaskSet::Count(1), &["hang"]));
    assert_eq!(client.get(&client.bob, "/v1/jobs").json::<Listing<JobSummary>>().items.len(), 2);
    for what in ["", "/tasks", "/story", "/wait", "/output?task=0.0"] {
        let (status, code, message) = client.get(&client.bob, &format!("/v1/jobs/{adas}{what}")).error();
        assert_eq!((status, code), (403, ErrorCode::Forbidden), "{what}");
        assert_eq!(message, "job 1 belongs to ada, and you are bob");
    }
    assert_eq!(client.act(&client.bob, adas, Action::Cancel).unwrap().error, ErrorCode::Forbidden);
    assert_eq!(client.act(&client.bob, bobs, Action::Cancel), None);
    let drain = |token: &str| client.post(token, "/v1/nodes/1/drain", &[], b"{\"drain\": true}").status;
    assert_eq!((drain(&client.bob), drain(&client.ada)), (403, 204));
    // Ada is an administrator.
    let third = client.submit(&client.bob, &job(TaskSet::Count(1), &["hang"]));
    assert_eq!(client.act(&client.ada, third, Action::Cancel), None);
}

#[test]
fn wait_answers_when_the_job_ends_or_its_timeout_passes() {
    let client = Client::start();
    let id = client.submit(&client.ada, &job(TaskSet::Count(1), &["hang"]));
    let wait = |seconds: f64| -> Waited {
        client.get(&client.ada, &format!("/v1/jobs/{id}/wait?timeout_seconds={seconds}")).json()
    };
    assert_eq!((wait(0.02).state, wait(0.0).exit_code), (JobState::Running, None));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(30.0));
        let follow =
            scope.spawn(|| client.get(&client.ada, &format!("/v1/jobs/{id}/output?task=0.0&follow=true")).body);
        assert_eq!(client.act(&client.ada, id, Action::Cancel), None);
        let waited = waiting.join().unwrap();
        assert_eq!((waited.state, waited.exit_code), (JobState::Cancelled, Some(130)));
        assert_eq!(follow.join().unwrap(), "hanging\n");
    });
    assert_eq!(client.act(&client.ada, id, Action::Cancel).unwrap().error, ErrorCode::Conflict);
}

#[test]
fn the_event_stream_resumes_after_the_last_event_id() {
    let client = Client::start();
    for token in [&client.ada, &client.bob] {
        client.submit(token, &job(TaskSet::Count(1), &["echo"]));
    }
    let ids = |token: &str, query: &str, last: Option<&str>, count: usize| -> Vec<String> {
        let mut call = client
            .agent
            .get(client.url(&format!("/v1/events{query}")))
            .header("authorization", format!("Bearer {token}"));
        if let Some(last) = last {
            call = call.header("last-event-id", last);
        }
        let lines = BufReader::new(call.call().unwrap().into_body().into_reader()).lines().map(Result::unwrap);
        lines.filter_map(|line| Some(line.strip_prefix("id: ")?.to_owned())).take(count).collect()
    };
    assert_eq!(ids(&client.ada, "", None, 8), ["1", "2", "3", "4", "5", "6", "7", "8"]);
    assert_eq!(ids(&client.ada, "?from=7", None, 2), ["7", "8"]);
    assert_eq!(ids(&client.ada, "?from=1", Some("3"), 2), ["4", "5"]);
    assert_eq!(ids(&client.ada, "?job=2", None, 1), ["5"]);
    assert_eq!(ids(&client.bob, "", None, 4), ["5", "6", "7", "8"]);
}

#[test]
fn a_job_of_a_million_items_is_accepted() {
    let client = Client::start();
    let mut items = Items::default();
    (0..1_000_000).for_each(|number| items.push(format!("input/{number:07}.dat")).unwrap());
    // Held, since the fake cluster has a record for each task.
    let each = JobSpec { held: true, ..job(TaskSet::Each(items), &["x"]) };
    let body = encoding::to_vec(&each).unwrap();
    let started = Instant::now();
    let answer = client.post(&client.ada, "/v1/jobs", &[("content-type", JOB_MSGPACK)], &body);
    println!("1,000,000 items of {} bytes accepted in {:?}", body.len(), started.elapsed());
    assert_eq!(answer.status, 201, "{}", answer.body);
}

#[test]
fn invalid_requests_get_an_error_that_names_the_problem() {
    let client = Client::start();
    let status = |path: &str| client.get(&client.ada, path).error().0;
    assert_eq!(status("/v1/nothing"), 404);
    assert_eq!(status("/v1/jobs/77"), 404);
    assert_eq!(status("/v1/jobs/many"), 400);
    assert_eq!(status("/v1/jobs?colour=red"), 400);
    assert_eq!(status("/v1/jobs?state=idle"), 400);
    assert_eq!(status("/v1/jobs?cursor=x"), 400);
    assert_eq!(status("/v1/nodes/9"), 404);
    client.submit(&client.ada, &job(TaskSet::Count(1), &["echo"]));
    assert_eq!(status("/v1/jobs/1/output?task=all"), 400);
    assert_eq!(status("/v1/jobs/1/output?task=0.9"), 404);
    assert_eq!(status("/v1/jobs/1/output?task=0.0&attempt=2-1-1"), 400);
    assert_eq!(client.post(&client.ada, "/v1/queues", &[], b"").error().0, 405);

    let refused =
        |job: &JobSpec| client.post(&client.ada, "/v1/jobs", &[SPEC], &serde_json::to_vec(job).unwrap()).error();
    assert_eq!(refused(&job(TaskSet::Count(1), &[])).2, "stage 0 (`main`) has no command");
    assert_eq!(refused(&job(TaskSet::Count(0), &["x"])).2, "stage 0 (`main`) has no tasks");
    assert_eq!(refused(&job(TaskSet::Count(1), &["a\0b"])).0, 400);
    let everything = vec![IndexRange { first: 0, last: u64::MAX, step: 1 }];
    assert!(refused(&job(TaskSet::Indexes(everything), &["x"])).2.contains("may have at most"));
    let mut own_tail = job(TaskSet::Count(1), &["x"]);
    own_tail.stages[0].after = vec![0];
    assert!(refused(&own_tail).2.contains("depends on itself"));
    for kind in ["application/json", JOB_MSGPACK, SPEC.1] {
        let answer = client.post(&client.ada, "/v1/jobs", &[("content-type", kind)], b"\xff\xff{rubbish");
        assert_eq!(answer.error().0, 400, "{kind}");
    }
    let whole = encoding::to_vec(&job(TaskSet::Count(1), &["x"])).unwrap();
    let of_version = |version: &str| {
        let kind = format!("{JOB_MSGPACK}; version={version}");
        client.post(&client.ada, "/v1/jobs", &[("content-type", &kind)], &whole)
    };
    assert_eq!(of_version(&WIRE.newest.to_string()).status, 201);
    for version in [(WIRE.newest + 1).to_string(), (WIRE.oldest - 1).to_string(), "x".to_owned()] {
        let (status, _, message) = of_version(&version).error();
        assert_eq!((status, message), (400, format!("the job has version {version}, and this server reads {WIRE}")));
    }
}

#[test]
fn job_files_are_accepted_in_every_format() {
    let client = Client::start();
    let post = |kind: &str, query: &str, text: &[u8]| {
        client.post(&client.ada, &format!("/v1/jobs{query}"), &[("content-type", kind)], text)
    };
    for (kind, text) in [
        ("application/toml", "\u{feff}name = 'n'\r\ncommand = ['echo', 'x']\r\n"),
        ("text/x-yaml", "name: n\ncommand: [echo, x]\n"),
        ("application/json; charset=utf-8", "{\"name\": \"n\", \"command\": [\"echo\", \"x\"]}"),
    ] {
        let answer = post(kind, "", text.as_bytes());
        assert_eq!(answer.status, 201, "{kind}: {}", answer.body);
        let id = answer.json::<Submitted>().job;
        let detail = client.get(&client.ada, &format!("/v1/jobs/{id}")).json::<JobDetail>();
        assert_eq!((detail.summary.name.as_str(), detail.stages[0].command.len()), ("n", 2));
    }
    let answer = post("application/toml", "?submit_dir=/srv/data", b"command = 'pwd'");
    let id = answer.json::<Submitted>().job;
    assert_eq!(client.get(&client.ada, &format!("/v1/jobs/{id}")).json::<JobDetail>().submit_dir, "/srv/data");

    let refused = |kind: &str, query: &str, text: &[u8]| {
        let answer = post(kind, query, text);
        assert_eq!(answer.status, 400, "{}", answer.body);
        let error: Error = serde_json::from_str(&answer.body).unwrap();
        format!("{}; {}", error.message, error.remedy)
    };
    let printed = refused("application/yaml", "", b"command: x\ncolour: red\n");
    assert!(printed.contains("line 2, column 1: unknown key `colour`"), "{printed}");
    for each in ["'*.txt'", "{ lines = 'list' }", "{ json = '/etc/passwd' }", "{ files = '/etc/*' }"] {
        let printed = refused("application/toml", "?submit_dir=/", format!("command = 'x'\neach = {each}").as_bytes());
        assert!(printed.contains("line 2, column 8") && printed.contains("cannot read"), "{printed}");
    }
    assert!(refused("application/toml", "", b"command = 'x'\nworkdir = 'submitted'").contains("?submit_dir="));
    assert!(refused("application/toml", "?submit_dir=here", b"command = 'x'").contains("not absolute"));
    assert!(refused("application/toml", "", b"command = 'x'\nexport = 'all'").contains("line 2, column 10"));
    assert!(refused("application/toml", "", b"\xff\xfec\0").contains("UTF-16"));
    assert!(refused("application/x-www-form-urlencoded", "", b"command = 'x'").contains("application/toml"));
    let unsaid = client.post(&client.ada, "/v1/jobs", &[], b"command = 'x'").error();
    assert!(unsaid.0 == 400 && unsaid.2.contains("Content-Type"), "{}", unsaid.2);
}

#[test]
fn a_body_above_the_limit_is_refused_before_it_is_read() {
    let client = Client::start();
    let mut stream = TcpStream::connect(client.server.address).unwrap();
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        client.ada,
        super::MAX_BODY + 1
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[test]
fn no_job_is_submitted_if_the_client_disconnects_before_the_end_of_the_body() {
    let client = Client::start();
    let body = serde_json::to_vec(&job(TaskSet::Count(1), &["echo"])).unwrap();
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: {}\r\ncontent-length: {}\r\n\r\n",
        client.ada,
        SPEC.1,
        body.len()
    );
    let mut stream = TcpStream::connect(client.server.address).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body[..body.len() - 1]).unwrap();
    drop(stream);
    // The next job gets id 1, so the first submission was not accepted.
    assert_eq!(client.submit(&client.ada, &job(TaskSet::Count(1), &["echo"])), 1);
    assert_eq!(client.get(&client.ada, "/v1/jobs").json::<Listing<JobSummary>>().items.len(), 1);
}

#[test]
fn streams_end_when_the_server_stops() {
    let client = Client::start();
    client.submit(&client.ada, &job(TaskSet::Count(1), &["hang"]));
    let events = client.agent.get(client.url("/v1/events")).header("authorization", format!("Bearer {}", client.ada));
    let mut events = events.call().unwrap().into_body().into_reader();
    let follow = client.agent.get(client.url("/v1/jobs/1/output?task=0.0&follow=true"));
    let mut output =
        follow.header("authorization", format!("Bearer {}", client.ada)).call().unwrap().into_body().into_reader();
    let started = Instant::now();
    drop(client);
    assert!(started.elapsed() < Duration::from_secs(5));
    let (mut reported, mut written) = (String::new(), String::new());
    events.read_to_string(&mut reported).unwrap();
    output.read_to_string(&mut written).expect_err("a regular end would mean that the task has ended");
    assert_eq!(written, "hanging\n");
}

/// A token of this user for these scopes.
fn token_for(client: &Client, user: &str, scopes: &[Scope]) -> TokenEntry {
    let entry = TokenEntry::new(Holder::User { name: user.to_owned(), admin: false }).unwrap();
    let name = scopes.iter().map(Scope::to_string).collect::<Vec<_>>().join("-");
    let entry = TokenEntry { name: Some(name), scopes: Scopes::of(scopes.iter().copied()).unwrap(), ..entry };
    auth::add(client.server.tokens.path(), entry, false).unwrap()
}

fn held() -> JobSpec {
    JobSpec { held: true, ..job(TaskSet::Count(1), &["true"]) }
}

#[test]
fn a_token_is_good_for_its_scopes_only() {
    let client = Client::start();
    let [reads, submits, operates] = [Scope::Read, Scope::Submit, Scope::Operate]
        .map(|scope| token_for(&client, "bob", &[scope]).token().unwrap().to_owned());
    let spec = serde_json::to_vec(&held()).unwrap();
    let submit = |token: &str| client.post(token, "/v1/jobs", &[SPEC], &spec).status;
    let list = |token: &str| client.get(token, "/v1/jobs").status;
    assert_eq!((list(&reads), submit(&reads)), (200, 403));
    assert_eq!((list(&submits), submit(&submits)), (403, 201));
    assert_eq!((list(&operates), submit(&operates)), (403, 403));
    let (status, code, message) = client.get(&submits, "/v1/jobs").error();
    assert_eq!((status, code), (403, ErrorCode::Forbidden));
    assert_eq!(message, "the token of bob is only for submit");

    // Acting on nodes and on the jobs of others.
    let of_ada = client.submit(&client.ada, &held());
    let helper = token_for(&client, "bob", &[Scope::Read, Scope::Submit, Scope::Operate]).token().unwrap().to_owned();
    let drain = |token: &str| client.post(token, "/v1/nodes/0/drain", &[], b"{\"drain\":true}").status;
    // The fake cluster has no nodes.
    assert_eq!((drain(&client.bob), drain(&helper), drain(&client.ada)), (403, 404, 404));
    assert!(client.act(&client.bob, of_ada, Action::Cancel).is_some());
    assert!(client.act(&helper, of_ada, Action::Cancel).is_none());
}

#[test]
fn what_is_changed_is_in_the_audit_log_and_what_is_read_is_not() {
    let client = Client::start();
    let ci = token_for(&client, "bob", &[Scope::Read, Scope::Submit]);
    let job = client.submit(ci.token().unwrap(), &held());
    client.get(&client.ada, "/v1/jobs");
    client.act(&client.bob, job, Action::Cancel);
    client.act(&client.bob, 9_999, Action::Cancel);
    client.post(&client.bob, "/v1/nodes/0/drain", &[], b"{\"drain\":true}");
    client.post("forged", "/v1/jobs", &[SPEC], b"{}");
    let text = std::fs::read_to_string(client._state.path().join("audit.log")).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let field = |line: usize, name: &str| lines[line][name].as_str().map(str::to_owned);
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(
        (field(0, "user").as_deref(), field(0, "token").as_deref(), field(0, "what")),
        (Some("bob"), Some("read-submit"), Some(format!("submit job {job}, test")))
    );
    assert!(field(0, "from").unwrap().starts_with("127.0.0.1:") && lines[0]["status"] == 201);
    assert_eq!(field(1, "what"), Some(format!("cancel job {job}")));
    assert_eq!(field(2, "what").as_deref(), Some("cancel job 9999; refused for job 9999"));
    let refused = (field(3, "what"), field(3, "result"));
    assert_eq!(refused, (Some("drain node 0".to_owned()), Some("bob is not an administrator".to_owned())));
    assert!(lines[4]["user"].is_null() && lines[4]["status"] == 401, "{}", lines[4]);
    assert!(!text.contains(ci.token().unwrap()) && !text.contains("forged"));
}

#[test]
fn nodes_are_changed_by_operators_queues_by_administrators_and_the_audit_log_has_what_was_there_before() {
    let client = Client::start();
    let helper = token_for(&client, "bob", &[Scope::Read, Scope::Submit, Scope::Operate]).token().unwrap().to_owned();
    let status = |token: &str, path: &str, body: &[u8]| client.post(token, path, &[], body).status;
    let label = b"{\"set\":{\"zone\":\"north\"}}";
    let labels = |token: &str| status(token, "/v1/nodes/1/labels", label);
    assert_eq!((labels(&client.bob), labels(&helper), labels(&client.ada)), (403, 200, 200));
    let weight = b"{\"set\":{\"weight\":\"2\"}}";
    let weights = |token: &str| status(token, "/v1/queues/default", weight);
    assert_eq!((weights(&client.bob), weights(&helper), weights(&client.ada)), (403, 403, 200));
    assert_eq!(status(&client.ada, "/v1/queues/none", weight), 404);
    for wrong in [&b"{}"[..], b"{\"reset\":true,\"set\":{\"weight\":\"2\"}}", b"{\"set\":{\"weight\":\"-2\"}}"] {
        assert_eq!(status(&client.ada, "/v1/queues/default", wrong), 400);
    }
    assert_eq!((status(&helper, "/v1/reload", b""), status(&client.ada, "/v1/reload", b"")), (403, 200));
    let reports = |token: &str| client.get(token, "/v1/report?by=user,day").body;
    assert!(reports(&client.bob).contains("\"user\":\"bob\"") && !reports(&helper).contains("\"user\""));
    for wrong in ["by=week", "from=soon", "from=2026-11-02&to=2026-11-01"] {
        assert_eq!(client.get(&client.ada, &format!("/v1/report?{wrong}")).status, 400);
    }

    let agent = TokenEntry::new(Holder::agent("fake")).unwrap();
    let agent = auth::add(client.server.tokens.path(), agent, false).unwrap();
    let call = client.agent.delete(client.url("/v1/nodes/1")).header("authorization", format!("Bearer {helper}"));
    assert_eq!(answered(call.call().unwrap()).status, 204);
    assert!(!client.server.tokens.is_valid(agent.token().unwrap()));

    let text = std::fs::read_to_string(client._state.path().join("audit.log")).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |what: &str| {
        let is_done = |line: &&serde_json::Value| line["what"] == what && line["result"] == "ok";
        let line = lines.iter().rfind(is_done).unwrap_or_else(|| panic!("no {what}: {text}"));
        (line["before"].as_str().unwrap(), line["after"].as_str().unwrap())
    };
    assert_eq!(of("label node 1").0, "zone not set");
    assert!(of("set queue default").0.starts_with("weight=1 guaranteed=0 maximum=1 "));
    assert_eq!(of("remove node 1"), ("fake up", "removed, its token revoked"));
}

#[test]
fn streams_and_requests_of_a_removed_or_expired_token_end() {
    let client = Client::start();
    let open = |token: &str| {
        let call = client.agent.get(client.url("/v1/events")).header("authorization", format!("Bearer {token}"));
        call.call().unwrap().into_body().into_reader()
    };
    let until = Some(std::time::SystemTime::now() + Duration::from_secs(3));
    let brief = TokenEntry { until, ..TokenEntry::new(Holder::User { name: "eve".to_owned(), admin: false }).unwrap() };
    let brief = auth::add(client.server.tokens.path(), brief, false).unwrap();
    let (mut of_bob, mut of_eve) = (open(&client.bob), open(brief.token().unwrap()));
    let started = Instant::now();
    auth::remove(client.server.tokens.path(), &Which { holder: "bob", role: None, name: None }).unwrap();
    assert_eq!(client.get(&client.bob, "/v1/jobs").status, 401);
    for stream in [&mut of_bob, &mut of_eve] {
        // It ends with an error, as it is cut.
        let mut read = String::new();
        assert!(stream.read_to_string(&mut read).is_err(), "{read}");
    }
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!(client.get(brief.token().unwrap(), "/v1/jobs").status, 401);

    // A request that waits is answered.
    let waiting = token_for(&client, "ann", &[Scope::Read, Scope::Submit]);
    let job = client.submit(waiting.token().unwrap(), &held());
    std::thread::scope(|scope| {
        let waits = scope
            .spawn(|| client.get(waiting.token().unwrap(), &format!("/v1/jobs/{job}/wait?timeout_seconds=60")).status);
        std::thread::sleep(Duration::from_millis(200));
        auth::remove(client.server.tokens.path(), &Which { holder: "ann", role: None, name: None }).unwrap();
        assert_eq!(waits.join().unwrap(), 401);
    });
}
