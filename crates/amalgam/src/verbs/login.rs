//! `amalgam login` and `amalgam logout`: contexts are made and removed (ADR 81).

use crate::client::Client;
use crate::connection::Connection;
use crate::contexts::{self, Context, Store};
use crate::discovery::{self, LOCAL};
use crate::failure::{Failure, Kind, Result};
use crate::{environment, show};
use amalgam_daemon::auth::joins::JoinString;
use amalgam_daemon::authority::Trusted;
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs;
use std::io::{self, IsTerminal, Stdin};
use std::path::{Path, absolute};
use std::process::ExitCode;
use ureq::http::Uri;

#[derive(Args)]
pub struct LoginArgs {
    /// The server's address, such as https://head:7433; or http://127.0.0.1:7433 or unix:PATH on this machine
    #[arg(value_name = "URL")]
    url: String,
    /// The SHA-256 of the server's authority, as `amalgam ca list` prints it at the server; without it, it is shown and you are asked
    #[arg(long, value_name = "SHA256")]
    fingerprint: Option<String>,
    /// A join string of this server, which contains the fingerprint: HOST:PORT/SHA256/SECRET. Leave the secret out where others see your
    /// command line; the string is not used up
    #[arg(long, value_name = "STRING", conflicts_with = "fingerprint")]
    join: Option<String>,
    /// The name of the context [default: the host's name, or `local`]
    #[arg(long, value_name = "CONTEXT")]
    name: Option<String>,
}

#[derive(Args)]
pub struct LogoutArgs {
    /// The context [default: the current one]
    #[arg(value_name = "CONTEXT")]
    name: Option<String>,
}

pub fn execute(args: LoginArgs, connection: &Connection) -> Result<ExitCode> {
    if connection.names_server() {
        let remedy = "leave --server and --context out; --name names the new context";
        return Err(Failure::usage("`login` takes the server's address as its argument", remedy));
    }
    let server = address(&args.url)?;
    let name = args.name.clone().unwrap_or_else(|| default_name(&server));
    contexts::check_name(&name)?;
    let store = Store::of_user()?;
    let known = store.read()?.get(&name).cloned();
    if let Some(other) = known.as_ref().filter(|known| known.server != server) {
        let what = format!("the context `{name}` is of another server, {}", other.server);
        return Err(Failure::usage(what, format!("choose another --name, or run `amalgam logout {name}` first")));
    }
    let pin = pin(&args)?;
    let authorities = match server.starts_with("https://") {
        true => Some(verified_authorities(
            &server,
            pin.as_deref().map(|pin| (pin, args.join.is_some())),
            connection,
            known.as_ref(),
        )?),
        false if pin.is_some() => {
            return Err(Failure::usage(
                format!("--fingerprint and --join are for https:// servers, and {server} has no certificate"),
                "leave it out",
            ));
        }
        false => None,
    };
    let token = match discovery::named_token(connection)? {
        None if server.starts_with(LOCAL) => None,
        None => Some(asked_token()?),
        named => named,
    };
    let context = Context {
        authorities_at: authorities.as_ref().map(|_| contexts::seconds_now()),
        name: name.clone(),
        server: server.clone(),
        token,
        authorities,
    };
    client_of(&context)?.check_token()?;
    store.change(|contexts| {
        contexts.put(context);
        contexts.choose(Some(&name));
        Ok(())
    })?;
    show::note(&format!("logged in to {server}; the context `{name}` is the current one now"));
    super::context::note_overrides(connection)?;
    Ok(ExitCode::SUCCESS)
}

pub fn logout(LogoutArgs { name }: LogoutArgs, connection: &Connection) -> Result<ExitCode> {
    let by = if name.is_some() { "the argument" } else { "--context" };
    super::context::remove(name.or_else(|| connection.context.clone()).as_deref(), by)
}

/// The address as it is stored.
fn address(url: &str) -> Result<String> {
    match url.strip_prefix(LOCAL) {
        Some(socket) => Ok(format!("{LOCAL}{}", absolute(socket)?.display())),
        None => discovery::base_url(url, "the argument of `login`"),
    }
}

fn default_name(server: &str) -> String {
    let uri = server.parse::<Uri>().ok().filter(|_| server.starts_with("https://"));
    let host = uri.as_ref().and_then(Uri::host).map(|host| host.trim_start_matches('[').trim_end_matches(']'));
    host.unwrap_or("local").to_owned()
}

fn client_of(context: &Context) -> Result<Client> {
    if let Some(socket) = context.server.strip_prefix(LOCAL) {
        return Ok(Client::local(Path::new(socket), context.token.clone()));
    }
    let client = Client::new(context.server.clone(), context.token.clone().unwrap_or_default());
    match &context.authorities {
        Some(pem) => client.trusting_pem(pem.as_bytes()).ok_or_else(|| no_authority(&context.server)),
        None => Ok(client),
    }
}

