//! What clients rely on: the documents of the version before contain nothing that is missing now.

use super::fixtures;
use crate::support::Scene;
use serde_json::{Value, json};
use std::fs;

/// Whether everything of the older document is in the newer one. Lists may gain elements, but for those of keys that a client has to
/// write in a job file.
fn check_grown(older: &Value, newer: &Value, at: &str) -> Result<(), String> {
    match (older, newer) {
        (Value::Object(older), Value::Object(newer)) => {
            // Texts for people may change; what has one of these names and is no text is a key of its own.
            let is_text = |(key, value): &(&String, &Value)| {
                value.is_string() && matches!(&key[..], "description" | "summary" | "version")
            };
            older.iter().filter(|entry| !is_text(entry)).try_for_each(|(key, value)| {
                let at = format!("{at}/{key}");
                check_grown(value, newer.get(key).ok_or_else(|| format!("{at} was removed"))?, &at)
            })
        }
        (Value::Array(older), Value::Array(newer)) => {
            if at.starts_with(JOB_FILE) && at.ends_with("/required") && newer.len() > older.len() {
                return Err(format!("{at}: more is required"));
            }
            older.iter().try_for_each(|value| {
                let has_grown = |other: &Value| check_grown(value, other, at).is_ok();
                if newer.iter().any(has_grown) { Ok(()) } else { Err(format!("{at}: {value} was removed or changed")) }
            })
        }
        (older, newer) if older == newer => Ok(()),
        (older, newer) => Err(format!("{at} was {older} and is {newer}")),
    }
}

const OPENAPI: &str = "openapi.json";
const JOB_FILE: &str = "job-file.schema.json";

pub fn documents(scene: &Scene) -> [(&'static str, Value); 2] {
    let job_file = serde_json::from_str(&scene.ok(&["config", "schema"])).unwrap();
    [(OPENAPI, scene.http().get("/openapi.json").1), (JOB_FILE, job_file)]
}

#[test]
fn answers_and_job_files_only_grow() {
    let scene = Scene::dev(&[]);
    for (name, newer) in documents(&scene) {
        let older = fs::read_to_string(fixtures().join(name)).unwrap();
        let older: Value = serde_json::from_str(&older).unwrap();
        check_grown(&older, &newer, name).unwrap_or_else(|what| panic!("{what}"));
    }
}

#[test]
fn a_document_that_lacks_something_is_noticed() {
    let older = json!({"properties": {"version": {"type": "string"}}, "oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}],
        "required": ["a"]});
    let check = |newer: &Value| check_grown(&older, newer, JOB_FILE);
    assert_eq!(check(&older), Ok(()));
    let mut newer = older.clone();
    newer["properties"]["more"] = json!({"type": "boolean"});
    newer["oneOf"].as_array_mut().unwrap().push(json!({"type": "number"}));
    assert_eq!(check(&newer), Ok(()));
    let changed = |change: fn(&mut Value)| {
        let mut newer = older.clone();
        change(&mut newer);
        check(&newer).unwrap_err()
    };
    assert!(changed(|newer| newer["properties"] = json!({})).contains("version was removed"));
    assert!(changed(|newer| newer["oneOf"][1]["items"]["type"] = json!("string")).contains("removed or changed"));
    assert!(changed(|newer| newer["oneOf"] = json!([{"type": "null"}])).contains("removed or changed"));
    assert!(changed(|newer| newer["required"] = json!(["a", "b"])).contains("more is required"));
}
