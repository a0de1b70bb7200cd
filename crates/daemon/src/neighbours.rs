//! What other processes of a federation have. Clients come to any of them and are led to the one that can answer.

use crate::api::Error;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::vocabulary::{GlobalId, JobId, JobSpec, Seat};

/// The global masters beside this process.
#[derive(Clone, Debug)]
pub struct Neighbours {
    pub seat: Seat,
    /// Where the global masters listen for clients, by their numbers; empty where that is not known.
    pub interfaces: Vec<String>,
}

impl Neighbours {
    /// Who has this job, if this process cannot have it: its number says so.
    pub fn has_job(&self, job: JobId) -> Option<Error> {
        let (Seat::Cluster(federation, _) | Seat::Global(federation, _)) = self.seat;
        self.has(format!("job {job}"), federation.admitted_by(job))
    }

    /// Who takes this job, if this process does not: a queue may have one global master, jobs that come after others are with the
    /// one that has those, and a cluster's master has none.
    pub fn takes(&self, queues: &QueueTree, job: &JobSpec) -> Option<Error> {
        let home = queues.home(&job.queue).map(|home| GlobalId(home as u8));
        match (home, job.after_jobs.first(), self.seat) {
            (Some(home), ..) => self.has(format!("queue `{}`", job.queue), home),
            (None, Some(&first), _) => self.has_job(first),
            // The first of them, where any would do.
            (None, None, Seat::Cluster(..)) if !self.interfaces.is_empty() => {
                self.has("every job".to_owned(), GlobalId(0))
            }
            (None, None, _) => None,
        }
    }

    /// Where the other global masters' interfaces are.
    pub fn others(&self) -> Vec<String> {
        let is_other = |number: usize| !matches!(self.seat, Seat::Global(_, own) if usize::from(own.0) == number);
        let others = self.interfaces.iter().enumerate().filter(|(number, _)| is_other(*number));
        others.map(|(_, address)| url(address)).collect()
    }

    fn has(&self, what: String, global: GlobalId) -> Option<Error> {
        let this = match self.seat {
            Seat::Global(_, own) if own == global => return None,
            Seat::Global(_, own) => own.to_string(),
            Seat::Cluster(_, cluster) => format!("the master of {cluster}"),
        };
        let interface = self.interfaces.get(usize::from(global.0)).map(|address| url(address));
        Some(Error::with_global(format!("{what} is with {global}, and this is {this}"), interface))
    }
}

/// Nobody listens on addresses that would need encryption.
fn url(address: &str) -> String {
    format!("http://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ErrorCode;
    use amalgam_core::vocabulary::{ClusterId, Federation, QueueSpec};

    #[test]
    fn whoever_asks_for_what_another_global_master_has_is_told_which_and_where() {
        let federation = Federation::new(2, 3, 8).unwrap();
        let queues = QueueTree::new(vec![
            QueueSpec { global: Some(2), ..QueueSpec::named("root.a") },
            QueueSpec::named("root.b"),
        ]);
        let queues = queues.unwrap();
        let interfaces = vec!["a:1".to_owned(), "b:2".to_owned(), "c:3".to_owned()];
        let global = Neighbours { seat: Seat::Global(federation, GlobalId(1)), interfaces: interfaces.clone() };
        let of = |error: Option<Error>| error.map(|error| (error.error, error.message, error.at));
        assert_eq!(of(global.has_job(JobId(2))), None);
        let elsewhere = |message: &str, at: Option<&str>| {
            Some((ErrorCode::Elsewhere, message.to_owned(), at.map(|at| format!("http://{at}"))))
        };
        let third = elsewhere("job 6 is with global master 2, and this is global master 1", Some("c:3"));
        assert_eq!(of(global.has_job(JobId(6))), third.clone());
        let queue = elsewhere("queue `a` is with global master 2, and this is global master 1", Some("c:3"));
        let job = |queue: &str, after: &[u64]| JobSpec {
            queue: queue.to_owned(),
            after_jobs: after.iter().copied().map(JobId).collect(),
            ..JobSpec::default()
        };
        let takes = |who: &Neighbours, queue, after| of(who.takes(&queues, &job(queue, after)));
        assert_eq!((takes(&global, "a", &[]), takes(&global, "b", &[])), (queue.clone(), None));
        assert_eq!((takes(&global, "a", &[2]), takes(&global, "b", &[2, 3])), (queue, None));
        assert_eq!(takes(&global, "b", &[6, 2]), third);

        assert_eq!(global.others(), ["http://a:1", "http://c:3"]);

        let master = Neighbours { seat: Seat::Cluster(federation, ClusterId(0)), interfaces };
        let first = elsewhere("job 1 is with global master 0, and this is the master of cluster 0", Some("a:1"));
        assert_eq!(of(master.has_job(JobId(1))), first);
        let any = elsewhere("every job is with global master 0, and this is the master of cluster 0", Some("a:1"));
        assert_eq!(takes(&master, "b", &[]), any);
        assert_eq!(master.others(), ["http://a:1", "http://b:2", "http://c:3"]);
        let silent = Neighbours { interfaces: Vec::new(), ..master };
        assert_eq!(takes(&silent, "b", &[]), None, "its master refuses by itself");
        let unknown = elsewhere("job 1 is with global master 0, and this is the master of cluster 0", None);
        assert_eq!(of(silent.has_job(JobId(1))), unknown);
    }
}
