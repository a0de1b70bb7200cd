//! Values of a job file that have several notations.

use crate::error::packed;
use crate::inherit::{Export, Umask};
use crate::quantities::{self, LimitedArray, Malformed};
use amalgam_core::vocabulary::resources::{self, BUILT_IN};
use amalgam_core::vocabulary::{ByteString, Constraint, Duration, Items, ResourceSpec};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::json;
use std::borrow::Cow;
use std::fmt;

/// The program and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Command(pub Vec<ByteString>);

#[derive(Clone, Debug)]
pub(crate) struct Array(pub LimitedArray);

/// The source of a stage's items.
#[derive(Clone, Debug)]
pub(crate) enum Each {
    Files(ByteString),
    Lines(ByteString),
    Json(ByteString),
    Items(Items),
}

/// The amounts that the file gives. A stage takes each missing kind from the job's defaults.
#[derive(Clone, Default, Debug)]
pub(crate) struct ResourceTable {
    built_in: [Option<u32>; BUILT_IN.len()],
    custom: Vec<(String, u32)>,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Environment(pub Vec<(ByteString, ByteString)>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Time(pub Duration);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeout(pub Duration);

#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputCap(pub u64);

#[derive(Clone, Debug)]
pub(crate) struct ConstraintText(pub Constraint);

/// The name of a taint, as the constraint that tolerates it.
#[derive(Clone, Debug)]
pub(crate) struct TaintText(pub Constraint);

#[derive(Clone, Default, Debug)]
pub(crate) struct JobIds(pub Vec<u64>);

impl ResourceTable {
    /// Adds the amounts of `defaults` for kinds that are not given here.
    pub fn or(mut self, defaults: &ResourceTable) -> ResourceTable {
        for (own, default) in self.built_in.iter_mut().zip(defaults.built_in) {
            *own = own.or(default);
        }
        for (name, amount) in &defaults.custom {
            if !self.custom.iter().any(|(own, _)| own == name) {
                self.custom.push((name.clone(), *amount));
            }
        }
        self
    }

    /// The amounts for each task. Default: one CPU, and 0 of all other kinds.
    pub fn spec(self) -> ResourceSpec {
        let mut spec = ResourceSpec { custom: self.custom, ..ResourceSpec::default() };
        for (kind, amount) in self.built_in.into_iter().enumerate() {
            let default = if kind == resources::CPU { 1000 } else { 0 };
            spec.basic.0[kind] = amount.unwrap_or(default);
        }
        spec
    }
}

fn refused<E: Error>(malformed: Malformed) -> E {
    E::custom(packed(&malformed))
}

/// An amount: a number, or a text with a unit.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        struct ScalarVisitor;
        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text in quotes")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                quantities::check_text("the text", text.as_bytes()).map_err(refused)?;
                Ok(Scalar(text.to_owned()))
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// A text, or a table such as `{ bytes = 'caf\xe9' }` if it is not UTF-8.
#[derive(Clone, Debug)]
pub(crate) struct Word(pub ByteString);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        struct WordVisitor;
        impl<'de> Visitor<'de> for WordVisitor {
            type Value = Word;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text in quotes")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Word, E> {
                quantities::check_text("the text", text.as_bytes()).map_err(refused)?;
                Ok(Word(text.into()))
            }
            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Word, A::Error> {
                let bytes = ByteString::deserialize(serde::de::value::MapAccessDeserializer::new(table))?;
                quantities::check_text("the text", bytes.as_bytes()).map_err(refused)?;
                Ok(Word(bytes))
            }
        }
        deserializer.deserialize_str(WordVisitor)
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Command, D::Error> {
        struct CommandVisitor;
        impl<'de> Visitor<'de> for CommandVisitor {
            type Value = Command;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts such as [\"sort\", \"-n\"], or one text for `sh -c`")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Command, E> {
                quantities::check_text("the command", text.as_bytes()).map_err(refused)?;
                let script = !text.trim().is_empty();
                Ok(Command(if script { vec!["sh".into(), "-c".into(), text.into()] } else { Vec::new() }))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Command, A::Error> {
                let mut command = Vec::new();
                while let Some(Word(part)) = parts.next_element()? {
                    command.push(part);
                }
                Ok(Command(command))
            }
        }
        deserializer.deserialize_str(CommandVisitor)
    }
}

impl<'de> Deserialize<'de> for Array {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Array, D::Error> {
        let Scalar(text) = Scalar::deserialize(deserializer)?;
        quantities::parse_limited_array(&text).map(Array).map_err(refused)
    }
}

impl<'de> Deserialize<'de> for Each {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Each, D::Error> {
        struct EachVisitor;
        impl<'de> Visitor<'de> for EachVisitor {
            type Value = Each;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a pattern such as \"texts/*.txt\", a list of items, or a table with one of files, lines, json, items",
                )
            }
            fn visit_str<E: Error>(self, pattern: &str) -> Result<Each, E> {
                Ok(Each::Files(pattern.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Each, A::Error> {
                read_items(items).map(Each::Items)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Each, A::Error> {
                let mut source = None;
                while let Some(key) = table.next_key()? {
                    if source.is_some() {
                        return Err(refused(Malformed::new("`each` has more than one source", "keep one of them")));
                    }
                    source = Some(match key {
                        EachKey::Files => Each::Files(table.next_value::<Word>()?.0),
                        EachKey::Lines => Each::Lines(table.next_value::<Word>()?.0),
                        EachKey::Json => Each::Json(table.next_value::<Word>()?.0),
                        EachKey::Items => Each::Items(table.next_value::<InlineItems>()?.0),
                    });
                }
                let none = || Malformed::new("`each` has no source", "give one of files, lines, json, items");
                source.ok_or_else(|| refused(none()))
            }
        }
        deserializer.deserialize_str(EachVisitor)
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum EachKey {
    Files,
    Lines,
    Json,
    Items,
}

struct InlineItems(Items);

impl<'de> Deserialize<'de> for InlineItems {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InlineItems, D::Error> {
        struct ItemsVisitor;
        impl<'de> Visitor<'de> for ItemsVisitor {
            type Value = InlineItems;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of items")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<InlineItems, A::Error> {
                read_items(items).map(InlineItems)
            }
        }
        deserializer.deserialize_seq(ItemsVisitor)
    }
}

fn read_items<'de, A: SeqAccess<'de>>(mut texts: A) -> Result<Items, A::Error> {
    let mut items = Items::default();
    while let Some(Word(text)) = texts.next_element()? {
        items.push(text.as_bytes()).map_err(|wrong| refused(Malformed::new(wrong, "split the job")))?;
    }
    items.shrink();
    Ok(items)
}

impl<'de> Deserialize<'de> for ResourceTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ResourceTable, D::Error> {
        struct ResourcesVisitor;
        impl<'de> Visitor<'de> for ResourcesVisitor {
            type Value = ResourceTable;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table such as { cpu = 1, memory = \"256MiB\" }")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ResourceTable, A::Error> {
                let mut table = ResourceTable::default();
                while let Some(name) = entries.next_key::<ResourceName>()?.map(|name| name.0) {
                    match BUILT_IN.iter().position(|known| *known == name) {
                        Some(resources::CPU) => table.built_in[resources::CPU] = Some(entries.next_value::<Cpus>()?.0),
                        Some(resources::MEMORY) => {
                            table.built_in[resources::MEMORY] = Some(entries.next_value::<Memory>()?.0);
                        }
                        kind => {
                            let Scalar(text) = entries.next_value()?;
                            let count = quantities::parse_devices(&name, &text).map_err(refused)?;
                            match kind {
                                Some(kind) => table.built_in[kind] = Some(count),
                                None => table.custom.push((name, count)),
                            }
                        }
                    }
                }
                Ok(table)
            }
        }
        deserializer.deserialize_map(ResourcesVisitor)
    }
}

/// The name is checked while the key is read, so that an error has the position of the key.
struct ResourceName(String);

impl<'de> Deserialize<'de> for ResourceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ResourceName, D::Error> {
        let name = String::deserialize(deserializer)?.replace('_', "-");
        if !BUILT_IN.contains(&name.as_str()) {
            quantities::check_resource_name(&name).map_err(refused)?;
        }
        Ok(ResourceName(name))
    }
}

struct Cpus(u32);

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cpus, D::Error> {
        let Scalar(text) = Scalar::deserialize(deserializer)?;
        quantities::parse_cpu_millis(&text).map(Cpus).map_err(refused)
    }
}

struct Memory(u32);

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Memory, D::Error> {
        let Scalar(text) = Scalar::deserialize(deserializer)?;
        quantities::parse_memory_mib(&text).map(Memory).map_err(refused)
    }
}

