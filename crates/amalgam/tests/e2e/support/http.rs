//! The public interface without the command line.

use super::Scene;
use amalgam_daemon::api::Event;
use amalgam_daemon::api::JOB_JSON;
use amalgam_workload::{CommandOptions, Context, from_command};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::time::Duration;
use ureq::http::Response;
use ureq::{Agent, Body, BodyReader};

pub struct Http {
    agent: Agent,
    base: String,
    pub address: String,
    pub token: String,
}

/// An answer's status and its body, which is null if it is not JSON.
pub type Answer = (u16, Value);

impl Http {
    pub fn new(address: &str, token: &str) -> Http {
        let config =
            Agent::config_builder().http_status_as_error(false).timeout_recv_response(Some(super::PATIENCE)).build();
        Http {
            agent: config.new_agent(),
            base: format!("http://{address}"),
            address: address.to_owned(),
            token: token.to_owned(),
        }
    }

    /// The same server, as another user.
    pub fn with_token(&self, token: &str) -> Http {
        Http::new(&self.address, token)
    }

    pub fn get(&self, path: &str) -> Answer {
        answer(self.agent.get(format!("{}{path}", self.base)).header("Authorization", self.bearer()).call().unwrap())
    }

    /// The text of an answer that is not JSON.
    pub fn text(&self, path: &str) -> String {
        let call = self.agent.get(format!("{}{path}", self.base)).header("Authorization", self.bearer());
        call.call().unwrap().body_mut().read_to_string().unwrap()
    }

    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut request = self.agent.post(format!("{}{path}", self.base)).header("Authorization", self.bearer());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(request.header("Content-Type", content_type(path)).send(body.to_string()).unwrap())
    }

    /// Like `post`, but the server may be gone.
    pub fn try_post(&self, path: &str, body: &Value) -> Option<Answer> {
        let request = self.agent.post(format!("{}{path}", self.base)).header("Authorization", self.bearer());
        request.header("Content-Type", content_type(path)).send(body.to_string()).ok().map(answer)
    }

    pub fn without_token(&self, path: &str) -> Answer {
        answer(self.agent.get(format!("{}{path}", self.base)).call().unwrap())
    }

    /// The events from a sequence number on.
    pub fn events(&self, from: u64) -> Events {
        self.events_at(&format!("from={from}"))
    }

    /// All stored events of a job.
    pub fn events_of(&self, job: u64) -> Events {
        self.events_at(&format!("job={job}"))
    }

    fn events_at(&self, query: &str) -> Events {
        let path = format!("{}/v1/events?{query}", self.base);
        let config = self.agent.get(path).header("Authorization", self.bearer()).config();
        let response = config.timeout_recv_body(Some(Duration::from_secs(20))).build().call().unwrap();
        assert_eq!(response.status(), 200);
        Events { lines: BufReader::new(response.into_body().into_reader()) }
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }
}

/// Jobs are sent in the form of our own clients.
fn content_type(path: &str) -> &'static str {
    if path == "/v1/jobs" { JOB_JSON } else { "application/json" }
}

fn answer(mut response: Response<Body>) -> Answer {
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap_or_default())
}

pub struct Events {
    lines: BufReader<BodyReader<'static>>,
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let mut line = String::new();
        while self.lines.read_line(&mut line).ok()? > 0 {
            if let Some(data) = line.strip_prefix("data:") {
                return serde_json::from_str(data.trim()).ok();
            }
            line.clear();
        }
        None
    }
}

/// A job in the form that the interface accepts.
pub fn job_spec(scene: &Scene, command: &[&str]) -> Value {
    let context = Context { submit_dir: scene.work() };
    let command = command.iter().map(|&part| part.into()).collect();
    serde_json::to_value(from_command(command, &CommandOptions::default(), &context).unwrap()).unwrap()
}
