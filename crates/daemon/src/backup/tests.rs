//! Archives that are right, and all kinds that are not.

use super::*;
use crate::auth::hex;
use crate::store::{EntryRef, Options, Store};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

fn state() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokens.toml"), "# none\n").unwrap();
    fs::write(dir.path().join("federation"), "a server without a federation\n").unwrap();
    fs::write(dir.path().join("server.json"), "{}").unwrap();
    fs::create_dir(dir.path().join("executor")).unwrap();
    fs::create_dir(dir.path().join("usage")).unwrap();
    for name in ["2026-11-27.json", "next", "2026-11-26.json", "2026-11-28.json.part"] {
        fs::write(dir.path().join("usage").join(name), name).unwrap();
    }
    let (mut store, _) = Store::open(&dir.path().join("log"), Options::default()).unwrap();
    store.append(&[EntryRef { kind: 1, job: 1, at_micros: 1, payload: b"one" }]).unwrap();
    store.commit().unwrap();
    dir
}

fn archive() -> Vec<u8> {
    let mut archive = Vec::new();
    write(state().path(), &mut archive).unwrap();
    archive
}

/// The files of an archive.
fn files(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(archive);
    let file = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        std::io::copy(&mut entry, &mut content).unwrap();
        (String::from_utf8(entry.path_bytes().into_owned()).unwrap(), content)
    };
    archive.entries().unwrap().map(file).collect()
}

fn packed(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_ustar();
        // `set_path` refuses what the tests need.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, &content[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

/// An archive with another manifest.
fn edited(edit: impl FnOnce(&mut Manifest)) -> Vec<u8> {
    let mut files = files(&archive());
    let mut manifest: Manifest = serde_json::from_slice(&files[0].1).unwrap();
    edit(&mut manifest);
    files[0].1 = serde_json::to_vec(&manifest).unwrap();
    packed(&files)
}

fn refusal(archive: &[u8]) -> String {
    let home = tempfile::tempdir().unwrap();
    let error = restore(&mut &*archive, &home.path().join("state")).unwrap_err();
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing is left after: {error}");
    error.to_string()
}

#[test]
fn an_archive_is_restored_with_private_files_and_a_higher_number_of_starts() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("new/state");
    let restored = restore(&mut &*archive(), &dir).unwrap();
    assert_eq!(restored.manifest.kind, "a server without a federation");
    assert_eq!(restored.epoch, 2 + (1 << 16));
    assert_eq!(fs::read_to_string(dir.join("tokens.toml")).unwrap(), "# none\n");
    for (path, mode) in [("", 0o700), ("log", 0o700), ("tokens.toml", 0o600), ("log/epoch", 0o600)] {
        assert_eq!(fs::metadata(dir.join(path)).unwrap().permissions().mode() & 0o777, mode, "{path}");
    }
    assert!(!dir.join("server.json").exists() && !dir.join("executor").exists() && !dir.join("log/lock").exists());
    let usage = |name: &str| fs::read_to_string(dir.join("usage").join(name)).ok();
    for name in ["next", "2026-11-26.json", "2026-11-27.json"] {
        assert_eq!(usage(name).as_deref(), Some(name));
    }
    assert_eq!(usage("2026-11-28.json.part"), None);
    // What the totals have counted is in the log, which is read after them.
    let names: Vec<String> = restored.manifest.files.iter().map(|file| file.path.clone()).collect();
    let place = |name: &str| names.iter().position(|found| found == name).unwrap();
    assert!(place("usage/next") < place("usage/2026-11-26.json"), "{names:?}");
    assert!(place("usage/2026-11-27.json") < names.iter().position(|name| name.starts_with("log/")).unwrap());
    let (_, recovered) = Store::open(&dir.join("log"), Options::default()).unwrap();
    assert_eq!((recovered.epoch, recovered.entries.len()), (restored.epoch, 1));
    // An empty directory is used, another is not changed.
    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    restore(&mut &*archive(), &empty).unwrap();
    let error = restore(&mut &*archive(), &empty).unwrap_err();
    assert!(error.to_string().ends_with("is not empty: it is the state directory of a daemon"), "{error}");
}

#[test]
fn a_directory_without_a_log_is_not_archived() {
    let home = tempfile::tempdir().unwrap();
    for dir in [home.path().to_owned(), home.path().join("missing")] {
        let error = write(&dir, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, BackupError::NoLog { .. }), "{error}");
    }
}

#[test]
fn every_flipped_bit_in_a_file_and_every_cut_is_detected() {
    let files = files(&archive());
    for (place, (path, content)) in files.iter().enumerate().skip(1).filter(|(_, (_, content))| !content.is_empty()) {
        let mut files = files.clone();
        files[place].1[content.len() / 2] ^= 1;
        assert_eq!(
            refusal(&packed(&files)),
            format!("the archive is damaged: the SHA-256 of {path} is not that of the manifest")
        );
    }
    let whole = archive();
    // Without the end of the tar file, which is no content, it is whole.
    for length in (0..whole.len() - 1024).step_by(256) {
        refusal(&whole[..length]);
    }
}

#[test]
fn other_files_and_versions_are_refused() {
    assert!(refusal(b"not a tar file").contains("not an archive"));
    assert!(refusal(&packed(&[("other".to_owned(), Vec::new())])).contains("its first file is not manifest.json"));
    assert!(refusal(&edited(|manifest| manifest.format = 2)).contains("has format 2"));
    let newer = refusal(&edited(|manifest| manifest.store.newest = STORE.newest + 1));
    assert!(newer.contains("of the store") && newer.contains(crate::versions::PROGRAM), "{newer}");
    let mut more = files(&archive());
    more.push(("joins.json".to_owned(), Vec::new()));
    assert!(refusal(&packed(&more)).contains("more files than"));
    more.pop();
    more.pop();
    assert!(refusal(&packed(&more)).contains("it ends before"));
    assert!(
        refusal(&edited(|manifest| manifest.files.retain(|file| !file.path.starts_with("log")))).contains("no log")
    );
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    for path in ["../evil", "/etc/evil", "log/../../evil", "executor/evil", "log/lock", "log/segment-1", "log/", "evil"]
    {
        let mut files = files(&archive());
        let mut manifest: Manifest = serde_json::from_slice(&files[0].1).unwrap();
        manifest.files.push(Listed { path: path.to_owned(), bytes: 4, sha256: hex(&Sha256::digest(b"evil")) });
        files[0].1 = serde_json::to_vec(&manifest).unwrap();
        files.push((path.to_owned(), b"evil".to_vec()));
        let refusal = refusal(&packed(&files));
        assert!(refusal.contains("is not the name of a file of a state directory"), "{path}: {refusal}");
    }
    // The manifest is right, the file has another path.
    let mut files = files(&archive());
    files[1].0 = "../evil".to_owned();
    assert!(refusal(&packed(&files)).contains("there is another file in the place of tokens.toml"));
}