impl<'de> Deserialize<'de> for OutputCap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OutputCap, D::Error> {
        let Scalar(text) = Scalar::deserialize(deserializer)?;
        quantities::parse_size(&text).map(OutputCap).map_err(refused)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let Scalar(text) = Scalar::deserialize(deserializer)?;
        Duration::parse(&text).map(Time).map_err(|_| {
            let remedy = "write for instance `90s`, `5m`, `1h30m`, `250ms` or `00:01:30`";
            refused(Malformed::new(format!("`{text}` is not a duration"), remedy))
        })
    }
}

impl<'de> Deserialize<'de> for Timeout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timeout, D::Error> {
        let Scalar(text) = Scalar::deserialize(deserializer)?;
        quantities::parse_timeout(&text).map(Timeout).map_err(refused)
    }
}

impl<'de> Deserialize<'de> for ConstraintText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ConstraintText, D::Error> {
        let text = String::deserialize(deserializer)?;
        Constraint::parse(&text).map(ConstraintText).map_err(|_| {
            let remedy = "write for instance `arch=x86_64` or `kernel>=5.10`";
            refused(Malformed::new(format!("`{text}` is not a constraint"), remedy))
        })
    }
}

impl<'de> Deserialize<'de> for TaintText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TaintText, D::Error> {
        let text = String::deserialize(deserializer)?;
        quantities::parse_taint(&text).map(TaintText).map_err(refused)
    }
}

