//! The token file: the holder of each token, and until when replaced tokens are valid. It is edited by people and by
//! `amalgam token`, which keeps their comments.

use super::AuthError;
use super::scopes::{Scope, Scopes};
use crate::durable;
use amalgam_core::vocabulary::Named;
use rustix::fs::FlockOperation;
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
    /// The agent of the node with this name. Its token has no other use.
    Agent { name: String },
}

impl Holder {
    pub fn name(&self) -> &str {
        match self {
            Holder::User { name, .. } | Holder::Agent { name } => name,
        }
    }

    fn usual_scopes(&self) -> Scopes {
        match self {
            Holder::User { admin: true, .. } => Scopes::ADMIN,
            _ => Scopes::USUAL,
        }
    }

    /// Whether both are the same user, with any rights, or the same agent.
    fn is_same(&self, other: &Holder) -> bool {
        matches!(self, Holder::Agent { .. }) == matches!(other, Holder::Agent { .. }) && self.name() == other.name()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenEntry {
    pub holder: Holder,
    /// Distinguishes a user's tokens for different purposes. Each is replaced and removed by itself.
    pub name: Option<String>,
    pub token: String,
    /// What it may be used for; of a token of an agent, nothing on the interface.
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
        Ok(TokenEntry { holder, name: None, token: super::new_token()?, scopes, until: None })
    }

    /// Whether both are tokens for the same purpose of the same user or agent, so that one replaces the other.
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
            return Err(wrong("unknown key", "each token is a [[token]] with `user` or `agent`, and `token`"));
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
            if entries.iter().any(|other| other.token == entry.token) {
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

/// The entry, and the position of its token.
fn entry(table: &dyn TableLike, above: usize) -> Result<(usize, TokenEntry), Mistake> {
    let (mut user, mut agent, mut token, mut admin, mut until) = (None, None, None, None, None);
    let (mut label, mut scopes) = (None, None);
    let mut place = above;
    for (name, item) in table.iter() {
        let at = table.key(name).and_then(toml_edit::Key::span).map_or_else(|| start(item.span()), |span| span.start);
        place = place.max(at);
        let wrong = |problem: String, remedy| Mistake { at, problem, remedy };
        let text = || {
            let text = item.as_str().map(str::to_owned);
            text.ok_or_else(|| wrong(format!("`{name}` is not a string"), "write it in quotes"))
        };
        match name {
            "user" => user = Some((at, text()?)),
            "agent" => agent = Some((at, text()?)),
            "token" => token = Some((at, text()?)),
            "name" => label = Some((at, text()?)),
            "scopes" => {
                let given = item.as_array().map(|list| list.iter().map(|scope| scope.as_str()?.parse().ok()).collect());
                let given = given.and_then(|scopes: Option<Vec<Scope>>| Scopes::of(scopes?));
                let remedy = "write for instance scopes = [\"read\", \"submit\"]; others are operate and admin";
                scopes = Some((at, given.ok_or_else(|| wrong("`scopes` is not a list of scopes".to_owned(), remedy))?));
            }
            "admin" => {
                let given = item.as_bool();
                admin = Some(
                    given
                        .ok_or_else(|| wrong("`admin` is neither true nor false".to_owned(), "write true or false"))?,
                );
            }
            "until" => {
                let given = item.as_str().map(str::to_owned).or_else(|| item.as_datetime().map(ToString::to_string));
                let time = given.and_then(|text| humantime::parse_rfc3339_weak(&text).ok());
                let remedy = "write for instance until = 2026-12-31T00:00:00Z, or leave it out";
                until = Some(time.ok_or_else(|| wrong("`until` is not a time".to_owned(), remedy))?);
            }
            _ => {
                // If a quote is missing, the key may be a secret.
                let problem = if name.len() > 16 { "unknown key".to_owned() } else { format!("unknown key `{name}`") };
                return Err(wrong(problem, "keys are user, agent, name, token, admin, scopes and until"));
            }
        }
    }
    let wrong = |at, problem: &str, remedy| Err(Mistake { at, problem: problem.to_owned(), remedy });
    let (named, at, name) = match (user, agent) {
        (Some((at, name)), None) => (Named::User, at, name),
        (None, Some((at, name))) => (Named::Node, at, name),
        (Some((at, _)), Some(_)) => return wrong(at, "an entry has both `user` and `agent`", "keep one of them"),
        (None, None) => {
            return wrong(place, "an entry has no `user` or `agent`", "write user = \"NAME\", or agent = \"NAME\"");
        }
    };
    let name = checked(named, at, name)?;
    let Some((at, token)) = token else {
        return wrong(at, &format!("the entry of {name} has no `token`"), "create one with `amalgam token add`");
    };
    if token.is_empty() || token.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return wrong(
            at,
            &format!("the token of {name} is empty or has a space in it"),
            "create one with `amalgam token add`",
        );
    }
    let (holder, scopes) = rights((named, name), at, admin, scopes)?;
    let name = label.map(|(at, label)| checked(Named::User, at, label)).transpose()?;
    Ok((at, TokenEntry { holder, name, token, scopes, until }))
}

/// The name, if it is valid.
fn checked(named: Named, at: usize, name: String) -> Result<String, Mistake> {
    named.check(&name).map_err(|bad| Mistake { at, problem: bad.problem, remedy: bad.remedy })?;
    Ok(name)
}

/// The holder, and what the token is for.
fn rights(
    (named, name): (Named, String),
    at: usize,
    admin: Option<bool>,
    scopes: Option<(usize, Scopes)>,
) -> Result<(Holder, Scopes), Mistake> {
    let is_agent = matches!(named, Named::Node);
    if is_agent && admin == Some(true) {
        let problem = "an agent cannot be an administrator".to_owned();
        return Err(Mistake { at, problem, remedy: "leave out `admin`" });
    }
    if let (Some((at, _)), true) = (scopes, is_agent || admin == Some(true)) {
        let problem = "an entry of an administrator or an agent has `scopes`".to_owned();
        return Err(Mistake { at, problem, remedy: "leave out `scopes`, or `admin`" });
    }
    let scopes = scopes.map(|(_, scopes)| scopes);
    let holder = match is_agent {
        true => Holder::Agent { name },
        false => {
            let is_admin = admin == Some(true) || scopes.is_some_and(|scopes| scopes.has(Scope::Admin));
            Holder::User { name, admin: is_admin }
        }
    };
    let scopes = scopes.unwrap_or_else(|| holder.usual_scopes());
    Ok((holder, scopes))
}

/// Adds a token. Earlier ones of the same name of its user or agent stay valid for [`OVERLAP`], or are removed if `revokes`.
/// A running server notices the change. A file with a mistake is not changed.
///
/// # Errors
/// If the file cannot be used, or a name is invalid.
pub fn add(path: &Path, entry: TokenEntry, revokes: bool) -> Result<TokenEntry, AuthError> {
    let named = if matches!(entry.holder, Holder::Agent { .. }) { Named::Node } else { Named::User };
    named.check(entry.holder.name()).map_err(AuthError::BadName)?;
    entry.name.iter().try_for_each(|name| Named::User.check(name)).map_err(AuthError::BadName)?;
    change(path, |entries, tables| {
        replace(entries, tables, |other| other.is_same(&entry), revokes);
        tables.push(table(&entry));
        Ok(())
    })?;
    Ok(entry)
}

/// A user or an agent, and one of its tokens: `None` is the one without a name.
pub struct Which<'a> {
    pub holder: &'a str,
    pub is_agent: bool,
    pub name: Option<&'a str>,
}

impl Which<'_> {
    fn is_holder(&self, entry: &TokenEntry) -> bool {
        entry.holder.name() == self.holder && matches!(entry.holder, Holder::Agent { .. }) == self.is_agent
    }

