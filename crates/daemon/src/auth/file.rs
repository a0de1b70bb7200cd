//! The token file: the holder of each token, and until when replaced tokens are valid. It is edited by people and by
//! `amalgam token`, which keeps their comments.

use super::AuthError;
use super::roles::DaemonRole;
use super::scopes::{Scope, Scopes};
use crate::durable;
use amalgam_core::vocabulary::{BadName, Named};
use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use toml_edit::{ArrayOfTables, Document, DocumentMut, Item, Table, TableLike, value};

/// How long a replaced token stays valid, so that copies of it can be replaced.
pub const OVERLAP: Duration = Duration::from_secs(24 * 60 * 60);

/// The holder of a token, which determines its rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A person, or a program that acts for one. An administrator's token also authenticates daemons to each other.
    User { name: String, admin: bool },
    /// A daemon. What it authenticates with has no other use.
    Daemon { role: DaemonRole, name: String },
}

impl Holder {
    pub fn name(&self) -> &str {
        match self {
            Holder::User { name, .. } | Holder::Daemon { name, .. } => name,
        }
    }

    /// The agent of the node with this name.
    pub fn agent(name: impl Into<String>) -> Holder {
        Holder::Daemon { role: DaemonRole::Agent, name: name.into() }
    }

    /// `None` for a user.
    pub fn role(&self) -> Option<DaemonRole> {
        match self {
            Holder::User { .. } => None,
            Holder::Daemon { role, .. } => Some(*role),
        }
    }

    fn usual_scopes(&self) -> Scopes {
        match self {
            Holder::User { admin: true, .. } => Scopes::ADMIN,
            _ => Scopes::USUAL,
        }
    }

    /// Whether both are the same user, with any rights, or the same daemon.
    fn is_same(&self, other: &Holder) -> bool {
        self.role() == other.role() && self.name() == other.name()
    }
}

/// What a holder authenticates with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Credential {
    /// A secret that both sides have.
    Token(String),
    /// The digest of the public key in the daemon's certificates, see [`key_digest`].
    Key(String),
}

impl Credential {
    /// Identifies it without containing a secret.
    pub(super) fn digest(&self) -> [u8; 32] {
        match self {
            Credential::Token(token) => Sha256::digest(token.as_bytes()).into(),
            // Not that of a token with these letters.
            Credential::Key(key) => Sha256::digest(format!("key {key}")).into(),
        }
    }
}