impl<'de> Deserialize<'de> for Environment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Environment, D::Error> {
        struct EnvironmentVisitor;
        impl<'de> Visitor<'de> for EnvironmentVisitor {
            type Value = Environment;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of variables such as { THREADS = \"4\" }")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Environment, A::Error> {
                let mut variables = Vec::new();
                while let Some((VariableName(name), Word(value))) = entries.next_entry()? {
                    variables.push((name.into(), value));
                }
                // Keys have no order in TOML and JSON.
                variables.sort();
                Ok(Environment(variables))
            }
        }
        deserializer.deserialize_map(EnvironmentVisitor)
    }
}

struct VariableName(String);

impl<'de> Deserialize<'de> for VariableName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VariableName, D::Error> {
        let name = String::deserialize(deserializer)?;
        quantities::check_variable(name.as_bytes(), b"").map_err(refused)?;
        Ok(VariableName(name))
    }
}

/// The variables that a job takes over from its submitter.
#[derive(Clone, Debug)]
pub(crate) struct ExportText(pub Export);

impl<'de> Deserialize<'de> for ExportText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ExportText, D::Error> {
        let Word(text) = Word::deserialize(deserializer)?;
        Export::parse(text.as_bytes()).map(ExportText).map_err(refused)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct UmaskText(pub Umask);

impl<'de> Deserialize<'de> for UmaskText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UmaskText, D::Error> {
        Umask::parse(&String::deserialize(deserializer)?).map(UmaskText).map_err(refused)
    }
}

