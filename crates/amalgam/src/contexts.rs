//! Contexts: the servers that the user has logged in to. They are in `contexts.toml` of the user's configuration directory,
//! which contains tokens (ADR 81).

use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::show;
use amalgam_daemon::auth::{self, AuthError};
use amalgam_daemon::authority::Trusted;
use amalgam_daemon::durable;
use amalgam_daemon::private::make_private_dir;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, io};

/// The name that stands for no context.
pub const NO_CONTEXT: &str = "-";
/// The most bytes of a name.
const MOST_BYTES: usize = 64;
/// Age from which the authorities of a server are fetched again, with the next call.
const RENEWAL: Duration = Duration::from_secs(60 * 60);
/// Time limit for that. The call itself has its own.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(2);

/// A server, how it is verified, and the token for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub name: String,
    /// Its address, as for `--server`.
    pub server: String,
    /// None at a local socket, where the kernel says who calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The certificates of the authorities of a server with TLS, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorities: Option<String>,
    /// When the server sent them, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorities_at: Option<u64>,
}

/// The content of the file.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The name of the context that is used if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default, rename = "context")]
    list: Vec<Context>,
}

impl Contexts {
    pub fn list(&self) -> &[Context] {
        &self.list
    }

    pub fn get(&self, name: &str) -> Option<&Context> {
        self.list.iter().find(|context| context.name == name)
    }

    pub fn current(&self) -> Option<&Context> {
        self.get(self.current.as_deref()?)
    }

    /// A context that is named by a flag, a variable or an argument.
    ///
    /// # Errors
    /// If there is none. The text lists those that exist.
    pub fn named(&self, name: &str, by: &str) -> Result<&Context> {
        let names: Vec<&str> = self.list.iter().map(|context| context.name.as_str()).collect();
        self.get(name).ok_or_else(|| {
            let what = format!("there is no context `{}` ({by})", name.escape_debug());
            let remedy = match names.as_slice() {
                [] => "make one with `amalgam login URL`".to_owned(),
                names => format!("the contexts are: {}; `amalgam login URL` makes another", names.join(", ")),
            };
            Failure::usage(what, remedy)
        })
    }

    /// Makes a context the current one; `None` stands for none.
    pub fn choose(&mut self, name: Option<&str>) {
        self.current = name.map(str::to_owned);
    }

    /// Adds a context, in the place of one with the same name.
    pub fn put(&mut self, context: Context) {
        match self.list.iter_mut().find(|other| other.name == context.name) {
            Some(other) => *other = context,
            None => self.list.push(context),
        }
    }

    /// Removes a context. If it was the current one, none is current then.
    pub fn remove(&mut self, name: &str) {
        self.list.retain(|context| context.name != name);
        self.current.take_if(|current| current == name);
    }
}

/// The place of the file.
pub struct Store {
    dir: PathBuf,
}

impl Store {
    const FILE: &'static str = "contexts.toml";

    /// That of this user, as the XDG rules say.
    ///
    /// # Errors
    /// If the user has no home directory.
    pub fn of_user() -> Result<Store> {
        let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
        let none = || Failure::new("no home directory for the contexts", "set HOME or XDG_CONFIG_HOME");
        base.map(|base| Store { dir: base.join("amalgam") }).ok_or_else(none)
    }

    pub fn path(&self) -> PathBuf {
        self.dir.join(Store::FILE)
    }

    /// The contexts; none if there is no file.
    ///
    /// # Errors
    /// If the file cannot be read, can be read by others, or has a mistake.
    pub fn read(&self) -> Result<Contexts> {
        let path = self.path();
        let text = match auth::read_private(&path) {
            Err(AuthError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(Contexts::default());
            }
            text => text?,
        };
        parse(&path, &text)
    }

    /// Changes the file; other processes wait meanwhile.
    ///
    /// # Errors
    /// Those of the change; or if the file cannot be read or written.
    pub fn change<T>(&self, change: impl FnOnce(&mut Contexts) -> Result<T>) -> Result<T> {
        let failed = |error: io::Error| {
            let what = format!("cannot write {}: {error}", self.path().display());
            Failure::new(what, "check the permissions of its directory, or name another one with XDG_CONFIG_HOME")
        };
        make_private_dir(&self.dir).map_err(failed)?;
        let _lock = auth::lock(&self.dir).map_err(failed)?;
        let mut contexts = self.read()?;
        let result = change(&mut contexts)?;
        let text = toml::to_string(&contexts).map_err(|error| failed(io::Error::other(error)))?;
        durable::replace(&self.path(), text.as_bytes()).map_err(failed)?;
        Ok(result)
    }
}

/// The error shows no part of the file, which contains tokens.
fn parse(path: &Path, text: &str) -> Result<Contexts> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        let what = format!("{}:{line}: {}", path.display(), error.message());
        Failure::usage(what, "correct the line, or remove the file and log in again with `amalgam login URL`")
    })
}

/// # Errors
/// If a text cannot be the name of a context.
pub fn check_name(name: &str) -> Result<()> {
    let in_name = |character: char| character.is_alphanumeric() || "._-:".contains(character);
    if !name.is_empty() && name.len() <= MOST_BYTES && !name.starts_with('-') && name.chars().all(in_name) {
        return Ok(());
    }
    let what = format!("`{}` cannot be the name of a context (--name)", name.escape_debug());
    Err(Failure::usage(
        what,
        "use up to 64 letters, digits, `.`, `_`, `-` and `:`, with another first character than `-`",
    ))
}

