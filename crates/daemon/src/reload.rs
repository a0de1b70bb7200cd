//! Reads the configuration again while the server runs.
//!
//! Queues, accounts, issuers of users' tokens, isolation and the number of kept jobs take effect at once; every other change is listed,
//! and needs a restart. A file that is invalid changes nothing.

use crate::api::{ConfigChange, Error, ErrorCode};
use crate::audit::{AuditLog, Difference, Line, RELOAD};
use crate::auth::{Accounts, AuthError, Callers, Issuers};
use crate::config::{Config, ConfigError, IsolationRules};
use crate::shell::{Handle, Stopped};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Refusal, RefusalKind, ToClient, ToMaster};
use amalgam_core::vocabulary::QueueSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Mutex;

/// The file of a configuration, and the preset on the command line that replaces the file's.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    pub path: PathBuf,
    pub preset: Option<Preset>,
}

pub struct Reloader {
    file: ConfigFile,
    handle: Handle,
    accounts: Arc<Accounts>,
    issuers: Arc<Issuers>,
    audit: Option<Arc<AuditLog>>,
    isolation: Arc<IsolationRules>,
    /// The user of this process, who sends it signals.
    user: String,
    /// Queues of a federation need a restart, since all masters have to agree on them.
    is_federated: bool,
    current: Mutex<Current>,
    /// Full names of queues that the file does not have any more. They exist until a restart, for the jobs that are in them.
    gone: RwLock<BTreeSet<String>>,
}

/// What is in effect.
struct Current {
    values: Values,
    queues: Vec<QueueSpec>,
}

/// Written values by their keys, such as `queue.research.weight`.
type Values = BTreeMap<String, String>;

impl Reloader {
    /// For a server that was started with this configuration, which is that of the file.
    pub(crate) fn new(file: ConfigFile, config: &Config, handle: Handle, callers: &Callers, user: String) -> Reloader {
        // If the file is unreadable by now, everything in it counts as changed.
        let values = fs::read_to_string(&file.path).map(|text| values(&text)).unwrap_or_default();
        let current = Mutex::new(Current { values, queues: config.queues.specs().to_vec() });
        let (accounts, issuers) = (Arc::clone(&callers.accounts), Arc::clone(&callers.issuers));
        let audit = callers.audit.clone();
        let isolation = Arc::clone(&callers.isolation);
        Reloader {
            file,
            handle,
            accounts,
            issuers,
            audit,
            isolation,
            user,
            is_federated: config.federation.is_some(),
            current,
            gone: RwLock::default(),
        }
    }

