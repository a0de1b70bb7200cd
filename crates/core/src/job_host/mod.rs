//! The role of a job host as a whole: it knows which jobs the process has, and makes its launches known to nodes.
//!
//! With it, job managers continue while the master is down (Boutin et al. 2014, section 3.1: the resource monitor is not on the
//! critical path).

use crate::protocol::{Address, Greeting, ToJobHost, ToJobManager, ToNode};
use crate::role::{Change, Event, Outbox, Role};
use crate::vocabulary::{Duration, Epoch, Generation, HostId, Instant, JobId, Kinds, NodeId, Sealing};
use std::collections::BTreeMap;

pub struct JobHost {
    epoch: Epoch,
    sealing: Sealing,
    settings: JobHostSettings,
    generation: Generation,
    /// When the next generation starts.
    advance_at: Option<Instant>,
    nodes: BTreeMap<NodeId, NodeLink>,
    /// The jobs and the times of their submission: a number alone may have been assigned again.
    jobs: BTreeMap<JobId, Instant>,
    /// The kinds of resources, as the master names them.
    kinds: Kinds,
    /// The connection to the master.
    connection: Option<u64>,
    /// Whether the master has sent its list of jobs on this connection. Messages before the list are from an earlier connection,
    /// and may be about jobs that were forgotten since.
    is_listed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobHostSettings {
    /// How long a generation of tokens lasts.
    pub token_life: Duration,
    /// Attempts at a node are given up once it has been disconnected for this time.
    pub node_grace: Duration,
}

/// A node that has been connected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeLink {
    Up,
    Away {
        /// When it is given up; `None` once it was.
        lost_at: Option<Instant>,
    },
}

/// A job host, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobHostDescription {
    pub host: HostId,
    pub jobs: u64,
    pub connected_nodes: u64,
}

impl JobHost {
    /// For this incarnation of the process; `epoch` includes the host's number.
    pub fn new(epoch: Epoch, sealing: Sealing, settings: JobHostSettings) -> JobHost {
        JobHost {
            epoch,
            sealing,
            settings,
            generation: Generation::default(),
            advance_at: None,
            nodes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            kinds: Kinds::new(),
            connection: None,
            is_listed: false,
        }
    }

    /// Whether the master's messages to job managers belong to the present connection.
    pub fn hears_master(&self) -> bool {
        self.is_listed
    }

    /// The generation of tokens that are made from now on.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Nodes that were connected and are not any more.
    pub fn away(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|(_, link)| **link != NodeLink::Up).map(|(node, _)| *node)
    }

    fn connected(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|(_, link)| **link == NodeLink::Up).map(|(node, _)| *node)
    }

    /// Tokens made just before the last advance may still be on their way.
    fn oldest(&self) -> Generation {
        Generation(self.generation.0.saturating_sub(1))
    }

    fn greet(&mut self, node: NodeId, out: &mut Outbox) {
        self.nodes.insert(node, NodeLink::Up);
        let (epoch, key, oldest, kinds) = (self.epoch, self.sealing.node_key(node), self.oldest(), self.kinds.clone());
        out.send(node, ToNode::Greeting(Box::new(Greeting { epoch, key, oldest, kinds })));
    }

    fn advance_when_due(&mut self, now: Instant, out: &mut Outbox) {
        let life = self.settings.token_life;
        let advance_at = self.advance_at.get_or_insert(now + life);
        if *advance_at > now {
            return;
        }
        *advance_at = now + life;
        self.generation.0 += 1;
        let (generation, before) = (self.generation, self.oldest());
        self.jobs.keys().for_each(|job| out.send(*job, ToJobManager::Generation { generation }));
        self.connected().for_each(|node| out.send(node, ToNode::Expire { before }));
    }

    /// The master may still be connected to the node, or be down itself: what runs there is not reported here, and ends with the
    /// node's lease.
    fn give_up_when_due(&mut self, now: Instant, out: &mut Outbox) {
        let is_due = |link: &NodeLink| matches!(link, NodeLink::Away { lost_at: Some(at) } if *at <= now);
        for (&node, link) in self.nodes.iter_mut().filter(|(_, link)| is_due(link)) {
            *link = NodeLink::Away { lost_at: None };
            self.jobs.keys().for_each(|job| out.send(*job, ToJobManager::NodeLost { node }));
        }
    }

    fn learn(&mut self, kinds: Kinds, out: &mut Outbox) {
        if self.kinds != kinds {
            out.persist(Change::KindsNamed { kinds: kinds.clone() });
            self.kinds = kinds;
        }
    }

    fn forget(&mut self, job: JobId, out: &mut Outbox) {
        if self.jobs.remove(&job).is_some() {
            out.send(job, ToJobManager::Forgotten);
        }
    }
}

impl Role for JobHost {
    type Message = ToJobHost;
    type Description = JobHostDescription;

