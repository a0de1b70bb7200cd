//! The OpenAPI description of the HTTP interface, generated from a table of requests and from the types.

use crate::api;
use crate::versions::PROGRAM;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

pub(super) struct Call {
    pub method: &'static str,
    pub path: &'static str,
    summary: &'static str,
    /// Name and type of each.
    pub parameters: &'static [(&'static str, &'static str)],
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
            "Submits a job file, as TOML, YAML or JSON; answered once the job is durable. With the header \
             `Idempotency-Key`, a repeated submission returns the first job. If the file sets no `workdir`, tasks run \
             in `submit_dir` if it is set, and in directories of their own otherwise. The file must contain its items: \
             `each` cannot name files",
            Answer::Json(schema::<api::Submitted>),
        )
    },
    Call {
        method: "post",
        body: Some(schema::<api::ActionRequest>),
        ..read(
            "/v1/jobs/actions",
            "Cancels, holds or releases jobs, or runs their failed tasks again",
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
        parameters: &[("task", "string"), ("cursor", "string"), ("limit", "integer")],
        ..read(
            "/v1/jobs/{job}/attempts",
            "Every attempt of a job or a task, in the order of their launches",
            Answer::Json(schema::<api::Listing<api::AttemptSummary>>),
        )
    },
    Call {
        parameters: &[("task", "string"), ("stage", "string"), ("cursor", "string"), ("limit", "integer")],
        ..read(
            "/v1/jobs/{job}/story",
            "Every record about a job, about one `task` of it or about the tasks of one `stage`",
            Answer::Json(schema::<api::Listing<api::StoryLine>>),
        )
    },
    Call {
        parameters: &[("timeout_seconds", "number")],
        ..read(
            "/v1/jobs/{job}/wait",
            "Answers when the job has ended, or after `timeout_seconds`",
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
             `attempt` (until the attempt has ended). The header `amalgam-attempt` names the attempt whose output \
             starts the body; `offset` counts its bytes. If it is known when the body starts, `amalgam-newer-attempt` \
             names the next attempt to read, or `amalgam-ended` reports that the task has ended. An incomplete body \
             ends with an error",
            Answer::Other("application/octet-stream"),
        )
    },
    Call {
        method: "post",
        parameters: &[("attempt", "string"), ("offset", "integer"), ("ends", "boolean")],
        body: Some(bytes_body),
        ..read(
            "/v1/jobs/{job}/input",
            "Sends a part of the standard input of a job's only task, if its program sets `stdin`; set `ends` with the \
             last part. The answer names the attempt that reads the input, and the offset of the next part to send",
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
            "The content of an output, from `offset` on. The header `amalgam-sha256` is the checksum of the whole \
             file. If the received file has another checksum, repeat the request with `suspect=true`: nodes then check \
             their copies before they send",
            Answer::Other("application/octet-stream"),
        )
    },
    Call {
        parameters: LIST,
        ..read(
            "/v1/history",
            "Jobs that have ended, the most recently ended first. `since` and `until` select jobs that ended at or \
             after `since` and before `until`",
            Answer::Json(schema::<api::Listing<api::JobSummary>>),
        )
    },
    read("/v1/nodes", "The nodes", Answer::Json(schema::<Vec<api::NodeSummary>>)),
    read("/v1/nodes/{node}", "A node", Answer::Json(schema::<api::NodeDetail>)),
    Call {
        method: "post",
        body: Some(schema::<api::DrainRequest>),
        ..read("/v1/nodes/{node}/drain", "Starts or ends the draining of a node", Answer::Nothing)
    },
    Call {
        method: "delete",
        ..read(
            "/v1/nodes/{node}",
            "Removes a node that is lost, or drained and not connected, and revokes the token of its agent",
            Answer::Nothing,
        )
    },
    Call {
        method: "post",
        body: Some(schema::<api::LabelRequest>),
        ..read(
            "/v1/nodes/{node}/labels",
            "Sets and removes labels of a node: attributes beside those that its agent reports, or in place of them",
            Answer::Json(schema::<api::NodeDetail>),
        )
    },
    read("/v1/queues", "The queues and what they use", Answer::Json(schema::<Vec<api::QueueSummary>>)),
    Call {
        method: "post",
        body: Some(schema::<api::QueueRequest>),
        ..read(
            "/v1/queues/{queue}",
            "Sets limits of a queue, which precede those of the configuration, or resets the queue to these",
            Answer::Json(schema::<api::QueueSummary>),
        )
    },
    Call {
        parameters: &[("by", "string"), ("from", "string"), ("to", "string")],
        ..read(
            "/v1/report",
            "What was asked for, used and lost on the days from `from` to `to` (such as `2026-11-27`), by `user`, `queue` and \
             `day`, of which `by` names some, separated by commas. Without the scope `operate`, only the caller's own",
            Answer::Json(schema::<api::Report>),
        )
    },
    Call {
        method: "post",
        ..read(
            "/v1/reload",
            "Reads the configuration again; answers with what changed, and which changes need a restart",
            Answer::Json(schema::<api::Reloaded>),
        )
    },
    read("/v1/cluster", "The whole cluster", Answer::Json(schema::<api::ClusterSummary>)),
    Call {
        parameters: &[("from", "integer"), ("job", "integer")],
        ..read(
            "/v1/events",
            "Events from a sequence number on, each an `Event`, once they are durable; with `job`, only those of the \
             job. The server keeps the newest events since it started. A `gap` event stands for events that are no \
             longer kept: read the jobs, their tasks and their stories instead",
            Answer::Other("text/event-stream"),
        )
    },
    read("/metrics", "Metrics for Prometheus", Answer::Other("text/plain")),
    read("/openapi.json", "This description", Answer::Other("application/json")),
    read("/healthz", "Whether the process runs", Answer::Other("text/plain")),
    read("/readyz", "Whether jobs can be submitted", Answer::Other("text/plain")),
    read(
        "/ca.pem",
        "The certificates of the authorities that clients on other machines trust; not found if the server has none",
        Answer::Other("application/pem-certificate-chain"),
    ),
];

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

