//! Redirections in a federation: clients may ask any process, which redirects them to the one that can answer.

use crate::api::{Elsewhere, Error, ErrorCode};
use crate::config::{is_local, is_loopback, reached_here};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::vocabulary::{GlobalId, JobId, JobSpec, Seat};
use std::net::SocketAddr;

/// This process's place in a federation, and the addresses of the global masters.
#[derive(Clone, Debug)]
pub struct Neighbours {
    pub seat: Seat,
    /// Addresses at which this process listens for clients, at least one.
    pub here: Vec<SocketAddr>,
    /// Whether the processes of the federation answer clients on loopback also without TLS.
    pub plain_http: bool,
    /// Addresses of the global masters' interfaces, in the order of their numbers; empty if they are not configured.
    pub interfaces: Vec<String>,
}

impl Neighbours {
    /// The error for a job that another global master has, according to the job's number. `None` if this process has
    /// it.
    pub fn has_job(&self, job: JobId) -> Option<Error> {
        self.is_with(self.admitted_by(job), &format!("job {job}"))
    }

    /// The error for a submission that another global master has to accept; `None` if this process may. A queue may
    /// belong to one global master. A job with dependencies belongs to the global master of these. The master of a
    /// cluster accepts no jobs. Dependencies at several global masters are refused.
    pub fn takes(&self, queues: &QueueTree, job: &JobSpec) -> Option<Error> {
        let home = queues.home(&job.queue).map(|home| (GlobalId(home as u8), format!("queue `{}`", job.queue)));
        let first = job.comes_after().next().map(|first| (self.admitted_by(first), format!("job {first}")));
        // The first global master if any of them could accept the job.
        let any = || match self.seat {
            Seat::Cluster(..) => (!self.interfaces.is_empty()).then(|| (GlobalId(0), "the job".to_owned())),
            Seat::Global(_, own) => Some((own, String::new())),
        };
        let (taker, what) = home.or(first).or_else(any)?;
        if let Some(other) = job.comes_after().find(|other| self.admitted_by(*other) != taker) {
            let has = self.admitted_by(other);
            let message = format!("{what} belongs to {taker}, and the dependency job {other} to {has}");
            let remedy = "use dependencies of one global master, and a queue that does not belong to another; or wait for the others first";
            return Some(Error::new(ErrorCode::Conflict, message, remedy));
        }
        self.is_with(taker, &what)
    }

    /// Addresses of the other global masters.
    pub fn others(&self) -> Option<Elsewhere> {
        let is_other = |number: usize| !matches!(self.seat, Seat::Global(_, own) if usize::from(own.0) == number);
        let others = self.interfaces.iter().enumerate().filter(|(number, _)| is_other(*number));
        let others: Vec<String> = others.map(|(_, address)| self.url(address)).collect();
        (!others.is_empty()).then(|| self.elsewhere(others))
    }

    fn admitted_by(&self, job: JobId) -> GlobalId {
        let (Seat::Cluster(federation, _) | Seat::Global(federation, _)) = self.seat;
        federation.admitted_by(job)
    }

    fn is_with(&self, global: GlobalId, what: &str) -> Option<Error> {
        let this = match self.seat {
            Seat::Global(_, own) if own == global => return None,
            Seat::Global(_, own) => own.to_string(),
            Seat::Cluster(_, cluster) => format!("the master of {cluster}"),
        };
        let interface =
            self.interfaces.get(usize::from(global.0)).map(|address| self.elsewhere(vec![self.url(address)]));
        Some(Error::with_global(format!("{what} belongs to {global}, and this is {this}"), interface))
    }

    fn elsewhere(&self, at: Vec<String>) -> Elsewhere {
        let scheme = |address: &SocketAddr| if is_local(*address) && self.plain_http { "http" } else { "https" };
        let unspecified = self.here.iter().filter(|address| address.ip().is_unspecified());
        let all: Vec<SocketAddr> = self.here.iter().copied().chain(unspecified.copied().map(reached_here)).collect();
        let mut here = all.iter().map(|address| format!("{}://{address}", scheme(address)));
        Elsewhere { here: here.next().unwrap_or_default(), also_here: here.collect(), at }
    }

