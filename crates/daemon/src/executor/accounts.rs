//! The accounts that tasks run as, if they run as their job's user.
//!
//! A thread looks them up, because the name service may be a server on the network that answers slowly or not at all.
//! Attempts wait for the answer, and other attempts start meanwhile.

use super::prepare::node_fault;
use super::sys::Credentials;
use super::user_limits::{UserLimit, Who, user_limits};
use amalgam_core::vocabulary::EndReason;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use rustix::event::EventfdFlags;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long an account is used before it is looked up again.
const FRESH: Duration = Duration::from_secs(60);
/// How long a failed lookup is used. An account that was just created is found soon.
const FRESH_FAILURE: Duration = Duration::from_secs(2);
/// How long an account is used while it is looked up again, or while the name service does not answer.
const USABLE: Duration = Duration::from_secs(600);
/// Above this number of names, those that are no longer fresh are forgotten.
const MOST_NAMES: usize = 4_096;

/// A user of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// All groups of the user, with the primary one.
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: PathBuf,
    /// The limits that the machine's administrator sets for the user.
    pub limits: Vec<UserLimit>,
}

impl Account {
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials { uid: self.uid, gid: self.gid, groups: &self.groups }
    }
}

/// An account, or the end of an attempt that cannot run without it.
type Found = Result<Arc<Account>, EndReason>;

/// What the thread found for a name.
type Answer = (String, Found);

pub struct Accounts {
    allows_root: bool,
    known: BTreeMap<String, Known>,
    /// Sends names to the thread, once it is started.
    questions: Option<Sender<String>>,
    answers: (Sender<Answer>, Receiver<Answer>),
    /// An eventfd on which the loop waits for answers.
    bell: Arc<OwnedFd>,
}

#[derive(Default)]
struct Known {
    is_asked: bool,
    /// The latest answer, and when it came.
    answer: Option<(Instant, Found)>,
}

impl Accounts {
    pub fn new(allows_root: bool) -> io::Result<Accounts> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (known, questions) = (BTreeMap::new(), None);
        Ok(Accounts { allows_root, known, questions, answers: channel(), bell: Arc::new(bell) })
    }

    /// Readable when [`Accounts::take_answers`] has names.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The account with this name, or why there is none. `None` if it is being looked up.
    ///
    /// # Errors
    /// The end of an attempt that would run as this account.
    pub fn get(&mut self, name: &str) -> Option<Found> {
        let known = self.known.get(name);
        let (age, found) = match known.and_then(|known| known.answer.as_ref()) {
            Some((at, found)) => (at.elapsed(), Some(found.clone())),
            None => (Duration::ZERO, None),
        };
        let found = match found {
            Some(Ok(_)) if age < FRESH => return found,
            Some(Err(_)) if age < FRESH_FAILURE => return found,
            Some(Ok(_)) if age < USABLE => found,
            _ => None,
        };
        if !known.is_some_and(|known| known.is_asked)
            && let Err(error) = self.ask(name)
        {
            return Some(Err(node_fault("start a thread to look up accounts", &error)));
        }
        found
    }

    fn ask(&mut self, name: &str) -> io::Result<()> {
        let questions = match self.questions.take() {
            Some(questions) => questions,
            None => self.start()?,
        };
        if self.known.len() >= MOST_NAMES {
            let is_fresh = |known: &Known| known.answer.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH);
            self.known.retain(|_, known| known.is_asked || is_fresh(known));
        }
        self.known.entry(name.to_owned()).or_default().is_asked = true;
        // The thread runs as long as this process, so this does not fail.
        let _ = self.questions.insert(questions).send(name.to_owned());
        Ok(())
    }

    /// The names that were answered since the last call.
    pub fn take_answers(&mut self) -> Vec<String> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        let answers: Vec<Answer> = self.answers.1.try_iter().collect();
        let mut names = Vec::new();
        for (name, found) in answers {
            let known = self.known.entry(name.clone()).or_default();
            known.is_asked = false;
            // While the name service does not answer, users that it named before can run tasks.
            let keeps = matches!(found, Err(EndReason::NodeFault(_)))
                && matches!(&known.answer, Some((at, Ok(_))) if at.elapsed() < USABLE);
            if !keeps {
                known.answer = Some((Instant::now(), found));
            }
            names.push(name);
        }
        names
    }

    fn start(&self) -> io::Result<Sender<String>> {
        let (questions, asked) = channel::<String>();
        let (answers, bell, allows_root) = (self.answers.0.clone(), Arc::clone(&self.bell), self.allows_root);
        // The thread inherits the blocked signals of the loop's thread, which handles them.
        std::thread::Builder::new().name("accounts".to_owned()).spawn(move || {
            for name in asked {
                let found = look_up(&name, allows_root);
                let _ = answers.send((name, found));
                let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
            }
        })?;
        Ok(questions)
    }
}

/// The end of an attempt whose job has no account.
pub fn unnamed() -> EndReason {
    let why = "tasks on this node run as their job's user, and the job was submitted to a server that records no accounts; update \
               the server and submit the job again";
    EndReason::LaunchFailed(why.to_owned())
}