    /// Whether there is any such queue.
    pub fn has_gone(&self) -> bool {
        !self.gone.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether the file does not have the queue with this full name any more, so that it takes no further jobs.
    pub fn is_gone(&self, queue: &str) -> bool {
        self.gone.read().unwrap_or_else(PoisonError::into_inner).contains(queue)
    }

    /// Reads the file and applies what can change. Each change is logged.
    ///
    /// # Errors
    /// If the file is invalid, or does not fit what runs: then nothing has changed.
    pub async fn reload(&self) -> Result<Vec<ConfigChange>, Error> {
        let done = self.try_reload().await;
        match &done {
            Ok(changes) => changes.iter().for_each(log_change),
            Err(error) => {
                let Error { message, remedy, .. } = error;
                tracing::error!(error = message, remedy, "the configuration was not reloaded: nothing has changed");
            }
        }
        done
    }

    /// The same because of a signal: the changes are also in the audit log, as the process's own user's.
    ///
    /// # Errors
    /// As for [`Reloader::reload`].
    pub async fn on_signal(&self) -> Result<Vec<ConfigChange>, Error> {
        let done = self.reload().await;
        let line = |what: String, before: Option<String>, after: Option<String>, result: &str| {
            let Some(audit) = &self.audit else { return };
            let (from, request, result) = ("signal".to_owned(), "SIGHUP".to_owned(), result.to_owned());
            let user = Some(self.user.as_str());
            audit.add(&Line {
                user,
                token: None,
                from,
                request,
                what: Some(what),
                before,
                after,
                status: None,
                result,
                id: None,
            });
        };
        match &done {
            Err(error) => line(RELOAD.to_owned(), None, None, &error.message),
            Ok(changes) if changes.is_empty() => line(RELOAD.to_owned(), None, None, "ok, nothing has changed"),
            Ok(changes) => {
                for Difference { what, before, after } in changes.iter().map(Difference::from) {
                    line(what, Some(before), Some(after), "ok");
                }
            }
        }
        done
    }

    async fn try_reload(&self) -> Result<Vec<ConfigChange>, Error> {
        let mut current = self.current.lock().await;
        let file = self.file.clone();
        let issuers = Arc::clone(&self.issuers);
        let read = move || {
            let (mut config, written) = read(&file.path, file.preset)?;
            let issuers = issuers.prepare(std::mem::take(&mut config.oidc));
            let wrong = |error: AuthError| Error::new(ErrorCode::Conflict, error.to_string(), error.remedy());
            Ok::<_, Error>((config, written, issuers.map_err(wrong)?))
        };
        let internal = |error: tokio::task::JoinError| Error::new(ErrorCode::Internal, error.to_string(), "try again");
        let (config, written, issuers) = tokio::task::spawn_blocking(read).await.map_err(internal)??;
        let queues =
            if self.is_federated { current.queues.clone() } else { merged(&current.queues, config.queues.specs()) };
        let changes = self.changes(&current, &written, config.queues.specs());
        if !self.is_federated {
            let kept_jobs = config.master.dispatch.kept_jobs as u64;
            let kept_for = config.master.dispatch.kept_for;
            let kept_tasks = config.master.dispatch.kept_tasks;
            let order = ToMaster::Reconfigure { queues: queues.clone(), kept_jobs, kept_for, kept_tasks };
            if let ToClient::Refused(refusal) = self.handle.request(order).await.map_err(stopping)? {
                return Err(refused(refusal));
            }
        }
        self.accounts.replace(config.accounts);
        self.issuers.replace(issuers);
        self.isolation.replace(config.isolation);
        // Jobs without a queue go to `default` until the restart.
        let is_gone = |spec: &&QueueSpec| config.queues.find(&spec.name).is_none() && spec.name != QueueTree::DEFAULT;
        let gone = queues.iter().filter(|_| !self.is_federated).filter(is_gone).map(|spec| spec.name.clone()).collect();
        *self.gone.write().unwrap_or_else(PoisonError::into_inner) = gone;
        current.queues = queues;
        for change in changes.iter().filter(|change| !change.needs_restart) {
            match &change.after {
                Some(value) => drop(current.values.insert(change.key.clone(), value.clone())),
                None => drop(current.values.remove(&change.key)),
            }
        }
        Ok(changes)
    }

    /// What differs, in the order of the keys.
    fn changes(&self, current: &Current, written: &Values, wanted: &[QueueSpec]) -> Vec<ConfigChange> {
        let keys = current.values.keys().chain(written.keys().filter(|key| !current.values.contains_key(*key)));
        let different = keys.filter(|key| current.values.get(*key) != written.get(*key));
        let is_gone = |name: &str| wanted.iter().all(|spec| own_name(&spec.name) != name);
        let change = |key: &String| ConfigChange {
            key: key.clone(),
            before: current.values.get(key).cloned(),
            after: written.get(key).cloned(),
            needs_restart: self.needs_restart(key, is_gone),
        };
        let mut changes: Vec<ConfigChange> = different.map(change).collect();
        // A queue that was there without being written.
        for spec in &current.queues {
            let name = own_name(&spec.name);
            let prefix = format!("queue.{name}.");
            if is_gone(name) && !changes.iter().any(|change| change.key.starts_with(&prefix)) {
                let (key, before) = (format!("queue.{name}"), Some("there".to_owned()));
                changes.push(ConfigChange { key, before, after: None, needs_restart: true });
            }
        }
        changes.sort_by(|one, other| one.key.cmp(&other.key));
        changes
    }

    fn needs_restart(&self, key: &str, is_gone: impl Fn(&str) -> bool) -> bool {
        if let Some(rest) = key.strip_prefix("queue.") {
            let (name, field) = rest.rsplit_once('.').unwrap_or((rest, ""));
            return self.is_federated || is_gone(name) || matches!(field, "preset" | "global");
        }
        match key {
            "kept_jobs" | "kept_for" | "kept_tasks" => self.is_federated,
            "isolation" | "isolation_at_least" | "account" | "oidc" => false,
            _ => !key.starts_with("account.") && !key.starts_with("oidc."),
        }
    }
}

fn log_change(change: &ConfigChange) {
    let Difference { what, before, after } = Difference::from(change);
    tracing::warn!(before, after, "{what}");
}

/// The configuration of a file, and its written values.
fn read(path: &Path, preset: Option<Preset>) -> Result<(Config, Values), Error> {
    let wrong = |error: ConfigError| match error {
        ConfigError::Wrong(error) => {
            let place = error.to_string();
            let (message, _) = place.split_once("\n  help: ").unwrap_or((&place, ""));
            Error::new(ErrorCode::Conflict, message, error.remedy)
        }
        ConfigError::Read { .. } => Error::new(ErrorCode::Conflict, error.to_string(), "check the path"),
    };
    let config = Config::read(path, preset).map_err(wrong)?;
    let again = |error| wrong(ConfigError::Read { path: path.to_owned(), error });
    Ok((config, values(&fs::read_to_string(path).map_err(again)?)))
}

/// The queues in effect after a reload: those that are gone stay, and presets and global masters do not change.
fn merged(current: &[QueueSpec], wanted: &[QueueSpec]) -> Vec<QueueSpec> {
    let known = current.iter().map(|spec| match wanted.iter().find(|wanted| wanted.name == spec.name) {
        Some(wanted) => QueueSpec { preset: spec.preset.clone(), global: spec.global, ..wanted.clone() },
        None => spec.clone(),
    });
    let is_new = |wanted: &&QueueSpec| current.iter().all(|spec| spec.name != wanted.name);
    known.chain(wanted.iter().filter(is_new).cloned()).collect()
}

/// The name of a queue without that of the root.
fn own_name(name: &str) -> &str {
    name.strip_prefix("root.").unwrap_or(name)
}

/// The written values of a configuration. Empty if it is not TOML.
fn values(text: &str) -> Values {
    let mut values = Values::new();
    if let Ok(table) = text.parse::<toml::Table>() {
        for (key, value) in &table {
            collect(key, value, &mut values);
        }
    }
    values
}

fn collect(key: &str, value: &toml::Value, values: &mut Values) {
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(name, value)| collect(&format!("{key}.{name}"), value, values))
        }
        toml::Value::Array(entries) if entries.iter().any(toml::Value::is_table) => {
            for entry in entries.iter().filter_map(toml::Value::as_table) {
                let id = match key {
                    "account" => "user",
                    "oidc" => "issuer",
                    _ => "name",
                };
                let name = own_name(entry.get(id).and_then(toml::Value::as_str).unwrap_or_default());
                for (field, value) in entry {
                    collect(&format!("{key}.{name}.{field}"), value, values);
                }
            }
        }
        value => drop(values.insert(key.to_owned(), value.to_string())),
    }
}