impl<'de> Deserialize<'de> for JobIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JobIds, D::Error> {
        struct IdsVisitor;
        impl<'de> Visitor<'de> for IdsVisitor {
            type Value = JobIds;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a job, or a list of them")
            }
            fn visit_u64<E: Error>(self, id: u64) -> Result<JobIds, E> {
                Ok(JobIds(vec![id]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<JobIds, A::Error> {
                let mut list = Vec::new();
                while let Some(id) = ids.next_element()? {
                    list.push(id);
                }
                Ok(JobIds(list))
            }
        }
        deserializer.deserialize_any(IdsVisitor)
    }
}

/// Published schemas of the values above, which cannot be derived because the types have their own deserializers.
macro_rules! schema {
    ($type:ty, $name:literal, $schema:tt) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

/// The schema of a [`Word`].
fn word() -> serde_json::Value {
    json!({
        "type": ["string", "number", "boolean", "object"],
        "properties": {
            "bytes": { "type": "string", "description": "A text that is not UTF-8: `\\xNN` is a byte, `\\\\` a backslash." }
        },
        "required": ["bytes"],
        "additionalProperties": false
    })
}

fn described(mut schema: serde_json::Value, description: &str) -> serde_json::Value {
    schema["description"] = description.into();
    schema
}

impl JsonSchema for Word {
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        Schema::try_from(word()).unwrap_or_default()
    }
}

schema!(Command, "Command", {
    "oneOf": [
        { "type": "array", "minItems": 1, "items": word() },
        { "type": "string", "minLength": 1 }
    ]
});
schema!(Array, "Array", {
    "oneOf": [
        { "type": "string", "pattern": "^\\s*\\d+(-\\d+(:\\d+)?)?(\\s*,\\s*\\d+(-\\d+(:\\d+)?)?)*\\s*(%\\s*[1-9]\\d*\\s*)?$" },
        { "type": "integer", "minimum": 0 }
    ]
});
schema!(Each, "Each", {
    "oneOf": [
        { "type": "string", "description": "A pattern of file names." },
        { "type": "array", "items": word() },
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": false,
            "properties": {
                "files": described(word(), "A pattern of file names."),
                "lines": described(word(), "A file; one task per line."),
                "json": described(word(), "A file with a JSON list; one task per element."),
                "items": { "type": "array", "items": word() }
            }
        }
    ]
});
schema!(ResourceTable, "Resources", {
    "type": "object",
    "properties": {
        "cpu": { "type": ["number", "string"], "description": "Cores: 2, 0.5 or \"500m\"." },
        "memory": { "type": "string", "description": "A size with a unit: \"256MiB\"." },
        "gpu": { "type": ["number", "string"], "description": "GPUs: 1, 2, or a part of one that is shared: 0.25 or \"250m\"." },
        "disk-read": { "type": "integer", "minimum": 0, "description": "MB/s" },
        "disk-write": { "type": "integer", "minimum": 0, "description": "MB/s" },
        "network-in": { "type": "integer", "minimum": 0, "description": "MB/s" },
        "network-out": { "type": "integer", "minimum": 0, "description": "MB/s" }
    },
    "additionalProperties": { "type": "integer", "minimum": 0, "description": "A count of a custom resource." }
});
schema!(Environment, "Environment", {
    "type": "object",
    "additionalProperties": word()
});
schema!(ExportText, "Export", { "type": "string", "examples": ["none", "all", "HOME,LANG=C"] });
schema!(UmaskText, "Umask", { "type": ["string", "integer"], "examples": ["027", "submitter"] });
schema!(Time, "Duration", { "type": ["string", "number"], "examples": ["90s", "5m", "1h30m", "00:01:30"] });
schema!(Timeout, "Timeout", { "type": ["string", "number"], "examples": ["90s", "5m", "1h30m", "00:01:30"] });
schema!(OutputCap, "Size", { "type": "string", "examples": ["64MiB"] });
schema!(TaintText, "Taint", { "type": "string", "examples": ["gpu"] });
schema!(ConstraintText, "Constraint", { "type": "string", "examples": ["arch=x86_64", "kernel>=5.10"] });
schema!(JobIds, "JobIds", {
    "oneOf": [
        { "type": "integer", "minimum": 1 },
        { "type": "array", "items": { "type": "integer", "minimum": 1 } }
    ]
});
