//! Tests that compare the shapes of all values that daemons send or store with those of the previous version (ADR 63).
//! Types grow only at their end, and this version reads all values that the previous one could write.

mod sample;
mod shape;

use super::{Answer, Challenge, Hello, Wire};
use crate::executor::{ExecutorFrame, ExecutorReply};
use crate::{encoding, store};
use amalgam_core::hosting;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::JobSpec;
use sample::Sampler;
use serde::de::DeserializeOwned;
use shape::Schema;
use std::fs;
use std::path::{Path, PathBuf};

/// Path of the previous version's schema.
fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v32/schema.json")
}

macro_rules! for_each_root {
    ($do:ident($($argument:expr),*)) => {
        $do::<Challenge>("Challenge", $($argument),*);
        $do::<Hello>("Hello", $($argument),*);
        $do::<Answer>("Answer", $($argument),*);
        $do::<Wire>("Wire", $($argument),*);
        $do::<ExecutorFrame>("ExecutorFrame", $($argument),*);
        $do::<ExecutorReply>("ExecutorReply", $($argument),*);
        $do::<Vec<store::Entry>>("entries of the log", $($argument),*);
        $do::<Change>("Change", $($argument),*);
        $do::<Record>("Record", $($argument),*);
        $do::<hosting::Entry>("entry of a journal", $($argument),*);
        $do::<JobSpec>("JobSpec", $($argument),*);
    };
}

fn trace<T: DeserializeOwned>(name: &str, schema: &mut Schema) {
    schema.trace::<T>(name);
}

fn of_this_version() -> Schema {
    let mut schema = Schema::default();
    for_each_root!(trace(&mut schema));
    schema
}

fn of_the_version_before() -> Schema {
    let text = fs::read_to_string(fixture()).unwrap_or_else(|error| panic!("{}: {error}", fixture().display()));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn types_grow_at_their_end_only() {
    if let Err(what) = of_the_version_before().grows_into(&of_this_version()) {
        panic!("{what}; add fields and variants at the end, and do not remove any: see docs/formats.md");
    }
}

/// Reads values of all shapes that the previous version could write.
fn read_samples<T: DeserializeOwned>(name: &str, before: &Schema) {
    let mut sampler = Sampler::new(before);
    for samples in 0.. {
        let missing = sampler.missing();
        if samples >= 500 && missing.is_none() {
            break;
        }
        assert!(samples < 100_000, "{name}: no sample contains {missing:?}");
        let bytes = sampler.sample(name);
        if let Err(error) = encoding::from_slice::<T>(&bytes) {
            panic!("cannot read {name} of the previous version: {error}; give each new field a default: {bytes:02x?}");
        }
    }
}

#[test]
fn all_values_of_the_previous_version_can_be_read() {
    let before = of_the_version_before();
    for_each_root!(read_samples(&before));
}

#[test]
#[ignore = "writes the fixture of a version"]
fn write_fixture() {
    let directory =
        PathBuf::from(std::env::var_os("AMALGAM_FIXTURES").expect("AMALGAM_FIXTURES names the directory to write"));
    fs::create_dir_all(&directory).unwrap();
    let schema = of_this_version();
    // One line for each type.
    let line =
        |(name, shape): (&String, &shape::Type)| format!("{:?}: {}", name, serde_json::to_string(shape).unwrap());
    let types: Vec<String> = schema.types.iter().map(line).collect();
    let roots = serde_json::to_string(&schema.roots).unwrap();
    let text = format!("{{\"roots\": {roots},\n\"types\": {{\n{}\n}}}}\n", types.join(",\n"));
    fs::write(directory.join("schema.json"), text).unwrap();
}

#[test]
fn removed_and_reordered_fields_are_found() {
    use serde::Deserialize;
    #[derive(Deserialize)]
    struct Two(#[expect(dead_code)] Before, #[expect(dead_code)] Option<Kind>);
    #[derive(Deserialize)]
    #[expect(dead_code)]
    struct Before {
        first: u32,
        second: Option<String>,
    }
    #[derive(Deserialize)]
    #[expect(dead_code)]
    enum Kind {
        One,
        Other { number: u64 },
    }
    let mut before = Schema::default();
    before.trace::<Two>("root");
    assert_eq!(before.grows_into(&before), Ok(()));

    mod grown {
        use serde::Deserialize;
        #[derive(Deserialize)]
        pub struct Two(#[expect(dead_code)] Before, #[expect(dead_code)] Option<Kind>);
        #[derive(Deserialize)]
        #[expect(dead_code)]
        pub struct Before {
            renamed: u32,
            second: Option<String>,
            third: Vec<u8>,
        }
        #[derive(Deserialize)]
        #[expect(dead_code)]
        pub enum Kind {
            One,
            Other { number: u64, more: Option<bool> },
            Third(u8),
        }
    }
    let mut after = Schema::default();
    after.trace::<grown::Two>("root");
    assert_eq!(before.grows_into(&after), Ok(()));
    let shrunk = after.grows_into(&before).unwrap_err();
    assert!(shrunk.contains("third") && shrunk.contains("was removed"), "{shrunk}");
    // The new field has no default.
    let bytes = Sampler::new(&before).sample("root");
    assert!(encoding::from_slice::<grown::Two>(&bytes).is_err());
    assert!(encoding::from_slice::<Two>(&bytes).is_ok());

    #[derive(Deserialize)]
    struct Reordered(#[expect(dead_code)] Swapped, #[expect(dead_code)] Option<Kind>);
    #[derive(Deserialize)]
    #[expect(dead_code)]
    struct Swapped {
        second: Option<String>,
        first: u32,
    }
    let mut reordered = Schema::default();
    reordered.trace::<Reordered>("root");
    assert!(before.grows_into(&reordered).unwrap_err().contains("first"));
}