    fn unknown(&self, path: &Path) -> AuthError {
        let name = match self.name {
            Some(name) => format!("the token `{name}` of {}", self.holder),
            None => self.holder.to_owned(),
        };
        AuthError::Unknown { path: path.to_owned(), name }
    }
}

/// Adds a new token for the same purpose, with the same rights. If the earlier one is valid for a limited time, so is the new one.
///
/// # Errors
/// If the file cannot be used, or there is no such token.
pub fn rotate(path: &Path, which: &Which, revokes: bool) -> Result<TokenEntry, AuthError> {
    let token = super::new_token()?;
    let mut made = None;
    change(path, |entries, tables| {
        let own = entries.iter().filter(|entry| which.is_holder(entry) && entry.name.as_deref() == which.name);
        let last = own.max_by_key(|entry| entry.rank()).ok_or_else(|| which.unknown(path))?;
        // An end that is no later than that of a replaced token is no end of its own.
        let until = last.until.filter(|until| *until > SystemTime::now() + OVERLAP);
        let entry = TokenEntry { token, until, ..last.clone() };
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
    match &entry.holder {
        Holder::User { name, admin } => {
            table.insert("user", value(name));
            if let Some(name) = &entry.name {
                table.insert("name", value(name));
            }
            table.insert("token", value(&entry.token));
            match entry.scopes == entry.holder.usual_scopes() {
                true => table.insert("admin", value(*admin)),
                false => table.insert("scopes", value(entry.scopes.names().collect::<toml_edit::Array>())),
            };
        }
        Holder::Agent { name } => {
            table.insert("agent", value(name));
            table.insert("token", value(&entry.token));
        }
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
    durable::replace(&path, document.to_string().as_bytes()).map_err(wrong)
}

/// Waits until no other process changes files of this kind in the directory. The lock is held until it is dropped.
pub(crate) fn lock(directory: &Path) -> io::Result<File> {
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

/// The token that a client sends: of a server's token file, the newest of `user`, or else the first user's; of any
/// other file, its only line.
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
    let any = || users.iter().find(|entry| entry.until.is_none()).or(users.first());
    let found = own.or_else(any);
    found.map(|entry| entry.token.clone()).ok_or_else(|| AuthError::Empty { path: path.to_owned() })
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
        Holder::Agent { name } => (node == Some(name.as_str())).then_some(2),
        Holder::User { name, admin: true } => Some(i32::from(name == user)),
        // The other side reports that it is not an administrator's.
        Holder::User { admin: false, .. } => Some(-1),
    };
    let ranked = entries.iter().rev().filter_map(|entry| Some((preference(entry)?, entry.rank(), entry)));
    let best = ranked.max_by_key(|(preference, rank, _)| (*preference, *rank));
    best.map(|(_, _, entry)| entry.token.clone()).ok_or_else(|| AuthError::Empty { path: path.to_owned() })
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
        TokenEntry { holder, name: None, token: token.to_owned(), scopes: Scopes::ADMIN, until: None }
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
pub(crate) fn read_private(path: &Path) -> Result<String, AuthError> {
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
mod tests {
    use super::*;

    fn token_of(holder: &str, is_agent: bool) -> Which<'_> {
        Which { holder, is_agent, name: None }
    }
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        (dir, path)
    }

    fn user(name: &str, admin: bool) -> Holder {
        Holder::User { name: name.to_owned(), admin }
    }

    const TWO: &str = "# keep in sync with the wiki\n[[token]]\nuser = \"ada\"   # on leave\ntoken = \"t1\"\nadmin = true\n\n\
                       [[token]]\nagent = \"vm-1\"\ntoken = \"t2\"\n";

    #[test]
    fn a_mistake_is_reported_with_its_line_and_remedy_and_without_secrets() {
        let one = "[[token]]\nuser = 'ada'\n";
        for (text, line, expected) in [
            (format!("{one}token = 'hunter2\n"), 3, ""),
            (format!("{one}token = hunter2\n"), 3, ""),
            (format!("{one}token = 12345678\n"), 3, "`token` is not a string"),
            (format!("{one}tokn = 'hunter2'\n"), 3, "unknown key `tokn`"),
            (one.to_owned(), 2, "has no `token`"),
            (format!("{one}token = ''\n"), 3, "is empty"),
            (format!("{one}token = 'hunter2'\nadmin = 'yes'\n"), 4, "`admin` is neither"),
            (format!("{one}token = 'hunter2'\nuntil = 'soon'\n"), 4, "`until` is not a time"),
            (format!("{one}token = 'hunter2'\nagent = 'x'\n"), 2, "both `user` and `agent`"),
            ("\n[[token]]\ntoken = 'hunter2'\n".to_owned(), 3, "has no `user` or `agent`"),
            ("[[token]]\nuser = '../x'\ntoken = 'hunter2'\n".to_owned(), 2, "`../x` is not a valid user name"),
            (format!("{one}token = 'hunter2'\n\n[[token]]\nuser = 'bob'\ntoken = 'hunter2'\n"), 7, "of another entry"),
            ("[token]\nuser = 'ada'\ntoken = 'hunter2'\n".to_owned(), 1, "not a list of tables"),
            ("tokens = []\n".to_owned(), 1, "unknown key"),
            (format!("{one}{one}"), 2, "has no `token`"),
        ] {
            let (_dir, path) = file(&text);
            let refused = read(&path).unwrap_err();
            let reported = refused.to_string();
            assert!(
                reported.starts_with(&format!("{}:{line}: ", path.display())) && reported.contains(expected),
                "{text}\n{reported}"
            );
            assert!(!reported.contains("hunter2") && !reported.contains("12345678"), "{reported}");
            assert!(!refused.remedy().is_empty() && !refused.remedy().contains("remove it"), "{}", refused.remedy());
        }
        let (_dir, path) = file("");
        fs::write(&path, b"[[token]]\nuser = 'a\xff'\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("tokens.toml:2: a byte is not UTF-8"));
    }

    #[test]
    fn an_invalid_file_is_not_changed() {
        for text in ["[[token]]\nuser = 'ada'\ntoken = 'x\n", "garbage", "[[token]]\nuser = 'ada'\n"] {
            let (_dir, path) = file(text);
            add(&path, TokenEntry::new(user("bob", false)).unwrap(), false).unwrap_err();
            rotate(&path, &token_of("ada", false), false).unwrap_err();
            remove(&path, &token_of("ada", false)).unwrap_err();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_replaced_token_is_valid_for_a_day_and_comments_stay() {
        let (_dir, path) = file(TWO);
        let new = rotate(&path, &token_of("ada", false), false).unwrap();
        assert_eq!(new.holder, user("ada", true));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("# keep in sync with the wiki") && text.contains("# on leave"), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let entries = read(&path).unwrap();
        let (old, now) = (&entries[0], SystemTime::now());
        assert_eq!((entries.len(), old.token.as_str()), (3, "t1"));
        assert!(old.is_valid(now + OVERLAP - Duration::from_secs(60)) && !old.is_valid(now + OVERLAP));
        assert_eq!(client_token(&path, "ada").unwrap(), new.token);

        // Again: the end of the oldest token is not delayed.
        let newer = add(&path, TokenEntry::new(user("ada", true)).unwrap(), false).unwrap();
        let again = read(&path).unwrap();
        assert_eq!((again.len(), again[0].until), (4, old.until));
        assert_eq!(client_token(&path, "ada").unwrap(), newer.token);
        let last = rotate(&path, &token_of("ada", false), true).unwrap();
        let left: Vec<String> = read(&path).unwrap().into_iter().map(|entry| entry.token).collect();
        assert_eq!(left, ["t2".to_owned(), last.token]);
        remove(&path, &token_of("vm-1", true)).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        assert!(matches!(remove(&path, &token_of("vm-1", true)), Err(AuthError::Unknown { .. })));
    }

    #[test]
    fn expired_tokens_are_not_used_and_are_removed_by_the_next_change() {
        let past = "[[token]]\nuser = 'ada'\ntoken = 'old'\nuntil = 2020-01-01T00:00:00Z\n";
        let (_dir, path) = file(&format!("{past}[[token]]\nuser = 'bob'\ntoken = 'bobs'\n"));
        assert_eq!(client_token(&path, "ada").unwrap(), "bobs");
        let new = add(&path, TokenEntry::new(user("ada", false)).unwrap(), false).unwrap();
        assert_eq!(
            read(&path).unwrap().iter().map(|entry| entry.token.as_str()).collect::<Vec<_>>(),
            ["bobs", &new.token]
        );
    }

    #[test]
    fn a_list_on_one_line_can_be_edited() {
        let (_dir, path) = file("token = [{ user = 'ada', token = 't1', admin = true }]\n");
        add(&path, TokenEntry::new(Holder::Agent { name: "vm-1".to_owned() }).unwrap(), false).unwrap();
        let holders: Vec<Holder> = read(&path).unwrap().into_iter().map(|entry| entry.holder).collect();
        assert_eq!(holders, [user("ada", true), Holder::Agent { name: "vm-1".to_owned() }]);
    }

    #[test]
    fn a_daemon_uses_its_own_token_or_else_an_administrators() {
        let (_dir, path) = file(&format!("{TWO}[[token]]\nuser = 'bob'\ntoken = 't3'\n"));
        assert_eq!(daemon_token(&path, Some("vm-1"), "bob").unwrap(), "t2");
        assert_eq!(daemon_token(&path, Some("vm-2"), "bob").unwrap(), "t1");
        assert_eq!(daemon_token(&path, None, "ada").unwrap(), "t1");
        assert_eq!(client_token(&path, "vm-1").unwrap(), "t1", "clients do not use an agent's token");
        let (_dir, path) = file("only-one\n");
        assert_eq!(daemon_token(&path, Some("vm-1"), "bob").unwrap(), "only-one");
    }

    #[test]
    fn concurrent_additions_are_all_kept() {
        let (_dir, path) = file(TWO);
        std::thread::scope(|scope| {
            for name in ["a", "b", "c", "d"] {
                let path = &path;
                scope.spawn(move || add(path, TokenEntry::new(user(name, false)).unwrap(), false).unwrap());
            }
        });
        assert_eq!(read(&path).unwrap().len(), 6);
    }

    #[test]
    fn tokens_of_one_user_with_different_names_are_replaced_and_removed_separately() {
        let (_directory, path) = file("");
        let named = |name: Option<&str>, scopes: Option<Scopes>, until| {
            let entry = TokenEntry::new(user("ada", false)).unwrap();
            let scopes = scopes.unwrap_or(entry.scopes);
            add(&path, TokenEntry { name: name.map(str::to_owned), scopes, until, ..entry }, false).unwrap()
        };
        let year = SystemTime::now() + Duration::from_secs(365 * 24 * 60 * 60);
        let plain = named(None, None, None);
        let ci = named(Some("ci"), Scopes::of([Scope::Submit]), Some(year));
        let read_back = read(&path).unwrap();
        assert_eq!(read_back.len(), 2);
        assert_eq!(
            (read_back[0].clone(), read_back[1].scopes, read_back[1].name.as_deref()),
            (plain.clone(), ci.scopes, Some("ci"))
        );
        assert!(year.duration_since(read_back[1].until.unwrap()).unwrap() < Duration::from_secs(2));

        let which = |name| Which { holder: "ada", is_agent: false, name };
        let newer = rotate(&path, &which(Some("ci")), true).unwrap();
        assert_eq!((newer.scopes, newer.name.as_deref(), newer.until.is_some()), (ci.scopes, Some("ci"), true));
        assert!(rotate(&path, &which(Some("other")), true).is_err());
        let left = |path: &Path| read(path).unwrap().into_iter().map(|entry| entry.token).collect::<Vec<_>>();
        assert_eq!(left(&path), [plain.token.clone(), newer.token.clone()]);
        remove(&path, &which(Some("ci"))).unwrap();
        assert_eq!(left(&path), [plain.token]);
        named(Some("ci"), None, None);
        remove(&path, &which(None)).unwrap();
        assert!(left(&path).is_empty());
    }

    #[test]
    fn scopes_with_mistakes_name_the_line() {
        for (line, problem) in [
            ("scopes = 'read'", "`scopes` is not a list of scopes"),
            ("scopes = ['write']", "`scopes` is not a list of scopes"),
            ("scopes = []", "`scopes` is not a list of scopes"),
            ("admin = true\nscopes = ['read']", "an entry of an administrator or an agent has `scopes`"),
            ("name = 'two words'", "two words"),
        ] {
            let (_directory, path) = file(&format!("[[token]]\nuser = 'ada'\ntoken = 'x'\n{line}\n"));
            let error = read(&path).unwrap_err();
            assert!(error.to_string().contains(problem), "{line}: {error}");
        }
        let (_directory, path) = file("[[token]]\nuser = 'ada'\ntoken = 'x'\nscopes = ['admin']\n");
        assert_eq!(read(&path).unwrap()[0].holder, user("ada", true));
    }
}