    fn handle(&mut self, now: Instant, event: Event<ToJobHost>, out: &mut Outbox) {
        match event {
            Event::Message { from: Address::JobManager(job), body: ToJobHost::Has { job: reported, submitted_at } }
                if job == reported =>
            {
                self.jobs.insert(job, submitted_at);
            }
            Event::Message { from: Address::Master, body: ToJobHost::Known { connection, kinds, jobs } }
                if self.connection == Some(connection) =>
            {
                self.is_listed = true;
                self.learn(kinds, out);
                let known: BTreeMap<JobId, Instant> = jobs.into_iter().collect();
                let is_gone = |(job, at): &(&JobId, &Instant)| known.get(job) != Some(*at);
                let gone: Vec<JobId> = self.jobs.iter().filter(is_gone).map(|(job, _)| *job).collect();
                gone.into_iter().for_each(|job| self.forget(job, out));
            }
            Event::Message { from: Address::Master, body: ToJobHost::Forget { job } } if self.is_listed => {
                self.forget(job, out);
            }
            Event::Message { from: Address::Master, body: ToJobHost::Kinds { kinds } } if self.is_listed => {
                self.learn(kinds, out);
            }
            // These messages are accepted only from the master, on the present connection.
            Event::Message { .. } => {}
            Event::Connected { peer: Address::Master, incarnation } => {
                (self.connection, self.is_listed) = (Some(incarnation), false);
            }
            Event::Disconnected { peer: Address::Master } => (self.connection, self.is_listed) = (None, false),
            Event::Connected { peer: Address::Node(node), .. } => self.greet(node, out),
            Event::Disconnected { peer: Address::Node(node) } => {
                let lost_at = Some(now + self.settings.node_grace);
                self.nodes.insert(node, NodeLink::Away { lost_at });
            }
            Event::Connected { .. } | Event::Disconnected { .. } | Event::Wakeup => {}
        }
        self.give_up_when_due(now, out);
        self.advance_when_due(now, out);
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let lost = self.nodes.values().filter_map(|link| match link {
            NodeLink::Away { lost_at } => *lost_at,
            NodeLink::Up => None,
        });
        lost.chain(self.advance_at).min()
    }