/// The schema of job files.
fn job_body(generator: &mut SchemaGenerator) -> Value {
    amalgam_workload::job_file_schema(generator).to_value()
}

fn bytes_body(_: &mut SchemaGenerator) -> Value {
    json!({ "type": "string", "format": "binary" })
}

/// The OpenAPI 3.1 description.
pub fn openapi() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    let error = schema::<api::Error>(&mut generator);
    // The event stream sends it, but the answer of no request refers to it.
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
        "info": { "title": "Amalgam", "version": PROGRAM },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": generator.take_definitions(true),
        },
    })
}

/// Adds a description of the parameter's format.
fn describe(parameter: &mut Value, name: &str) {
    let by = match name {
        "node" => "The node's name or number: `node` or `node_id` of an event",
        "task" => "`JOB.STAGE.INDEX` or `STAGE.INDEX`, with the stage's number or name",
        "stage" => "The stage's number or name",
        "attempt" => "`JOB-EPOCH-NUMBER`",
        _ => return,
    };
    parameter["description"] = by.into();
}

fn operation(call: &Call, error: &Value, generator: &mut SchemaGenerator) -> Value {
    let in_path = call.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path
        .map(|name| {
            let kind = if matches!(name, "node" | "queue") { "string" } else { "integer" };
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
    let failure = json!({ "description": "The error and its remedy",
        "content": { "application/json": { "schema": error } } });
    let mut operation = json!({
        "summary": call.summary,
        "parameters": parameters,
        "responses": { status: answer, "default": failure },
    });
    if let Some(body) = call.body {
        let kinds: &[&str] = match call.path {
            "/v1/jobs" => &JOB_FILES,
            "/v1/jobs/{job}/input" => &["application/octet-stream"],
            _ => &["application/json"],
        };
        let schema = json!({ "schema": body(generator) });
        let content: Map<String, Value> = kinds.iter().map(|kind| ((*kind).to_owned(), schema.clone())).collect();
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    if matches!(call.path, "/healthz" | "/readyz" | "/ca.pem") {
        operation["security"] = json!([]);
    }
    operation
}
