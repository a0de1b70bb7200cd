//! The JSON of the public interface, shared by server and command line. Stable: fields are added, never changed or
//! removed.

/// Declares types that are sent in both directions.
macro_rules! wire {
    ($($(#[$attribute:meta])* $visibility:vis struct $name:ident { $($(#[$field_attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$attribute])*
        #[derive(Clone, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        $visibility struct $name { $($(#[$field_attribute])* pub $field: $type,)* })*
    };
}

/// Declares an enumeration with the spelling of each value.
macro_rules! words {
    ($($(#[$attribute:meta])* $visibility:vis enum $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $word:literal,)* })*) => {
        $($(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
        #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        $visibility enum $name { $($(#[$variant_attribute])* #[serde(rename = $word)] $variant,)* }
        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant,)*];
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        })*
    };
}

// Below the macros, which they use.
mod actions;
mod cluster;
mod error;
mod events;
mod jobs;
mod tasks;
mod timestamp;

pub use actions::{
    Action, ActionRequest, ActionResult, ChosenCounts, ChosenTasks, ConfigChange, DrainRequest, LabelRequest,
    QueueRequest, Reloaded, UpdateRequest,
};
pub use cluster::{
    ClusterSummary, ClusterView, Guarantee, NodeDetail, NodeDoubt, NodeState, NodeSummary, QueueSummary, Report,
    ReportRow, RunningAttempt,
};
pub use error::{Elsewhere, Error, ErrorCode};
pub use events::{AllocationParts, Event, EventKind, StoryLine};
pub use jobs::{
    Exchange, JobDetail, JobState, JobSummary, ManagerPlace, MeanOf, ShareUse, StageDetail, Submitted, Waited,
};
pub use tasks::{
    AttemptCounts, AttemptState, AttemptSummary, InputState, InputTaken, OutputFile, TaskCounts, TaskState, TaskSummary,
};
pub use timestamp::Timestamp;

use amalgam_core::vocabulary::ByteString;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Media type of a checked job in a request's body, as our own clients send it: the encoding of messages between
/// daemons. The parameter `version` is the version of the fields.
pub const JOB_MSGPACK: &str = "application/vnd.amalgam.job+msgpack";
/// Media type of a checked job as JSON.
pub const JOB_JSON: &str = "application/vnd.amalgam.job+json";

/// The JSON schema of a [`ByteString`].
struct AnyText;

impl JsonSchema for AnyText {
    fn schema_name() -> Cow<'static, str> {
        "AnyText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A string. Text that is not UTF-8 is an object with its bytes, in which `\\xNN` is a byte and `\\\\` a backslash.",
            "oneOf": [
                { "type": "string" },
                { "type": "object", "properties": { "bytes": { "type": "string" } }, "required": ["bytes"] },
            ],
        })
    }
}

/// A page of a list.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Listing<T> {
    pub items: Vec<T>,
    /// Value of `cursor` for the next page; absent on the last page.
    pub next: Option<String>,
    /// The other global masters of a federation. Each may have more such jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Elsewhere>,
}

/// The file `server.json` in a server's state directory, for clients on the same machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerFile {
    /// `127.0.0.1:7433`: where clients on the same machine connect.
    pub address: String,
    /// Whether these clients use TLS, also on loopback.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub https: bool,
    /// All addresses at which it listens for clients; empty in the file of an older server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    pub pid: u32,
    pub token_file: ByteString,
    /// The first address at which it listens for agents, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<String>,
    /// All addresses at which it listens for agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents_addresses: Vec<String>,
}

impl ServerFile {
    pub const NAME: &'static str = "server.json";
}