/// What the server's clients trust, from the server, after it was verified: by a file of authorities, by the fingerprint, by the
/// context that is to be replaced, or by the user. Nothing that was received before is trusted beyond that.
fn verified_authorities(
    server: &str,
    pin: Option<(&str, bool)>,
    connection: &Connection,
    known: Option<&Context>,
) -> Result<String> {
    if let Some(path) = connection.ca_file.as_deref().filter(|_| pin.is_none()) {
        let pem = fs::read(path).map_err(|error| Failure::unreadable(path, &error, "check the path"))?;
        return present_authorities(server, &pem);
    }
    let known = known.filter(|_| pin.is_none()).and_then(|known| known.authorities.as_deref());
    match known.map(|pem| present_authorities(server, pem.as_bytes())) {
        Some(Err(failure)) if failure.kind.is_unverified() => {
            return Err(Failure::new(
                format!(
                    "{server} presents a certificate of another authority than that of its context; somebody may be between it and you"
                ),
                "ask its administrator for the fingerprint (`amalgam ca list`), and pass it with --fingerprint",
            ));
        }
        Some(known) => return known,
        None => {}
    }
    let offered = offered(server)?;
    match pin {
        Some(pin) => pinned(server, pin, &offered),
        None => asked(server, &offered),
    }
}

/// The authorities that a server sends now, whose certificate is signed by one of these.
fn present_authorities(server: &str, trusted: &[u8]) -> Result<String> {
    let client = Client::anonymous(server.to_owned()).trusting_pem(trusted).ok_or_else(|| no_authority(server))?;
    let pem = client.authorities()?;
    Trusted::read(&pem).map(|trusted| contexts::joined(&trusted)).map_err(|_| no_authority(server))
}

/// What any process at the address offers.
fn offered(server: &str) -> Result<Vec<Trusted>> {
    let pem = Client::offered_authorities(server).map_err(|failure| match failure.kind {
        Kind::Unreachable => Failure {
            remedy: "check the address, and that the server runs and listens there: clients of other machines need \
                     `amalgam server --listen 0.0.0.0:7433`"
                .to_owned(),
            ..failure
        },
        Kind::Broken => failure,
        _ => Failure {
            what: format!("{server} does not send its authority: {}", failure.what),
            remedy: "check that it is an amalgam server; for one of an older version, pass --ca-file with a copy of ca.pem in its \
                     state directory"
                .to_owned(),
            ..failure
        },
    })?;
    Trusted::read(&pem).map_err(|_| no_authority(server))
}

fn no_authority(server: &str) -> Failure {
    Failure::new(format!("{server} sends no certificate of an authority"), "check that it is an amalgam server")
}

/// The others that were offered may come from somebody between both, who can know the certificate with this fingerprint.
fn pinned(server: &str, (pin, is_of_string): (&str, bool), offered: &[Trusted]) -> Result<String> {
    let Some(found) = offered.iter().find(|authority| authority.fingerprint == pin) else {
        let has: Vec<&str> = offered.iter().map(|authority| authority.fingerprint.as_str()).collect();
        // What is wrong with a join string may be that its secret is in this place.
        let wanted = if is_of_string { "that of the join string" } else { pin };
        let what = format!("the authority of {server} has the fingerprint {}, not {wanted}", has.join(" or "));
        let remedy = "compare what you passed with the output of `amalgam ca list` at the server; if that is the same, another \
                      process answers at this address: do not send it a token";
        return Err(Failure::new(what, remedy));
    };
    present_authorities(server, found.pem.as_bytes()).map_err(|failure| match failure.kind {
        kind if kind.is_unverified() => Failure {
            remedy: "use the fingerprint of the authority that signs `server` in the output of `amalgam ca list`; and an address that \
                     is in the certificate: the server's host name, its addresses and `listen_names` of its configuration"
                .to_owned(),
            ..failure
        },
        _ => failure,
    })
}

/// The authority that has signed the server's certificate, if the user trusts it.
fn asked(server: &str, offered: &[Trusted]) -> Result<String> {
    let verify = |authority: &Trusted| present_authorities(server, authority.pem.as_bytes());
    let mut refused = None;
    let mut verified = offered.iter().filter_map(|authority| match verify(authority) {
        Ok(present) => Some((authority, present)),
        Err(failure) => {
            refused = Some(failure);
            None
        }
    });
    let Some((authority, present)) = verified.next() else {
        return Err(refused.unwrap_or_else(|| no_authority(server)));
    };
    let Trusted { name, fingerprint, .. } = authority;
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let what = "the authority of the server has to be confirmed, and standard input is not a terminal";
        let remedy = "pass --fingerprint with the SHA-256 that `amalgam ca list` prints at the server, or --join with a join string";
        return Err(Failure::usage(what, remedy));
    }
    show::note(&format!(
        "{server} has this certificate authority:\n  name     {}\n  SHA-256  {fingerprint}\nCompare the fingerprint with the output of \
         `amalgam ca list` at the server. Is it the same, and do you trust it? (yes/no)",
        show::visible(name)
    ));
    match is_yes(&line()?) {
        true => Ok(present),
        false => Err(Failure::new("the authority was not confirmed; nothing was stored", "")),
    }
}

