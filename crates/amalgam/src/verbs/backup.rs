//! `amalgam backup` and `amalgam restore`: archives of state directories, written while their daemons run.

use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, output, show};
use amalgam_daemon::audit::{self, AuditLog};
use amalgam_daemon::backup::{self, BackupError, Manifest, Restored};
use amalgam_daemon::durable::Temporary;
use clap::Args;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
pub struct BackupArgs {
    /// The archive to write, a tar file; - for standard output
    file: PathBuf,
}

#[derive(Args)]
pub struct RestoreArgs {
    /// The archive to read; - for standard input
    file: PathBuf,
}

pub fn execute(BackupArgs { file }: BackupArgs, connection: &Connection) -> Result<ExitCode> {
    check_no_server("backup", connection)?;
    let state_dir = discovery::state_dir(connection)?;
    let written = if file == Path::new("-") { to_stdout(&state_dir) } else { to_file(&state_dir, &file) };
    record(&state_dir, &file, &written);
    let manifest = written?;
    let Manifest { kind, at, files, .. } = &manifest;
    let (count, bytes) = (files.len(), manifest.bytes());
    show::note(&format!("wrote the state of {kind} at {at}: {count} files, {bytes} bytes"));
    show::note("note: the archive contains secrets: tokens, and the key of the certificate authority if there is one");
    if manifest.has_no_records() {
        show::note("note: the jobs and nodes of this server are in etcd and not in the archive; back up etcd, too");
    }
    Ok(ExitCode::SUCCESS)
}

pub fn restore(RestoreArgs { file }: RestoreArgs, connection: &Connection) -> Result<ExitCode> {
    check_no_server("restore", connection)?;
    let dir = discovery::state_dir(connection)?;
    let restored = if file == Path::new("-") {
        backup::restore(&mut io::stdin().lock(), &dir)?
    } else {
        let opened = File::open(&file).and_then(|opened| match opened.metadata()?.is_dir() {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => Ok(opened),
        });
        let archive = opened.map_err(|error| {
            let what = format!("cannot read {}: {error}", file.display());
            Failure::new(what, "name an archive that `amalgam backup` wrote, and that your user can read")
        })?;
        backup::restore(&mut BufReader::new(archive) as &mut dyn Read, &dir)?
    };
    let Restored { manifest, epoch } = restored;
    let Manifest { kind, at, program, .. } = &manifest;
    show::note(&format!("restored the state of {kind} at {at}, written by program {program}, to {}", dir.display()));
    show::note(&format!(
        "note: its next start has the number {epoch}, so that nodes accept it; never start a daemon with the directory that the \
         archive was made from again\nnote: jobs that were submitted later are lost and tasks that ended later run again; tokens \
         that were revoked later are valid again"
    ));
    if manifest.has_no_records() {
        show::note("note: the jobs and nodes of this server are in etcd; restore etcd, too");
    }
    Ok(ExitCode::SUCCESS)
}

fn check_no_server(verb: &str, connection: &Connection) -> Result<()> {
    match connection.names_server() {
        false => Ok(()),
        true => Err(Failure::usage(
            format!("`{verb}` works with the state directory of a daemon on this machine, and connects to no server"),
            "leave --server and --context out, and name the state directory with --state-dir",
        )),
    }
}

fn to_stdout(state_dir: &Path) -> Result<Manifest> {
    if io::stdout().is_terminal() {
        return Err(Failure::usage("the archive would be written to the terminal", "redirect it, or name a file"));
    }
    let mut out = BufWriter::with_capacity(256 << 10, output::stdout());
    Ok(backup::write(state_dir, &mut out)?)
}

/// Only this user can read the archive, and it is complete or absent.
fn to_file(state_dir: &Path, path: &Path) -> Result<Manifest> {
    // Also a link: its target is not replaced.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        let what = format!("{} is not a file", path.display());
        return Err(Failure::usage(what, "name a new file, or - and redirect standard output"));
    }
    let mut draft = path.file_name().map_or_else(OsString::new, OsString::from);
    draft.push(format!(".{}.tmp", std::process::id()));
    let failed = |error| BackupError::File { what: "write", path: path.to_owned(), error };
    let temporary = Temporary::create(path.with_file_name(draft), 0o600).map_err(failed)?;
    let mut out = BufWriter::with_capacity(256 << 10, temporary.file());
    let manifest = backup::write(state_dir, &mut out)?;
    out.flush().map_err(failed)?;
    drop(out);
    temporary.rename(path).map_err(failed)?;
    Ok(manifest)
}

/// The audit log names the copies of its secrets.
fn record(state_dir: &Path, file: &Path, written: &Result<Manifest>) {
    if !state_dir.join(AuditLog::FILE).exists() {
        return;
    }
    let user = amalgam_cli::process::user();
    let result = written.as_ref().err().map_or_else(|| "ok".to_owned(), |failure| failure.what.clone());
    let request = format!("backup {}", file.display());
    if let Err(error) = audit::add_local(state_dir, &user, request, result) {
        show::note(&format!("warning: this backup is not in the audit log: {error}"));
    }
}