    /// An interface that other machines reach is encrypted.
    fn url(&self, address: &str) -> String {
        let scheme = if is_loopback(address) && self.plain_http { "http" } else { "https" };
        format!("{scheme}://{address}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{ClusterId, Federation, QueueSpec};

    #[test]
    fn requests_for_jobs_and_queues_of_another_global_master_are_redirected() {
        let federation = Federation::new(2, 3, 8).unwrap();
        let queues = QueueTree::new(vec![
            QueueSpec { global: Some(2), ..QueueSpec::named("root.a") },
            QueueSpec::named("root.b"),
        ]);
        let queues = queues.unwrap();
        let interfaces = vec!["localhost:1".to_owned(), "b:2".to_owned(), "c:3".to_owned()];
        let here = vec!["127.0.0.1:2".parse().unwrap(), "10.0.0.1:2".parse().unwrap()];
        let seat = Seat::Global(federation, GlobalId(1));
        let global = Neighbours { seat, here: here.clone(), plain_http: true, interfaces: interfaces.clone() };
        let of =
            |error: Option<Error>| error.map(|error| (error.error, error.message, error.elsewhere.map(|led| *led)));
        assert_eq!(of(global.has_job(JobId(2))), None);
        let led = |at: &[&str]| {
            let at = at.iter().map(|at| (*at).to_owned()).collect();
            let also_here = vec!["https://10.0.0.1:2".to_owned()];
            Some(Elsewhere { here: "http://127.0.0.1:2".to_owned(), also_here, at })
        };
        let elsewhere = |message: &str, at: &str| Some((ErrorCode::Elsewhere, message.to_owned(), led(&[at])));
        let third = elsewhere("job 6 belongs to global master 2, and this is global master 1", "https://c:3");
        assert_eq!(of(global.has_job(JobId(6))), third.clone());
        let queue = elsewhere("queue `a` belongs to global master 2, and this is global master 1", "https://c:3");
        let job = |queue: &str, after: &[u64]| JobSpec {
            queue: queue.to_owned(),
            after_jobs: after.iter().copied().map(JobId).collect(),
            ..JobSpec::default()
        };
        let takes = |who: &Neighbours, queue, after| of(who.takes(&queues, &job(queue, after)));
        assert_eq!((takes(&global, "a", &[]), takes(&global, "b", &[])), (queue.clone(), None));
        assert_eq!((takes(&global, "a", &[3]), takes(&global, "b", &[2, 5])), (queue, None));
        assert_eq!(takes(&global, "b", &[6, 3]), third);
        let mixed: [(&str, &[u64]); 3] = [("a", &[2]), ("b", &[2, 3]), ("b", &[6, 2])];
        for (queue, after) in mixed {
            let (code, message, _) = of(global.takes(&queues, &job(queue, after))).unwrap();
            assert!(code == ErrorCode::Conflict && message.contains("and the dependency job"), "{message}");
        }
        assert_eq!(global.others(), led(&["http://localhost:1", "https://c:3"]));

        let everywhere = Neighbours { here: vec!["0.0.0.0:2".parse().unwrap()], ..global.clone() };
        let named = everywhere.elsewhere(Vec::new());
        assert_eq!((&*named.here, &*named.also_here), ("https://0.0.0.0:2", &["http://127.0.0.1:2".to_owned()][..]));
        let encrypted = Neighbours { plain_http: false, ..global.clone() };
        let others = encrypted.others().unwrap();
        assert_eq!((others.here.as_str(), others.at[0].as_str()), ("https://127.0.0.1:2", "https://localhost:1"));

        let seat = Seat::Cluster(federation, ClusterId(0));
        let master = Neighbours { seat, here, plain_http: true, interfaces };
        let first =
            elsewhere("job 1 belongs to global master 0, and this is the master of cluster 0", "http://localhost:1");
        assert_eq!(of(master.has_job(JobId(1))), first);
        let any =
            elsewhere("the job belongs to global master 0, and this is the master of cluster 0", "http://localhost:1");
        assert_eq!(takes(&master, "b", &[]), any);
        assert_eq!(master.others(), led(&["http://localhost:1", "https://b:2", "https://c:3"]));
        let silent = Neighbours { interfaces: Vec::new(), ..master };
        assert_eq!((takes(&silent, "b", &[]), silent.others()), (None, None), "the master refuses it later");
        let unknown = "job 1 belongs to global master 0, and this is the master of cluster 0".to_owned();
        assert_eq!(of(silent.has_job(JobId(1))), Some((ErrorCode::Elsewhere, unknown, None)));
    }
}