/// The client, which trusts what the server's `ca.pem` has now. That is fetched over a connection that is verified by the
/// authorities of the context, if these are not recent: so a client that calls during a rotation of the authority does not
/// notice the end of it. If that is not possible, the call itself says why.
pub fn with_present_authorities(client: Client, context: &Context) -> Client {
    let (now, fetched) = (seconds_now(), context.authorities_at.unwrap_or(0));
    // A clock that was set back makes none recent for ever.
    if fetched <= now && now - fetched < RENEWAL.as_secs() {
        return client;
    }
    let fetched = client.within(RENEWAL_PATIENCE).authorities().ok().and_then(|pem| Trusted::read(&pem).ok());
    let Some(pem) = fetched.as_deref().map(joined) else { return client };
    if let Err(failure) = renew(context, &pem, now) {
        show::note(&format!(
            "warning: the authorities of the context `{}` were not renewed: {}",
            context.name, failure.what
        ));
    }
    client.clone().trusting_pem(pem.as_bytes()).unwrap_or(client)
}

fn renew(context: &Context, pem: &str, now: u64) -> Result<()> {
    Store::of_user()?.change(|contexts| {
        // Not if somebody logged in meanwhile.
        if contexts.get(&context.name) == Some(context) {
            contexts.put(Context { authorities: Some(pem.to_owned()), authorities_at: Some(now), ..context.clone() });
        }
        Ok(())
    })
}

/// The certificates without what may stand between them.
pub fn joined(authorities: &[Trusted]) -> String {
    authorities.iter().map(|authority| authority.pem.as_str()).collect()
}

pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn context(name: &str) -> Context {
        Context {
            name: name.to_owned(),
            server: format!("https://{name}:7433"),
            token: Some("secret".to_owned()),
            authorities: Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned()),
            authorities_at: Some(1_700_000_000),
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store { dir: directory.path().join("amalgam") };
        (directory, store)
    }

    fn put(store: &Store, context: Context) {
        store
            .change(|contexts| {
                contexts.put(context);
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn contexts_are_stored_for_their_owner_only() {
        let (_directory, store) = store();
        assert_eq!(store.read().unwrap(), Contexts::default());
        let here = Context { token: None, authorities: None, authorities_at: None, ..context("here") };
        put(&store, context("head"));
        put(&store, here.clone());
        store
            .change(|contexts| {
                contexts.choose(Some("here"));
                Ok(())
            })
            .unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.path()), mode(&store.dir)), (0o600, 0o700));
        let read = store.read().unwrap();
        assert_eq!((read.list(), read.current()), ([context("head"), here.clone()].as_slice(), Some(&here)));
        let moved = Context { server: "https://other:1".to_owned(), ..context("head") };
        put(&store, moved.clone());
        assert_eq!(store.read().unwrap().list(), [moved, here]);
        store
            .change(|contexts| {
                contexts.remove("here");
                Ok(())
            })
            .unwrap();
        let left = store.read().unwrap();
        assert_eq!((left.list().len(), left.current()), (1, None));
    }

    #[test]
    fn a_file_that_others_can_read_or_with_a_mistake_is_refused_without_showing_it() {
        let (_directory, store) = store();
        put(&store, context("head"));
        fs::set_permissions(store.path(), Permissions::from_mode(0o644)).unwrap();
        let exposed = store.read().unwrap_err();
        assert!(exposed.what.contains("can be read by others (mode 644)"), "{exposed}");
        assert!(exposed.remedy.contains("chmod 600"), "{exposed}");
        fs::set_permissions(store.path(), Permissions::from_mode(0o600)).unwrap();
        let text = fs::read_to_string(store.path()).unwrap();
        for (wrong, line) in
            [(text.replace("token = ", "tokn = "), ":4: unknown field `tokn`"), (text + "token = \"secret", ":")]
        {
            fs::write(store.path(), &wrong).unwrap();
            let refused = store.read().unwrap_err();
            assert!(
                refused.what.contains(&format!("contexts.toml{line}")) && !refused.what.contains("secret"),
                "{refused}"
            );
        }
    }

    #[test]
    fn an_unknown_context_is_refused_with_the_list_of_the_others() {
        let mut contexts = Contexts::default();
        assert!(contexts.named("x", "--context").unwrap_err().remedy.contains("amalgam login"));
        contexts.put(context("head"));
        contexts.put(context("lab"));
        let refused = contexts.named("x", "AMALGAM_CONTEXT").unwrap_err();
        assert_eq!(refused.what, "there is no context `x` (AMALGAM_CONTEXT)");
        assert!(refused.remedy.starts_with("the contexts are: head, lab;"), "{refused}");
    }

    #[test]
    fn names_are_words() {
        for name in ["head", "head.example.org", "::1", "müller", "a_b-c"] {
            check_name(name).unwrap();
        }
        for name in ["", "-", "-x", "a b", "a\n", "../x", &"x".repeat(65)] {
            check_name(name).unwrap_err();
        }
    }
}