/// How token files name a public key: SHA-256 of its bytes, in hexadecimal.
pub fn key_digest(key: &[u8]) -> String {
    super::hex(&Sha256::digest(key))
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenEntry {
    pub holder: Holder,
    /// Distinguishes a user's tokens for different purposes. Each is replaced and removed by itself.
    pub name: Option<String>,
    pub credential: Credential,
    /// What it may be used for; of a daemon, nothing on the interface.
    pub scopes: Scopes,
    /// The end of its validity, because it was replaced or made for a limited time.
    pub until: Option<SystemTime>,
}

impl TokenEntry {
    /// A new token.
    ///
    /// # Errors
    /// If the system returns no random numbers.
    pub fn new(holder: Holder) -> Result<TokenEntry, AuthError> {
        let scopes = holder.usual_scopes();
        let credential = Credential::Token(super::new_token()?);
        Ok(TokenEntry { holder, name: None, credential, scopes, until: None })
    }

    /// The entry of a daemon with certificates for this public key.
    pub fn with_key(holder: Holder, key: &[u8]) -> TokenEntry {
        let scopes = holder.usual_scopes();
        TokenEntry { holder, name: None, credential: Credential::Key(key_digest(key)), scopes, until: None }
    }

    /// `None` if the holder has certificates instead.
    pub fn token(&self) -> Option<&str> {
        match &self.credential {
            Credential::Token(token) => Some(token),
            Credential::Key(_) => None,
        }
    }

    /// Whether both are for the same purpose of the same user or daemon, so that one replaces the other.
    pub fn is_same(&self, other: &TokenEntry) -> bool {
        self.holder.is_same(&other.holder) && self.name == other.name
    }

    pub fn is_valid(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// For ordering the entries of a holder: the one that is valid for longer is newer.
    fn rank(&self) -> (bool, Option<SystemTime>) {
        (self.until.is_none(), self.until)
    }
}

/// Why a text is not a valid token file, and where.
struct Mistake {
    at: usize,
    problem: String,
    remedy: &'static str,
}

/// Reads the entries of a token file that only its owner can read.
///
/// # Errors
/// If it cannot be used, has a mistake, or can be read by others.
pub fn read(path: &Path) -> Result<Vec<TokenEntry>, AuthError> {
    parse(path, &read_private(path)?)
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<TokenEntry>, AuthError> {
    entries(text).map_err(|Mistake { at, problem, remedy }| {
        let line = text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1;
        AuthError::Malformed { path: path.to_owned(), line, problem, remedy }
    })
}

/// Errors never quote values of the text, which could be secrets.
fn entries(text: &str) -> Result<Vec<TokenEntry>, Mistake> {
    let text = text.trim_start_matches('\u{feff}');
    let document = Document::parse(text).map_err(|error| {
        let problem = error.message().lines().next().unwrap_or_default().to_owned();
        Mistake { at: start(error.span()), problem, remedy: "write valid TOML" }
    })?;
    let mut entries: Vec<TokenEntry> = Vec::new();
    for (name, item) in document.iter() {
        let at = start(item.span());
        let wrong = |problem: &str, remedy| Mistake { at, problem: problem.to_owned(), remedy };
        if name != "token" {
            return Err(wrong(
                "unknown key",
                "each entry is a [[token]] with `user`, `agent`, `job_host`, `global` or `server`, and `token` or `key`",
            ));
        }
        let tables: Vec<&dyn TableLike> = match item {
            Item::ArrayOfTables(tables) => tables.iter().map(|table| table as &dyn TableLike).collect(),
            Item::Value(list) => {
                let tables = list.as_array().map(|list| list.iter().map(|one| one.as_inline_table()));
                let tables: Option<Vec<_>> = tables.and_then(Iterator::collect);
                let tables =
                    tables.ok_or_else(|| wrong("`token` is not a list of tables", "write [[token]] before each"))?;
                tables.into_iter().map(|table| table as &dyn TableLike).collect()
            }
            _ => return Err(wrong("`token` is not a list of tables", "write [[token]] with two brackets")),
        };
        for table in tables {
            let (at, entry) = entry(table, at)?;
            if entries.iter().any(|other| other.credential == entry.credential) {
                let problem = format!("the token of {} is also that of another entry", entry.holder.name());
                return Err(Mistake { at, problem, remedy: "remove one of the two entries" });
            }
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn start(span: Option<Range<usize>>) -> usize {
    span.map_or(0, |span| span.start)
}

/// The values of an entry's keys, with their positions.
#[derive(Default)]
struct Fields {
    /// Who holds it: `None` is a user.
    holders: Vec<(usize, Option<DaemonRole>, String)>,
    token: Option<(usize, String)>,
    key: Option<(usize, String)>,
    label: Option<(usize, String)>,
    admin: Option<bool>,
    scopes: Option<(usize, Scopes)>,
    until: Option<SystemTime>,
}

impl Fields {
    fn read(&mut self, name: &str, at: usize, item: &Item) -> Result<(), Mistake> {
        let wrong = |problem: String, remedy| Mistake { at, problem, remedy };
        let text = || {
            let text = item.as_str().map(str::to_owned);
            text.ok_or_else(|| wrong(format!("`{name}` is not a string"), "write it in quotes"))
        };
        match name {
            "user" => self.holders.push((at, None, text()?)),
            "token" => self.token = Some((at, text()?)),
            "key" => self.key = Some((at, text()?)),
            "name" => self.label = Some((at, text()?)),
            "scopes" => {
                let given = item.as_array().map(|list| list.iter().map(|scope| scope.as_str()?.parse().ok()).collect());
                let given = given.and_then(|scopes: Option<Vec<Scope>>| Scopes::of(scopes?));
                let remedy = "write for instance scopes = [\"read\", \"submit\"]; others are operate and admin";
                let given = given.ok_or_else(|| wrong("`scopes` is not a list of scopes".to_owned(), remedy))?;
                self.scopes = Some((at, given));
            }
            "admin" => {
                let problem = || wrong("`admin` is neither true nor false".to_owned(), "write true or false");
                self.admin = Some(item.as_bool().ok_or_else(problem)?);
            }
            "until" => {
                let given = item.as_str().map(str::to_owned).or_else(|| item.as_datetime().map(ToString::to_string));
                let time = given.and_then(|text| humantime::parse_rfc3339_weak(&text).ok());
                let remedy = "write for instance until = 2026-12-31T00:00:00Z, or leave it out";
                self.until = Some(time.ok_or_else(|| wrong("`until` is not a time".to_owned(), remedy))?);
            }
            _ => match DaemonRole::ALL.into_iter().find(|role| role.key() == name) {
                Some(role) => self.holders.push((at, Some(role), text()?)),
                None => {
                    // If a quote is missing, the key may be a secret.
                    let problem =
                        if name.len() > 16 { "unknown key".to_owned() } else { format!("unknown key `{name}`") };
                    return Err(wrong(
                        problem,
                        "keys are user, agent, job_host, global, server, name, token, key, admin, scopes and until",
                    ));
                }
            },
        }
        Ok(())
    }

    /// The credential and its position. `at`: the position of the holder's name.
    fn credential(&mut self, at: usize, is_daemon: bool, name: &str) -> Result<(usize, Credential), Mistake> {
        let wrong = |at, problem: String, remedy| Err(Mistake { at, problem, remedy });
        match (self.token.take(), self.key.take()) {
            (Some((at, token)), None) => {
                if token.is_empty() || token.contains(|c: char| c.is_whitespace() || c.is_control()) {
                    let problem = format!("the token of {name} is empty or has a space in it");
                    return wrong(at, problem, "create one with `amalgam token add`");
                }
                Ok((at, Credential::Token(token)))
            }
            (None, Some((at, key))) => {
                let is_digest = key.len() == 64 && key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                if !is_daemon || !is_digest {
                    let problem = format!("the `key` of {name} is not that of a daemon's certificates");
                    return wrong(at, problem, "remove the entry, and let the daemon join again");
                }
                Ok((at, Credential::Key(key)))
            }
            (Some(_), Some((at, _))) => {
                wrong(at, format!("the entry of {name} has both `token` and `key`"), "keep one of them")
            }
            (None, None) => {
                wrong(at, format!("the entry of {name} has no `token`"), "create one with `amalgam token add`")
            }
        }
    }
}

/// The entry, and the position of its token.
fn entry(table: &dyn TableLike, above: usize) -> Result<(usize, TokenEntry), Mistake> {
    let mut fields = Fields::default();
    let mut place = above;
    for (name, item) in table.iter() {
        let at = table.key(name).and_then(toml_edit::Key::span).map_or_else(|| start(item.span()), |span| span.start);
        place = place.max(at);
        fields.read(name, at, item)?;
    }
    let wrong = |at, problem: &str, remedy| Err(Mistake { at, problem: problem.to_owned(), remedy });
    let (at, role, name) = match &mut fields.holders[..] {
        [(at, role, name)] => (*at, *role, std::mem::take(name)),
        [] => return wrong(place, "an entry has no `user` or `agent`", "write user = \"NAME\", or agent = \"NAME\""),
        [(at, ..), ..] => {
            return wrong(*at, "an entry has both `user` and `agent`, or two such keys", "keep one of them");
        }
    };
    let checked = |at, name: &str, check: &dyn Fn(&str) -> Result<(), BadName>| {
        check(name).map_err(|bad| Mistake { at, problem: bad.problem, remedy: bad.remedy })
    };
    checked(at, &name, &|name| role.map_or_else(|| Named::User.check(name), |role| role.check(name)))?;
    let (at, credential) = fields.credential(at, role.is_some(), &name)?;
    let (holder, scopes) = rights((role, name), at, fields.admin, fields.scopes)?;
    if let Some((at, label)) = &fields.label {
        checked(*at, label, &|label| Named::User.check(label))?;
    }
    let name = fields.label.map(|(_, label)| label);
    Ok((at, TokenEntry { holder, name, credential, scopes, until: fields.until }))
}

/// The holder, and what the token is for.
fn rights(
    (role, name): (Option<DaemonRole>, String),
    at: usize,
    admin: Option<bool>,
    scopes: Option<(usize, Scopes)>,
) -> Result<(Holder, Scopes), Mistake> {
    if role.is_some() && admin == Some(true) {
        let problem = "a daemon cannot be an administrator".to_owned();
        return Err(Mistake { at, problem, remedy: "leave out `admin`" });
    }
    if let (Some((at, _)), true) = (scopes, role.is_some() || admin == Some(true)) {
        let problem = "an entry of an administrator or a daemon has `scopes`".to_owned();
        return Err(Mistake { at, problem, remedy: "leave out `scopes`, or `admin`" });
    }
    let scopes = scopes.map(|(_, scopes)| scopes);
    let holder = match role {
        Some(role) => Holder::Daemon { role, name },
        None => {
            let is_admin = admin == Some(true) || scopes.is_some_and(|scopes| scopes.has(Scope::Admin));
            Holder::User { name, admin: is_admin }
        }
    };
    let scopes = scopes.unwrap_or_else(|| holder.usual_scopes());
    Ok((holder, scopes))
}

/// Adds an entry. Earlier ones of the same name of its user or daemon stay valid for [`OVERLAP`], or are removed if `revokes`.
/// A running server notices the change. A file with a mistake is not changed.
///
/// # Errors
/// If the file cannot be used, or a name is invalid.
pub fn add(path: &Path, entry: TokenEntry, revokes: bool) -> Result<TokenEntry, AuthError> {
    let name = entry.holder.name();
    let checked = entry.holder.role().map_or_else(|| Named::User.check(name), |role| role.check(name));
    checked.map_err(AuthError::BadName)?;
    entry.name.iter().try_for_each(|name| Named::User.check(name)).map_err(AuthError::BadName)?;
    change(path, |entries, tables| {
        replace(entries, tables, |other| other.is_same(&entry), revokes);
        tables.push(table(&entry));
        Ok(())
    })?;
    Ok(entry)
}

/// A user or a daemon, and one of its tokens: `None` is the one without a name.
pub struct Which<'a> {
    pub holder: &'a str,
    /// `None` for a user.
    pub role: Option<DaemonRole>,
    pub name: Option<&'a str>,
}

impl Which<'_> {
    fn is_holder(&self, entry: &TokenEntry) -> bool {
        entry.holder.name() == self.holder && entry.holder.role() == self.role
    }

    fn unknown(&self, path: &Path) -> AuthError {
        let whose = match self.name {
            Some(name) => format!("`{name}` of {}", self.holder),
            None => format!("of {}", self.holder),
        };
        AuthError::Unknown { path: path.to_owned(), whose }
    }
}

/// The newest of a user's or agent's tokens of a name, if it is valid. Earlier ones stand before it, and are valid until they run out.
pub fn newest<'a>(entries: &'a [TokenEntry], which: &Which) -> Option<&'a TokenEntry> {
    let is_meant = |entry: &&TokenEntry| which.is_holder(entry) && entry.name.as_deref() == which.name;
    entries.iter().rev().find(is_meant).filter(|entry| entry.is_valid(SystemTime::now()))
}

/// Adds a new token for the same purpose, with the same rights and the same end.
///
/// # Errors
/// If the file cannot be used, or there is no such token.
pub fn rotate(path: &Path, which: &Which, revokes: bool) -> Result<TokenEntry, AuthError> {
    let credential = Credential::Token(super::new_token()?);
    let mut made = None;
    change(path, |entries, tables| {
        let last = newest(entries, which).ok_or_else(|| which.unknown(path))?;
        if last.token().is_none() {
            return Err(AuthError::HasKey { name: which.holder.to_owned() });
        }
        let entry = TokenEntry { credential, ..last.clone() };
        replace(entries, tables, |other| other.is_same(&entry), revokes);
        tables.push(table(&entry));
        made = Some(entry);
        Ok(())
    })?;
    Ok(made.expect("it was set, or the error was returned"))
}

/// Removes a token, or all of the user or agent if it has no name.
///
/// # Errors
/// If the file cannot be used, or there is no such token.
pub fn remove(path: &Path, which: &Which) -> Result<(), AuthError> {
    let is_meant =
        |entry: &TokenEntry| which.is_holder(entry) && (which.name.is_none() || entry.name.as_deref() == which.name);
    change(path, |entries, tables| {
        if !entries.iter().any(is_meant) {
            return Err(which.unknown(path));
        }
        replace(entries, tables, is_meant, true);
        Ok(())
    })
}

/// Limits the validity of these tokens, and removes those that are no longer valid.
fn replace(entries: &[TokenEntry], tables: &mut ArrayOfTables, is_meant: impl Fn(&TokenEntry) -> bool, revokes: bool) {
    let now = SystemTime::now();
    let end = now + OVERLAP;
    for (place, entry) in entries.iter().enumerate().rev() {
        if !is_meant(entry) {
            continue;
        }
        if revokes || !entry.is_valid(now) {
            tables.remove(place);
        } else if entry.until.is_none_or(|until| until > end)
            && let Some(table) = tables.get_mut(place)
        {
            table.insert("until", value(humantime::format_rfc3339_seconds(end).to_string()));
        }
    }
}

fn table(entry: &TokenEntry) -> Table {
    let mut table = Table::new();
    let holder = match &entry.holder {
        Holder::User { .. } => "user",
        Holder::Daemon { role, .. } => role.key(),
    };
    table.insert(holder, value(entry.holder.name()));
    if let Some(name) = &entry.name {
        table.insert("name", value(name));
    }
    match &entry.credential {
        Credential::Token(token) => table.insert("token", value(token)),
        Credential::Key(key) => table.insert("key", value(key)),
    };
    match &entry.holder {
        Holder::User { admin, .. } if entry.scopes == entry.holder.usual_scopes() => {
            table.insert("admin", value(*admin));
        }
        Holder::User { .. } => {
            table.insert("scopes", value(entry.scopes.names().collect::<toml_edit::Array>()));
        }
        Holder::Daemon { .. } => {}
    }
    if let Some(until) = entry.until {
        table.insert("until", value(humantime::format_rfc3339_seconds(until).to_string()));
    }
    table
}

/// Reads, changes and replaces the file, one process at a time. The tables correspond to the entries, in the same
/// order.
fn change(
    path: &Path,
    edit: impl FnOnce(&[TokenEntry], &mut ArrayOfTables) -> Result<(), AuthError>,
) -> Result<(), AuthError> {
    let wrong = |source| AuthError::Io { path: path.to_owned(), source };
    // The directory of a link need not be writable.
    let path: PathBuf = std::fs::canonicalize(path).map_err(wrong)?;
    let _lock = lock(path.parent().unwrap_or(Path::new("/"))).map_err(wrong)?;
    let text = read_private(&path)?;
    let entries = parse(&path, &text)?;
    let mut document: DocumentMut = Document::parse(text.trim_start_matches('\u{feff}'))
        .map(Document::into_mut)
        .map_err(|error| wrong(io::Error::other(error.message().to_owned())))?;
    let list = document.entry("token").or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    let mut tables = std::mem::take(list).into_array_of_tables().unwrap_or_default();
    edit(&entries, &mut tables)?;
    *list = Item::ArrayOfTables(tables);
    let text = document.to_string();
    // What cannot be read again is not written.
    parse(&path, &text)?;
    durable::replace(&path, text.as_bytes()).map_err(wrong)
}

/// Waits until no other process changes files of this kind in the directory. The lock is held until it is dropped.
///
/// # Errors
/// If the directory cannot be opened or locked.
pub fn lock(directory: &Path) -> io::Result<File> {
    let directory = File::open(directory)?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Creates a file with the first token of a state directory.
pub(super) fn create(path: &Path, first: &TokenEntry) -> Result<(), AuthError> {
    let mut document = DocumentMut::new();
    document.insert("token", Item::ArrayOfTables(std::iter::once(table(first)).collect()));
    let wrong = |source| AuthError::Io { path: path.to_owned(), source };
    durable::replace(path, document.to_string().as_bytes()).map_err(wrong)
}

/// The token that a client sends: of a server's token file, the newest of `user`, or else an administrator's, or else
/// the first user's; of any other file, its only line.
///
/// # Errors
/// If the file cannot be used, has no token, or can be read by others.
pub fn client_token(path: &Path, user: &str) -> Result<String, AuthError> {
    let text = read_private(path)?;
    if let Some(line) = only_line(&text) {
        return Ok(line.to_owned());
    }
    let of_users = |entry: &&TokenEntry| matches!(entry.holder, Holder::User { .. });
    let entries = valid(parse(path, &text)?);
    let users: Vec<&TokenEntry> = entries.iter().filter(of_users).collect();
    let own = users.iter().filter(|entry| entry.holder.name() == user).max_by_key(|entry| entry.rank());
    // The order in the file says nothing: a rotation moves a token to the end.
    let is_admin = |entry: &TokenEntry| matches!(entry.holder, Holder::User { admin: true, .. });
    let any = || users.iter().min_by_key(|entry| (!is_admin(entry), entry.until.is_some()));
    let found = own.or_else(any);
    let token = found.and_then(|entry| entry.token()).map(str::to_owned);
    token.ok_or_else(|| AuthError::Empty { path: path.to_owned() })
}

/// The token with which a daemon authenticates: the only line of a file; or of a server's token file, the newest of the
/// agent `node`, or else an administrator's, preferably that of `user`.
///
/// # Errors
/// As for [`client_token`].
pub fn daemon_token(path: &Path, node: Option<&str>, user: &str) -> Result<String, AuthError> {
    let text = read_private(path)?;
    if let Some(line) = only_line(&text) {
        return Ok(line.to_owned());
    }
    let entries = valid(parse(path, &text)?);
    let preference = |entry: &TokenEntry| match &entry.holder {
        Holder::Daemon { role: DaemonRole::Agent, name } => (node == Some(name.as_str())).then_some(2),
        Holder::Daemon { .. } => None,
        Holder::User { name, admin: true } => Some(i32::from(name == user)),
        // The other side reports that it is not an administrator's.
        Holder::User { admin: false, .. } => Some(-1),
    };
    let ranked = entries.iter().rev();
    let ranked = ranked.filter_map(|entry| Some((preference(entry)?, entry.rank(), entry.token()?)));
    let best = ranked.max_by_key(|(preference, rank, _)| (*preference, *rank));
    best.map(|(_, _, token)| token.to_owned()).ok_or_else(|| AuthError::Empty { path: path.to_owned() })
}

/// The entries with which a daemon with this file verifies others. The only line of a file counts as an administrator's
/// token.
///
/// # Errors
/// As for [`client_token`].
pub fn daemon_entries(path: &Path) -> Result<Vec<TokenEntry>, AuthError> {
    let text = read_private(path)?;
    match only_line(&text) {
        Some(line) => Ok(vec![TokenEntry::single(line)]),
        None => Ok(valid(parse(path, &text)?)),
    }
}

impl TokenEntry {
    /// A token without a file counts as an administrator's.
    pub(crate) fn single(token: &str) -> TokenEntry {
        let holder = Holder::User { name: "administrator".to_owned(), admin: true };
        let credential = Credential::Token(token.to_owned());
        TokenEntry { holder, name: None, credential, scopes: Scopes::ADMIN, until: None }
    }
}

fn valid(mut entries: Vec<TokenEntry>) -> Vec<TokenEntry> {
    let now = SystemTime::now();
    entries.retain(|entry| entry.is_valid(now));
    entries
}

fn only_line(text: &str) -> Option<&str> {
    let line = text.trim();
    (!line.is_empty() && !line.contains(|c: char| c.is_whitespace() || matches!(c, '=' | '['))).then_some(line)
}

/// The content of a file that only its owner can read.
///
/// # Errors
/// If it cannot be read, others can read it, or it is not UTF-8.
pub fn read_private(path: &Path) -> Result<String, AuthError> {
    let wrong = |source| AuthError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(wrong)?;
    // Use the open file: its name may refer to another file by now.
    let mode = file.metadata().map_err(wrong)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(AuthError::Exposed { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut &file, &mut bytes).map_err(wrong)?;
    String::from_utf8(bytes).map_err(|error| {
        let sound = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..sound].iter().filter(|byte| **byte == b'\n').count() + 1;
        let (problem, remedy) = ("a byte is not UTF-8".to_owned(), "save the file as UTF-8");
        AuthError::Malformed { path: path.to_owned(), line, problem, remedy }
    })
}

#[cfg(test)]
mod tests;
