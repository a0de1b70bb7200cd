//! The interface's description, made from one table of calls and the types themselves.

use crate::api;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

pub(super) struct Call {
    pub method: &'static str,
    pub path: &'static str,
    summary: &'static str,
    /// Name and type of each.
    parameters: &'static [(&'static str, &'static str)],
    body: Option<fn(&mut SchemaGenerator) -> Value>,
    answer: Answer,
}

enum Answer {
    Json(fn(&mut SchemaGenerator) -> Value),
    Other(&'static str),
    Nothing,
}

const JOB_FILES: [&str; 3] = ["application/json", "application/yaml", "application/toml"];

const LIST: &[(&str, &str)] = &[
    ("state", "string"),
    ("user", "string"),
    ("queue", "string"),
    ("name", "string"),
    ("since", "string"),
    ("until", "string"),
    ("cursor", "string"),
    ("limit", "integer"),
];

const fn read(path: &'static str, summary: &'static str, answer: Answer) -> Call {
    Call { method: "get", path, summary, parameters: &[], body: None, answer }
}

pub(super) const CALLS: &[Call] = &[
    Call {
        parameters: LIST,
        ..read("/v1/jobs", "Jobs, the newest first", Answer::Json(schema::<api::Listing<api::JobSummary>>))
    },
    Call {
        method: "post",
        body: Some(job_body),
        parameters: &[("submit_dir", "string")],
        ..read(
            "/v1/jobs",
            "Submits a job file, as TOML, YAML or JSON; answered once it is durable. Header `Idempotency-Key` makes it \
             repeatable. A task runs in `submit_dir` where that is given and the file names no `workdir`, and in a \
             directory of its own where it is not. Items are part of the file: `each` cannot name files",
            Answer::Json(schema::<api::Submitted>),
        )
    },
    Call {
        method: "post",
        body: Some(schema::<api::ActionRequest>),
        ..read(
            "/v1/jobs/actions",
            "Cancels, holds, releases jobs or runs their failed tasks again",
            Answer::Json(schema::<Vec<api::ActionResult>>),
        )
    },
    Call {
        method: "post",
        body: Some(schema::<api::UpdateRequest>),
        ..read(
            "/v1/jobs/update",
            "Changes the priority, the timeout or the queue of jobs that have not ended",
            Answer::Json(schema::<Vec<api::ActionResult>>),
        )
    },
    read("/v1/jobs/{job}", "A job and its stages", Answer::Json(schema::<api::JobDetail>)),
    Call {
        parameters: &[
            ("state", "string"),
            ("stage", "string"),
            ("index", "integer"),
            ("cursor", "string"),
            ("limit", "integer"),
        ],
        ..read("/v1/jobs/{job}/tasks", "The tasks of a job", Answer::Json(schema::<api::Listing<api::TaskSummary>>))
    },
    Call {
        parameters: &[("task", "string"), ("stage", "string"), ("cursor", "string"), ("limit", "integer")],
        ..read(
            "/v1/jobs/{job}/attempts",
            "Every attempt of a job or a task, in the order of their launches",
            Answer::Json(schema::<api::Listing<api::AttemptSummary>>),
        )
    },
    Call {
        parameters: &[("task", "string"), ("cursor", "string"), ("limit", "integer")],
        ..read(
            "/v1/jobs/{job}/story",
            "Every record about a job, about a `task` of it or about the tasks of a `stage`",
            Answer::Json(schema::<api::Listing<api::StoryLine>>),
        )
    },
    Call {
        parameters: &[("timeout_seconds", "number")],
        ..read(
            "/v1/jobs/{job}/wait",
            "Answers when the job has ended or the time is over",
            Answer::Json(schema::<api::Waited>),
        )
    },
    Call {
        parameters: &[
            ("task", "string"),
            ("attempt", "string"),
            ("stream", "string"),
            ("offset", "integer"),
            ("limit", "integer"),
            ("follow", "string"),
        ],
        ..read(
            "/v1/jobs/{job}/output",
            "The output of a task. `follow` is `false`, `true` (until the task has ended, through further attempts) or \
             `attempt` (until the attempt has ended). Header `amalgam-attempt` names the attempt that `offset` counts \
             in; `amalgam-newer-attempt` or `amalgam-ended` tell what follows, where that is known at the beginning. A \
             body that is cut short ends with an error",
            Answer::Other("application/octet-stream"),
        )
    },
    Call {
        method: "post",
        parameters: &[("attempt", "string"), ("offset", "integer"), ("ends", "boolean")],
        body: Some(bytes_body),
        ..read(
            "/v1/jobs/{job}/input",
            "A part of the standard input of a job's only task, if its program says `stdin`; `ends` with the last one. Names the \
             attempt that reads it, and the offset up to which it was taken: go on from there",
            Answer::Json(schema::<api::InputTaken>),
        )
    },
    Call {
        parameters: &[("stage", "string"), ("index", "integer"), ("cursor", "string"), ("limit", "integer")],
        ..read(
            "/v1/jobs/{job}/outputs",
            "The declared outputs of the tasks that have succeeded, with their checksums and the nodes that have them",
            Answer::Json(schema::<api::Listing<api::OutputFile>>),
        )
    },
    Call {
        parameters: &[("task", "string"), ("name", "string"), ("offset", "integer"), ("suspect", "boolean")],
        ..read(
            "/v1/jobs/{job}/outputs/content",
            "An output, from whichever node has it, from `offset` on. Header `amalgam-sha256` is the checksum of the whole; \
             `suspect=true` after what came had another, so that nodes look at their copies first",
            Answer::Other("application/octet-stream"),
        )
    },
    Call {
        parameters: LIST,
        ..read(
            "/v1/history",
            "Jobs that have ended, the last one first; with `since` and `until` those that ended from the one moment and before the other",
            Answer::Json(schema::<api::Listing<api::JobSummary>>),
        )
    },
    read("/v1/nodes", "The nodes", Answer::Json(schema::<Vec<api::NodeSummary>>)),
    read("/v1/nodes/{node}", "A node", Answer::Json(schema::<api::NodeDetail>)),
    Call {
        method: "post",
        body: Some(schema::<api::DrainRequest>),
        ..read("/v1/nodes/{node}/drain", "Takes a node out of use, or back", Answer::Nothing)
    },
    Call {
        method: "delete",
        ..read("/v1/nodes/{node}", "Forgets a node that is lost, or drained and not connected", Answer::Nothing)
    },
    read("/v1/queues", "The queues and what they use", Answer::Json(schema::<Vec<api::QueueSummary>>)),
    read("/v1/cluster", "The whole cluster", Answer::Json(schema::<api::ClusterSummary>)),
    Call {
        parameters: &[("from", "integer"), ("job", "integer")],
        ..read(
            "/v1/events",
            "Events from a sequence number on, each an `Event`, once they are durable; with `job` those of that job and \
             no others. The newest are kept, and none \
             from before the server started: an event `gap` stands for those that are not, and what they led to is \
             read from the jobs, their tasks and their stories",
            Answer::Other("text/event-stream"),
        )
    },
    read("/metrics", "Metrics for Prometheus", Answer::Other("text/plain")),
    read("/openapi.json", "This description", Answer::Other("application/json")),
    read("/healthz", "Whether the process lives", Answer::Other("text/plain")),
    read("/readyz", "Whether jobs can be submitted", Answer::Other("text/plain")),
];

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

/// The published schema of job files.
fn job_body(generator: &mut SchemaGenerator) -> Value {
    amalgam_workload::job_file_schema(generator).to_value()
}

fn bytes_body(_: &mut SchemaGenerator) -> Value {
    json!({ "type": "string", "description": "Bytes, sent as application/octet-stream" })
}

/// The OpenAPI 3.1 description.
pub fn openapi() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    let error = schema::<api::Error>(&mut generator);
    // Sent inside the event stream, where no call names it.
    let _ = schema::<api::Event>(&mut generator);
    let mut paths = Map::new();
    for call in CALLS {
        let operation = operation(call, &error, &mut generator);
        let path = paths.entry(call.path).or_insert_with(|| json!({}));
        if let Value::Object(methods) = path {
            methods.insert(call.method.to_owned(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Amalgam", "version": env!("CARGO_PKG_VERSION") },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": generator.take_definitions(true),
        },
    })
}

/// What a thing may be called by.
fn describe(parameter: &mut Value, name: &str) {
    let by = match name {
        "node" => "The node's name, or its number, as `node` and `node_id` of an event",
        "task" => "`JOB.STAGE.INDEX`, as everywhere, or `STAGE.INDEX`; the stage by its number or name",
        "stage" => "The stage's number or name",
        "attempt" => "As everywhere: `JOB-EPOCH-NUMBER`",
        _ => return,
    };
    parameter["description"] = by.into();
}

fn operation(call: &Call, error: &Value, generator: &mut SchemaGenerator) -> Value {
    let in_path = call.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path
        .map(|name| {
            let kind = if name == "node" { "string" } else { "integer" };
            let mut parameter = json!({ "name": name, "in": "path", "required": true, "schema": { "type": kind } });
            describe(&mut parameter, name);
            parameter
        })
        .collect();
    for (name, kind) in call.parameters {
        let required =
            *name == "task" && call.path.contains("/output") || *name == "name" && call.path.ends_with("/content");
        let mut parameter = json!({ "name": name, "in": "query", "required": required, "schema": { "type": kind } });
        describe(&mut parameter, name);
        parameters.push(parameter);
    }
    let (status, answer) = match &call.answer {
        Answer::Json(schema) => {
            let status = if call.method == "post" && call.path == "/v1/jobs" { "201" } else { "200" };
            let content = json!({ "application/json": { "schema": schema(generator) } });
            (status, json!({ "description": call.summary, "content": content }))
        }
        Answer::Other(kind) => ("200", json!({ "description": call.summary, "content": { *kind: {} } })),
        Answer::Nothing => ("204", json!({ "description": "Done" })),
    };
    let failure = json!({ "description": "What is wrong and what would help",
        "content": { "application/json": { "schema": error } } });
    let mut operation = json!({
        "summary": call.summary,
        "parameters": parameters,
        "responses": { status: answer, "default": failure },
    });
    if let Some(body) = call.body {
        let kinds: &[&str] = if call.path == "/v1/jobs" { &JOB_FILES } else { &["application/json"] };
        let schema = json!({ "schema": body(generator) });
        let content: Map<String, Value> = kinds.iter().map(|kind| ((*kind).to_owned(), schema.clone())).collect();
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    if matches!(call.path, "/healthz" | "/readyz") {
        operation["security"] = json!([]);
    }
    operation
}
