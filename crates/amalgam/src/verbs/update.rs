//! `amalgam update`

use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::selectors::ACTIVE;
use crate::selectors::{Selector, existing, resolve};
use crate::{discovery, show};
use amalgam_core::vocabulary::Duration;
use amalgam_daemon::api::{ActionResult, UpdateRequest};
use amalgam_workload::quantities;
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub struct UpdateArgs {
    /// Jobs that have not ended, then what is to change: `7 priority=5 timeout=10m queue=root.b`. A timeout counts from the start
    /// of each attempt, also of those that run; `timeout=none` is the queue's own. A job whose tasks hold room stays in its queue
    #[arg(required = true, value_name = "JOBS | KEY=VALUE", value_parser = Word::parse)]
    words: Vec<Word>,
    /// Print the interface's JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone)]
enum Word {
    Jobs(Selector),
    Priority(i32),
    Timeout(Duration),
    Queue(String),
}

impl Word {
    fn parse(text: &str) -> std::result::Result<Word, String> {
        match text.split_once('=') {
            None => Selector::parse(text).map(Word::Jobs),
            Some(("priority", value)) => {
                value.parse().map(Word::Priority).map_err(|_| format!("`{value}` is not a whole number"))
            }
            Some(("timeout", "none")) => Ok(Word::Timeout(Duration::ZERO)),
            Some(("timeout", value)) => {
                quantities::parse_timeout(value).map(Word::Timeout).map_err(|wrong| wrong.to_string())
            }
            Some(("queue", "")) => Err("name a queue; `amalgam queue list` shows them".to_owned()),
            Some(("queue", value)) => Ok(Word::Queue(value.to_owned())),
            Some((key, _)) => Err(format!("`{key}` cannot be changed; known: priority, timeout, queue")),
        }
    }
}

pub fn execute(args: UpdateArgs, connection: &Connection) -> Result<ExitCode> {
    let (mut selectors, mut request) = (Vec::new(), UpdateRequest::default());
    for word in args.words {
        match word {
            Word::Jobs(selector) => selectors.push(selector),
            Word::Priority(priority) => request.priority = Some(priority),
            Word::Timeout(timeout) => request.timeout_seconds = Some(timeout.as_secs_f64()),
            Word::Queue(queue) => request.queue = Some(queue),
        }
    }
    if selectors.is_empty() {
        return Err(Failure::usage("no job is given", "write for instance `amalgam update 7 priority=5`"));
    }
    if (request.priority, request.timeout_seconds, &request.queue) == (None, None, &None) {
        return Err(Failure::usage("no change is given", "write for instance `amalgam update 7 priority=5`"));
    }
    let client = discovery::connect(connection)?;
    let named = resolve(&client, &selectors, ACTIVE)?;
    request.jobs = existing(&client, &named)?;
    let results: Vec<ActionResult> = client.post("/v1/jobs/update", &request)?;
    let (mut text, mut failures) = (String::new(), Vec::new());
    for ActionResult { job, error, waits_for, unchanged, .. } in results.iter().cloned() {
        match (error, unchanged, waits_for) {
            (Some(error), ..) => failures.push(Failure::from(error)),
            (None, Some(how), _) => text.push_str(&format!("job {job}: {how}\n")),
            (None, None, Some(who)) => text.push_str(&format!("job {job}: waits for {}\n", show::visible(&who))),
            (None, None, None) => text.push_str(&format!("job {job} updated\n")),
        }
    }
    if args.json {
        show::json(&results)?;
    } else {
        show::print(&text)?;
    }
    show::failures(&failures);
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