/// The error of a client whose request was refused.
pub fn refused(refusal: Refusal) -> Error {
    let code = match refusal.kind {
        RefusalKind::Invalid => ErrorCode::BadRequest,
        RefusalKind::NotFound => ErrorCode::NotFound,
        RefusalKind::Conflict => ErrorCode::Conflict,
        RefusalKind::Busy => ErrorCode::Unavailable,
    };
    Error::new(code, refusal.message, refusal.remedy)
}

pub fn stopping(_: Stopped) -> Error {
    Error::new(ErrorCode::Unavailable, "the server is stopping", "try again when it runs again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_named_by_their_tables_and_queues_by_their_names() {
        let text = "kept_jobs = 5\n[policies]\nseed = 1\n[[queue]]\nname = 'root.a'\nweight = 2.0\n\
                    [[account]]\nuser = 'ada@example.org'\nname = 'ada'\n\
                    [[oidc]]\nissuer = 'https://id.example.org'\naudience = 'amalgam'\n";
        let values = values(text);
        let pairs: Vec<(&str, &str)> = values.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            pairs,
            [
                ("account.ada@example.org.name", "\"ada\""),
                ("account.ada@example.org.user", "\"ada@example.org\""),
                ("kept_jobs", "5"),
                ("oidc.https://id.example.org.audience", "\"amalgam\""),
                ("oidc.https://id.example.org.issuer", "\"https://id.example.org\""),
                ("policies.seed", "1"),
                ("queue.a.name", "\"root.a\""),
                ("queue.a.weight", "2.0"),
            ]
        );
    }

    #[test]
    fn queues_that_are_gone_stay_until_a_restart() {
        let weighted = |name: &str, weight: u32| QueueSpec { weight, ..QueueSpec::named(name) };
        let current = [weighted("root", 1_000), weighted("root.a", 1_000), weighted("root.b", 1_000)];
        let preset = QueueSpec { preset: Some("fifo".to_owned()), ..weighted("root.b", 3_000) };
        let merged = merged(&current, &[weighted("root", 1_000), preset, weighted("root.c", 1_000)]);
        let shown: Vec<(&str, u32)> = merged.iter().map(|spec| (spec.name.as_str(), spec.weight)).collect();
        assert_eq!(shown, [("root", 1_000), ("root.a", 1_000), ("root.b", 3_000), ("root.c", 1_000)]);
        assert_eq!(merged[2].preset, None);
    }
}