fn look_up(name: &str, allows_root: bool) -> Found {
    let user = User::from_name(name).map_err(|error| unanswered(name, error.into()))?;
    let Some(user) = user else {
        return Err(EndReason::LaunchFailed(format!(
            "the user {name} has no account on this node; create one, or name another account of the user in `[[account]]` of the \
             server's configuration"
        )));
    };
    if user.uid.is_root() && !allows_root {
        return Err(EndReason::LaunchFailed(format!(
            "jobs of {name} do not run on this node, because it would run them as root; submit as another user, or start the agent \
             with --allow-root"
        )));
    }
    // The kernel takes this number for "unchanged".
    if [user.uid.as_raw(), user.gid.as_raw()].contains(&u32::MAX) {
        return Err(EndReason::LaunchFailed(format!(
            "the account {name} of this node has an invalid number; correct it"
        )));
    }
    let groups = CString::new(name).map_err(io::Error::from).and_then(|name| Ok(getgrouplist(&name, user.gid)?));
    let groups = groups.map_err(|error| unanswered(name, error))?;
    let limits = limits(name, user.uid, &groups)?;
    Ok(Arc::new(Account {
        name: name.to_owned(),
        uid: Uid::as_raw(user.uid),
        gid: Gid::as_raw(user.gid),
        groups: groups.into_iter().map(Gid::as_raw).collect(),
        home: user.dir,
        shell: user.shell,
        limits,
    }))
}

fn limits(name: &str, uid: Uid, groups: &[Gid]) -> Result<Vec<UserLimit>, EndReason> {
    // Groups are often named in the files, and a group without a name cannot be.
    let named =
        |gid: &Gid| (Group::from_gid(*gid).ok().flatten().map_or_else(String::new, |group| group.name), gid.as_raw());
    let groups: Vec<(String, u32)> = groups.iter().map(named).collect();
    user_limits(&Who { name, uid: uid.as_raw(), groups: &groups })
        .map_err(|(path, error)| node_fault(&format!("read the limits of users in {}", path.display()), &error))
}

fn unanswered(name: &str, error: io::Error) -> EndReason {
    node_fault(&format!("look up the account {name}"), &error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    /// The answer of the thread.
    fn answer(accounts: &mut Accounts, name: &str) -> Found {
        assert_eq!(accounts.get(name), None, "the thread is asked first");
        poll(&mut [PollFd::new(&accounts.bell(), PollFlags::IN)], None).unwrap();
        assert_eq!(accounts.take_answers(), [name]);
        accounts.get(name).unwrap()
    }

    #[test]
    fn an_account_has_its_ids_groups_and_home() {
        let mut accounts = Accounts::new(true).unwrap();
        let root = answer(&mut accounts, "root").unwrap();
        assert_eq!((root.uid, root.gid, root.home.to_str()), (0, 0, Some("/root")));
        assert!(root.groups.contains(&0));
        assert_eq!(accounts.get("root"), Some(Ok(root)), "the answer is kept");
    }

    #[test]
    fn unknown_users_and_root_are_refused_with_the_reason() {
        let mut accounts = Accounts::new(false).unwrap();
        for (name, why) in [("no-such-user", "has no account on this node"), ("root", "--allow-root")] {
            let Err(EndReason::LaunchFailed(text)) = answer(&mut accounts, name) else { panic!("{name} is accepted") };
            assert!(text.contains(name) && text.contains(why), "{text}");
        }
    }

    #[test]
    fn a_failure_is_asked_again_soon() {
        let mut accounts = Accounts::new(false).unwrap();
        answer(&mut accounts, "no-such-user").unwrap_err();
        age(&mut accounts, "no-such-user", FRESH_FAILURE);
        answer(&mut accounts, "no-such-user").unwrap_err();
    }

    #[test]
    fn an_account_is_used_for_a_while_when_the_name_service_does_not_answer() {
        let mut accounts = Accounts::new(true).unwrap();
        let root = answer(&mut accounts, "root");
        let fails = |accounts: &mut Accounts| {
            accounts
                .answers
                .0
                .send(("root".to_owned(), Err(unanswered("root", io::ErrorKind::TimedOut.into()))))
                .unwrap();
            accounts.take_answers();
        };
        fails(&mut accounts);
        age(&mut accounts, "root", FRESH);
        assert_eq!(accounts.get("root"), Some(root), "it is looked up again in the background");
        poll(&mut [PollFd::new(&accounts.bell(), PollFlags::IN)], None).unwrap();
        accounts.take_answers();
        age(&mut accounts, "root", USABLE);
        fails(&mut accounts);
        assert!(matches!(accounts.get("root"), Some(Err(EndReason::NodeFault(_)))));
    }

    /// Makes the latest answer so old.
    fn age(accounts: &mut Accounts, name: &str, age: Duration) {
        let known = accounts.known.get_mut(name).unwrap();
        known.answer.as_mut().unwrap().0 = Instant::now().checked_sub(age).unwrap();
    }
}