fn is_yes(answer: &str) -> bool {
    ["yes", "y"].contains(&answer.trim().to_ascii_lowercase().as_str())
}

/// The fingerprint that the user passed.
fn pin(args: &LoginArgs) -> Result<Option<String>> {
    match &args.join {
        Some(string) => JoinString::fingerprint_in(string).map(Some).map_err(|why| {
            let what = format!("invalid join string (--join): {why}");
            Failure::usage(what, "pass a line of `amalgam token join`, with or without `/SECRET`")
        }),
        None => args.fingerprint.as_deref().map(parse_fingerprint).transpose(),
    }
}

/// A SHA-256 in lower-case digits, as it is compared. Other programs print it with colons and in capitals.
fn parse_fingerprint(text: &str) -> Result<String> {
    let text = text.trim();
    let digits =
        text.split_once(':').filter(|(kind, _)| kind.eq_ignore_ascii_case("sha256")).map_or(text, |(_, rest)| rest);
    let digits: String = digits.chars().filter(|character| *character != ':').map(|c| c.to_ascii_lowercase()).collect();
    if digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(digits);
    }
    let what = format!("`{}` is not a fingerprint (--fingerprint)", text.escape_debug());
    Err(Failure::usage(what, "write the 64 hexadecimal digits that `amalgam ca list` prints at the server"))
}

fn asked_token() -> Result<String> {
    let stdin = io::stdin();
    let text = if stdin.is_terminal() {
        // Before the question: what was typed until now is dropped.
        let _hidden = Hidden::start(&stdin)?;
        show::note("Your access token (it is not shown while you type or paste it):");
        line()?
    } else {
        line()?
    };
    let remedy = "pass the token with --token-file, in AMALGAM_TOKEN, or as a line of standard input; an administrator makes one with \
                  `amalgam token add`";
    if text.trim().is_empty() {
        return Err(Failure::usage("no token for the server", remedy));
    }
    environment::token_of(&text, "the text of standard input", remedy)
}

fn line() -> Result<String> {
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    read.map_err(|error| Failure::new(format!("cannot read standard input: {error}"), "try again"))?;
    Ok(line)
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden<'a> {
    terminal: &'a Stdin,
    before: Termios,
}

impl Hidden<'_> {
    fn start(terminal: &Stdin) -> Result<Hidden<'_>> {
        let before = tcgetattr(terminal).map_err(io::Error::from)?;
        let mut hidden = before.clone();
        hidden.local_modes -= LocalModes::ECHO;
        hidden.local_modes |= LocalModes::ECHONL;
        tcsetattr(terminal, OptionalActions::Flush, &hidden).map_err(io::Error::from)?;
        Ok(Hidden { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_other_programs_print_them() {
        let digits = "0e5ba4".repeat(10) + "0123";
        let pairs: Vec<&str> = (0..32).map(|pair| &digits[2 * pair..2 * pair + 2]).collect();
        let colons = pairs.join(":").to_uppercase();
        for text in [
            digits.clone(),
            digits.to_uppercase(),
            colons.clone(),
            format!("sha256:{digits}"),
            format!("SHA256:{colons}\n"),
        ] {
            assert_eq!(parse_fingerprint(&text).unwrap(), digits, "{text}");
        }
        for wrong in ["", "0e5b", &digits[1..], &format!("{digits}0"), &digits.replace('0', "g")] {
            assert!(parse_fingerprint(wrong).unwrap_err().what.contains("is not a fingerprint"), "{wrong}");
        }
    }

    #[test]
    fn contexts_are_named_like_the_host() {
        for (url, name) in [
            ("https://head:7433", "head"),
            ("https://head.example.org", "head.example.org"),
            ("https://[::1]:7433", "::1"),
            ("http://127.0.0.1:7433/", "local"),
            ("unix:/run/amalgam/socket", "local"),
        ] {
            let name_of = default_name(&address(url).unwrap());
            assert_eq!(name_of, name);
            contexts::check_name(&name_of).unwrap();
        }
        assert!(address("http://head:7433").unwrap_err().remedy.contains("use https://"));
        assert!(address("ftp://head").unwrap_err().what.contains("the argument of `login`"));
    }

    #[test]
    fn only_yes_confirms() {
        assert!(["yes\n", "Y", " YES "].into_iter().all(is_yes));
        assert!(!["", "no", "yess", "ja", "\n"].into_iter().any(is_yes));
    }
}
