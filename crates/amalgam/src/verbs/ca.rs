//! `amalgam ca`: the certificate authority of a server on this machine.

use super::token::recorded;
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, show};
use amalgam_daemon::auth::Tokens;
use amalgam_daemon::authority::{self, Authority, AuthorityError, Progress, Standing};
use amalgam_daemon::private::make_private_dir;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

#[derive(Args)]
pub struct CaArgs {
    #[command(subcommand)]
    verb: CaVerb,
}

#[derive(Subcommand)]
enum CaVerb {
    /// List the authorities that clients and daemons trust
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the authority by a new one while everything runs
    ///
    /// First a new authority is added, which all daemons get to trust; those that joined with a string receive certificates of it
    /// from the running server, within seconds or when they connect. Clients that have logged in receive it with a call, if an hour has
    /// passed since the last time; copy the new ca.pem to the others, which may use it already. At the end, --finish removes the first authority.
    Rotate {
        /// End the rotation: the first authority is not trusted any more
        #[arg(long)]
        finish: bool,
        /// Do it also if daemons have to join again: those without new certificates at --finish, those that are not connected at --cancel
        #[arg(long)]
        force: bool,
        /// Take the rotation back
        #[arg(long, conflicts_with = "finish")]
        cancel: bool,
    },
    /// Use the authority of an organisation
    ///
    /// Before the first start of the server it is used at once, otherwise as with `amalgam ca rotate`, which also ends it.
    Import {
        /// The certificate of the authority (PEM), followed by those of the authorities that signed it
        #[arg(long, value_name = "FILE")]
        certificate: PathBuf,
        /// Its private key (PEM, PKCS#8), which only its owner can read
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
}

#[derive(Serialize)]
struct Listed {
    name: String,
    /// SHA-256 of the certificate.
    fingerprint: String,
    until: String,
    /// What it signs: `server`, `daemons`.
    signs: Vec<&'static str>,
}

impl From<Standing> for Listed {
    fn from(standing: Standing) -> Listed {
        let until = UNIX_EPOCH + Duration::from_secs(standing.until.try_into().unwrap_or(0));
        let signs = [(standing.signs_server, "server"), (standing.signs_daemons, "daemons")];
        Listed {
            name: standing.name,
            fingerprint: standing.fingerprint,
            until: humantime::format_rfc3339_seconds(until).to_string(),
            signs: signs.into_iter().filter_map(|(signs, what)| signs.then_some(what)).collect(),
        }
    }
}

pub fn execute(args: CaArgs, connection: &Connection) -> Result<ExitCode> {
    if connection.names_server() {
        let what = "`ca` changes files of a server on this machine, and connects to no server";
        return Err(Failure::usage(
            what,
            "leave --server and --context out, and name the server's state directory with --state-dir",
        ));
    }
    let state_dir = discovery::state_dir(connection)?;
    let tokens = state_dir.join(Tokens::FILE);
    let may_be_new = matches!(args.verb, CaVerb::Import { .. });
    if !may_be_new && !state_dir.join(Authority::FILE).exists() {
        let remedy = "run this on the server's machine, and name the state directory with --state-dir; the first start of the server \
                      creates the file";
        return Err(Failure::new(format!("{} not found", state_dir.join(Authority::FILE).display()), remedy));
    }
    match args.verb {
        CaVerb::List { json } => return list(&state_dir, json),
        CaVerb::Rotate { finish: true, force, .. } => {
            let request = format!("ca rotate --finish{}", if force { " --force" } else { "" });
            recorded(&tokens, request, || authority::finish(&state_dir, force)).map_err(failure)?;
            show::note(
                "the first authority is not trusted any more; clients need the present ca.pem; a context with which nobody called \
                 between its first hour and now needs `amalgam login` again",
            );
        }
        CaVerb::Rotate { cancel: true, force, .. } => {
            let request = format!("ca rotate --cancel{}", if force { " --force" } else { "" });
            recorded(&tokens, request, || authority::cancel(&state_dir, force)).map_err(failure)?;
        }
        CaVerb::Rotate { force: true, .. } => {
            return Err(Failure::usage("--force is for --finish and --cancel", "leave it out, or add one of these"));
        }
        CaVerb::Rotate { .. } => {
            recorded(&tokens, "ca rotate".to_owned(), || authority::start(&state_dir)).map_err(failure)?;
            next_steps(&state_dir);
        }
        CaVerb::Import { certificate, key } => {
            // The server has perhaps never started.
            make_private_dir(&state_dir).map_err(|error| {
                let what = format!("cannot use the state directory {}: {error}", state_dir.display());
                Failure::new(what, "check the path and its permissions")
            })?;
            let import = || authority::import(&state_dir, &certificate, &key);
            recorded(&tokens, format!("ca import {}", certificate.display()), import).map_err(failure)?;
            if Progress::of(&state_dir).map_err(failure)?.is_rotating {
                next_steps(&state_dir);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn next_steps(state_dir: &Path) {
    show::note(&format!(
        "both authorities are trusted now; clients with a context learn the next one by their calls, after an hour; copy {} to the \
         others, and then run `amalgam ca rotate --finish`",
        state_dir.join(Authority::FILE).display()
    ));
}

fn list(state_dir: &Path, json: bool) -> Result<ExitCode> {
    let progress = Progress::of(state_dir).map_err(failure)?;
    let listed: Vec<Listed> = progress.authorities.into_iter().map(Listed::from).collect();
    if json {
        show::json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = listed
        .into_iter()
        .map(|listed| vec![listed.name, listed.signs.join(","), listed.until, listed.fingerprint])
        .collect();
    show::print(&show::table(&["NAME", "SIGNS", "UNTIL", "SHA-256"], &rows))?;
    if progress.is_rotating {
        show::note(&match progress.missing.len() {
            0 => "a rotation is under way; all daemons have certificates of the next authority".to_owned(),
            missing => {
                format!("a rotation is under way; {missing} daemons have no certificate of the next authority yet")
            }
        });
    }
    Ok(ExitCode::SUCCESS)
}

fn failure(error: AuthorityError) -> Failure {
    let remedy = error.remedy();
    Failure::new(error.to_string(), remedy)
}