    fn recover(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Managed { job } => drop(self.jobs.insert(job.id, job.submitted_at)),
                Change::Unmanaged { job } => drop(self.jobs.remove(job)),
                Change::KindsNamed { kinds } => self.kinds = kinds.clone(),
                _ => {}
            }
        }
    }

    /// Job managers persist their own state.
    fn durable(&self) -> Vec<Change> {
        vec![Change::KindsNamed { kinds: self.kinds.clone() }]
    }

    fn describe(&self, _: Instant) -> JobHostDescription {
        let (jobs, connected_nodes) = (self.jobs.len() as u64, self.connected().count() as u64);
        JobHostDescription { host: self.epoch.host(), jobs, connected_nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Message;
    use crate::vocabulary::{Key, Mac};

    const SETTINGS: JobHostSettings =
        JobHostSettings { token_life: Duration::from_secs(600), node_grace: Duration::from_secs(30) };
    const SUBMITTED: Instant = Instant(5);

    struct TestHost {
        host: JobHost,
        now: Instant,
    }

    impl TestHost {
        fn handle(&mut self, event: Event<ToJobHost>) -> Vec<(Address, Message)> {
            let mut out = Outbox::default();
            self.host.handle(self.now, event, &mut out);
            out.sends
        }

        fn receives(&mut self, from: Address, body: ToJobHost) -> Vec<(Address, Message)> {
            self.handle(Event::Message { from, body })
        }
    }

    fn test_host() -> TestHost {
        let sealing = Sealing { root: Key([3; 32]), mac: Mac::MIXING };
        let epoch = Epoch::of_host(HostId(2), 5).unwrap();
        let mut test = TestHost { host: JobHost::new(epoch, sealing, SETTINGS), now: Instant(7) };
        for job in [1, 2, 3].map(JobId) {
            test.receives(Address::JobManager(job), ToJobHost::Has { job, submitted_at: SUBMITTED });
        }
        test
    }

    #[test]
    fn jobs_that_the_master_does_not_know_are_forgotten_and_only_the_master_is_believed() {
        let mut test = test_host();
        let forgotten = |sent: Vec<(Address, Message)>| -> Vec<Address> {
            assert!(sent.iter().all(|(_, body)| *body == Message::ToJobManager(ToJobManager::Forgotten)));
            sent.into_iter().map(|(to, _)| to).collect()
        };
        let list = |connection, jobs: &[u64]| {
            let jobs = jobs.iter().map(|job| (JobId(*job), SUBMITTED)).collect();
            ToJobHost::Known { connection, kinds: Kinds::new(), jobs }
        };
        let known = || list(7, &[1, 3, 9]);
        let connect = |test: &mut TestHost, incarnation| {
            assert_eq!(test.handle(Event::Connected { peer: Address::Master, incarnation }), []);
        };
        connect(&mut test, 7);
        assert_eq!(test.receives(Address::Node(NodeId(0)), known()), []);
        let forget_first = ToJobHost::Forget { job: JobId(1) };
        assert_eq!(test.receives(Address::Master, forget_first), [], "sent on an earlier connection");
        assert!(!test.host.hears_master());
        assert_eq!(forgotten(test.receives(Address::Master, known())), [Address::JobManager(JobId(2))]);
        assert_eq!(test.receives(Address::Master, known()), []);
        assert!(test.host.hears_master());
        connect(&mut test, 8);
        assert_eq!(test.receives(Address::Master, list(7, &[])), [], "the list of an earlier connection");
        assert_eq!(test.receives(Address::Master, list(8, &[1, 3])), []);
        let forget = test.receives(Address::Master, ToJobHost::Forget { job: JobId(3) });
        assert_eq!(forgotten(forget), [Address::JobManager(JobId(3))]);
        let mut recovered = JobHost::new(test.host.epoch, test.host.sealing, SETTINGS);
        recovered.recover(&[Change::Unmanaged { job: JobId(3) }]);
        assert_eq!(recovered.describe(test.now).jobs, 0);
    }

    #[test]
    fn a_different_job_with_the_same_number_is_not_confused_with_the_known_one() {
        let mut test = test_host();
        test.handle(Event::Connected { peer: Address::Master, incarnation: 7 });
        let jobs = vec![(JobId(1), SUBMITTED), (JobId(2), Instant(6)), (JobId(3), SUBMITTED)];
        let sent = test.receives(Address::Master, ToJobHost::Known { connection: 7, kinds: Kinds::new(), jobs });
        assert_eq!(sent, [(Address::JobManager(JobId(2)), Message::ToJobManager(ToJobManager::Forgotten))]);
    }

    #[test]
    fn a_disconnected_node_is_given_up_once_unless_it_reconnects() {
        let mut test = test_host();
        let events = |number| {
            let peer = Address::Node(NodeId(number));
            (Event::Connected { peer, incarnation: 1 }, Event::Disconnected { peer })
        };
        for number in [4, 5] {
            let (connected, disconnected) = events(number);
            test.handle(connected);
            test.handle(disconnected);
        }
        assert_eq!(test.host.away().collect::<Vec<_>>(), [NodeId(4), NodeId(5)]);
        test.handle(events(5).0);
        test.now += SETTINGS.node_grace;
        let lost =
            |job| (Address::JobManager(JobId(job)), Message::ToJobManager(ToJobManager::NodeLost { node: NodeId(4) }));
        assert_eq!(test.handle(Event::Wakeup), [lost(1), lost(2), lost(3)]);
        assert_eq!(test.handle(Event::Wakeup), []);
        assert_eq!(test.host.away().collect::<Vec<_>>(), [NodeId(4)]);
    }

    #[test]
    fn a_node_is_greeted_on_each_connection_and_notified_of_expired_tokens() {
        let mut test = test_host();
        let node = NodeId(4);
        let connected = Event::Connected { peer: Address::Node(node), incarnation: 1 };
        let greeting = |sent: Vec<(Address, Message)>| match &sent[..] {
            [(Address::Node(to), Message::ToNode(ToNode::Greeting(greeting)))] => {
                assert_eq!((*to, greeting.key), (node, test_key(node)));
                (greeting.epoch.host(), greeting.oldest)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(greeting(test.handle(connected.clone())), (HostId(2), Generation(0)));
        for generation in 1..=2 {
            test.now = test.host.next_wakeup().unwrap();
            let sent = test.handle(Event::Wakeup);
            let job = |job| (Address::JobManager(JobId(job)), generation_of(generation));
            let expire = Message::ToNode(ToNode::Expire { before: Generation(generation - 1) });
            assert_eq!(sent, [job(1), job(2), job(3), (Address::Node(node), expire)]);
        }
        assert_eq!(test.handle(Event::Wakeup), [], "a generation lasts for the token life");
        test.handle(Event::Disconnected { peer: Address::Node(node) });
        test.now += SETTINGS.token_life;
        let sent = test.handle(Event::Wakeup);
        assert!(sent.contains(&(Address::JobManager(JobId(1)), generation_of(3))));
        assert!(sent.iter().all(|(to, _)| *to != Address::Node(node)));
        assert_eq!(greeting(test.handle(connected)), (HostId(2), Generation(2)));
    }

    fn generation_of(generation: u32) -> Message {
        Message::ToJobManager(ToJobManager::Generation { generation: Generation(generation) })
    }

    fn test_key(node: NodeId) -> Key {
        Sealing { root: Key([3; 32]), mac: Mac::MIXING }.node_key(node)
    }
}
