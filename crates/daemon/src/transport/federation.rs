//! The connection between a global master and the master of a cluster. It carries messages, and pieces of output, input
//! and files between clusters.

use super::files::answer_in_turn;
use super::{Conversation, Joined, Outgoing, RemoteNodes, Secrets, Wire};
use crate::auth::Tokens;
use crate::files::MOST_SERVED;
use crate::shell::{Handle, Input, PeerId};
use amalgam_core::hosting::Envelope;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, Message, ToGlobalMaster};
use amalgam_core::vocabulary::{ClusterId, Federation, GlobalId, Kinds};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};

/// The identity of a global master, and the configuration that it expects of the cluster. If both configurations
/// differ, the numbers of nodes, jobs and kinds of resources would have different meanings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GlobalIntroduction {
    pub federation: Federation,
    pub global: GlobalId,
    pub cluster: ClusterId,
    pub preset: String,
    pub kinds: Kinds,
    /// Name, share and global master of each queue, by queue number.
    pub queues: Vec<(String, u32, Option<u8>)>,
}

/// The default preset of federations before [`AMALGAM_SINCE`].
const FORMER_DEFAULT: &str = "megha";
/// The version of the wire from which on federations may have the preset `amalgam`.
const AMALGAM_SINCE: u32 = 33;

impl GlobalIntroduction {
    /// As a peer that speaks this version of the wire knows it. Where that has no preset `amalgam`, its default is compared, so a federation
    /// without a preset in its configurations can be upgraded one process after the other. Masters verify launches under both; an older one reports
    /// changes with heartbeats, and refuses what needs a preemption.
    #[must_use]
    pub(super) fn for_version(self, version: u32) -> GlobalIntroduction {
        let is_later = version < AMALGAM_SINCE && self.preset == Preset::AMALGAM_IN_FEDERATIONS.name();
        let preset = if is_later { FORMER_DEFAULT.to_owned() } else { self.preset };
        GlobalIntroduction { preset, ..self }
    }

    /// Compares the global master's configuration with this cluster's `own`.
    ///
    /// # Errors
    /// The first difference, with a remedy.
    pub(super) fn check(&self, own: &GlobalIntroduction) -> Result<(), String> {
        let Federation { clusters, globals, span } = own.federation;
        if self.federation != own.federation {
            return Err(format!(
                "this cluster's federation has {clusters} clusters, {globals} global masters and {span} node numbers \
                 for each cluster, and the global master's differs; write the same [federation] into all \
                 configurations"
            ));
        }
        if self.global.0 >= globals {
            return Err(format!("unknown global master {}; known: 0 to {}", self.global.0, globals - 1));
        }
        if self.cluster != own.cluster {
            return Err(format!(
                "this is {}, not {}; correct the order of `masters`, or this cluster's `number`",
                own.cluster, self.cluster
            ));
        }
        if self.preset != own.preset {
            return Err(format!(
                "this cluster uses the preset {}, and the global master {}; use the same preset",
                own.preset, self.preset
            ));
        }
        if self.kinds != own.kinds {
            let (ours, yours) = (own.kinds.custom().join(", "), self.kinds.custom().join(", "));
            return Err(format!(
                "this cluster's custom kinds of resources are [{ours}], and the global master's are [{yours}]; write \
                 the same `kinds` into all configurations"
            ));
        }
        if self.queues != own.queues {
            let shorter = own.queues.len().min(self.queues.len());
            let first = own.queues.iter().zip(&self.queues).position(|(ours, yours)| ours != yours).unwrap_or(shorter);
            let (queue, _, _) = own.queues.get(first).or(self.queues.get(first)).expect("one list is longer");
            return Err(format!(
                "the queues of this cluster and of the global master differ, first at {queue}; write the same \
                 [[queue]] into all configurations, because shares are fractions of all clusters together (a global \
                 master without a file needs it for one start, with --config and --number)"
            ));
        }
        Ok(())
    }
}

/// What a global master does with the news of a cluster's master about certificates and users.
#[derive(Clone)]
pub struct ClusterNews {
    /// Those for this cluster.
    pub secrets: Secrets,
    /// Accepts the users of this cluster, if it is the first one that the global master has joined.
    pub users: Option<Arc<Tokens>>,
    /// Called after the certificates were replaced.
    pub renewed: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl ClusterNews {
    fn take(&self, news: Wire, answers: &mpsc::UnboundedSender<Outgoing>) {
        match news {
            Wire::Certificate(certified) => {
                if let Some(answer) = self.secrets.renew(*certified) {
                    let _ = answers.send(answer.into());
                }
                self.renewed.iter().for_each(|renewed| renewed());
            }
            Wire::Users(users) => self.users.iter().for_each(|tokens| tokens.accept_others(users.clone())),
            _ => {}
        }
    }
}

/// Passes messages between this global master's loop and the master of a cluster, until the connection breaks.
pub async fn serve_cluster(
    joined: Joined,
    federation: Federation,
    cluster: ClusterId,
    (handle, remote): (&Handle, &Arc<RemoteNodes>),
    news: &ClusterNews,
) -> io::Error {
    let Joined { incarnation, link, .. } = joined;
    let (parcels_in, parcels) = mpsc::unbounded_channel();
    let (wire_in, wire) = mpsc::unbounded_channel();
    let Some(route) = handle.routes().add(PeerId::Cluster(cluster), parcels_in) else {
        return io::Error::other("another connection to it exists already");
    };
    if handle.send(Input::ClusterConnected { cluster, incarnation }).is_err() {
        return stopping();
    }
    let clock = handle.clock();
    let conversation = link.converse(parcels, wire, move || clock.now());
    remote.add_cluster(cluster, wire_in.clone());
    // A master may send messages of its own and of its nodes.
    let may_say = move |envelope: &Envelope| match envelope.from {
        Address::Master => {
            !matches!(&envelope.message, Message::ToGlobalMaster(ToGlobalMaster::ClusterUpdate(reported)) if reported.cluster != cluster)
        }
        Address::Node(node) => federation.has(node) && federation.cluster_of(node) == cluster,
        _ => false,
    };
    let answers = wire_in.clone();
    let end = exchange(conversation, wire_in, handle, remote, may_say, |other| news.take(other, &answers)).await;
    remote.remove_cluster(cluster);
    let _ = handle.send(Input::ClusterDisconnected { cluster });
    drop(route);
    end
}

/// Whether a global master may send a message: one of its own, or of the managers of its jobs.
pub(super) fn may_say(federation: Federation, global: GlobalId) -> impl Fn(&Envelope) -> bool {
    move |envelope| match envelope.from {
        Address::GlobalMaster(sender) => sender == global,
        Address::JobManager(job) => federation.admitted_by(job) == global,
        _ => false,
    }
}

/// Handles the peer's frames until the connection breaks. Those that are not about jobs and files are for `other`.
pub(super) async fn exchange(
    mut conversation: Conversation,
    answers: mpsc::UnboundedSender<Outgoing>,
    handle: &Handle,
    remote: &Arc<RemoteNodes>,
    may_say: impl Fn(&Envelope) -> bool,
    other: impl Fn(Wire),
) -> io::Error {
    let served = Arc::new(Semaphore::new(MOST_SERVED));
    loop {
        match conversation.next().await {
            Ok(Wire::Mail(envelopes)) => {
                let own = envelopes.into_iter().filter(&may_say).collect();
                if handle.send(Input::Mail(own)).is_err() {
                    return stopping();
                }
            }
            Ok(Wire::Fetch { id, node, attempt, stream, offset, limit }) => {
                let (remote, handle, answers) = (Arc::clone(remote), handle.clone(), answers.clone());
                tokio::spawn(async move {
                    let fetched = remote.output(&handle, node, attempt, stream, offset, limit).await;
                    let _ = answers.send(Wire::Fetched { id, fetched }.into());
                });
            }
            Ok(Wire::Fetched { id, fetched }) => remote.answer(id, fetched),
            Ok(Wire::AskFile { id, ask }) => {
                let (remote, handle, places) = (Arc::clone(remote), handle.clone(), Arc::clone(&served));
                let piece = async move { remote.any_piece(&handle, ask).await };
                tokio::spawn(answer_in_turn(
                    places,
                    piece,
                    move |piece| Wire::FilePiece { id, piece },
                    answers.clone(),
                ));
            }
            Ok(Wire::FilePiece { id, piece }) => remote.answer_piece(id, piece),
            Ok(Wire::Feed { id, node, attempt, part }) => {
                let (remote, handle, answers) = (Arc::clone(remote), handle.clone(), answers.clone());
                tokio::spawn(async move {
                    let taken = remote.feed(&handle, node, attempt, part).await;
                    let _ = answers.send(Wire::Fed { id, taken }.into());
                });
            }
            Ok(Wire::Fed { id, taken }) => remote.answer_input(id, taken),
            Ok(news @ (Wire::Certificate(_) | Wire::Stored(_) | Wire::Users(_))) => other(news),
            Ok(
                Wire::Alive
                | Wire::Hosts(_)
                | Wire::Log { .. }
                | Wire::Present { .. }
                | Wire::All { .. }
                | Wire::Keys(_)
                | Wire::Shared(_)
                | Wire::WantCertificate { .. }
                | Wire::AskWay { .. }
                | Wire::Way { .. }
                | Wire::Expect { .. }
                | Wire::Expected { .. },
            ) => {}
            Err(error) => return error,
        }
    }
}

fn stopping() -> io::Error {
    io::Error::other("this process is stopping")
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::protocol::ToMaster;
    use amalgam_core::vocabulary::{JobId, NodeId};

    fn introduction() -> GlobalIntroduction {
        GlobalIntroduction {
            federation: Federation::new(3, 2, 10).unwrap(),
            global: GlobalId(1),
            cluster: ClusterId(2),
            preset: "megha".to_owned(),
            kinds: Kinds::new(),
            queues: vec![("root".to_owned(), 1_000_000, None), ("root.a".to_owned(), 500_000, Some(1))],
        }
    }

    #[test]
    fn a_different_configuration_is_refused_with_the_difference() {
        let own = introduction();
        assert_eq!(introduction().check(&own), Ok(()));
        let mut kinds = Kinds::new();
        kinds.add("fpga").unwrap();
        for (other, text) in [
            (
                GlobalIntroduction { federation: Federation::new(3, 2, 11).unwrap(), ..introduction() },
                "10 node numbers",
            ),
            (GlobalIntroduction { global: GlobalId(2), ..introduction() }, "unknown global master 2; known: 0 to 1"),
            (GlobalIntroduction { cluster: ClusterId(0), ..introduction() }, "this is cluster 2, not cluster 0"),
            (GlobalIntroduction { preset: "megha-plus".to_owned(), ..introduction() }, "uses the preset megha"),
            (GlobalIntroduction { kinds, ..introduction() }, "resources are [], and the global master's are [fpga]"),
            (GlobalIntroduction { queues: own.queues[..1].to_vec(), ..introduction() }, "differ, first at root.a"),
        ] {
            let refused = other.check(&own).unwrap_err();
            assert!(refused.contains(text), "{refused}");
        }
    }

    #[test]
    fn a_peer_of_an_older_version_is_compared_with_the_default_of_that_version() {
        let newer = GlobalIntroduction { preset: "amalgam".to_owned(), ..introduction() };
        assert_eq!(introduction().check(&newer.clone().for_version(32)), Ok(()));
        assert!(introduction().check(&newer.clone().for_version(33)).is_err_and(|why| why.contains("preset amalgam")));
        let other = GlobalIntroduction { preset: "megha-plus".to_owned(), ..introduction() };
        assert!(other.check(&newer.for_version(32)).is_err());
        assert_eq!(other.clone().for_version(32), other);
    }

    #[test]
    fn a_global_master_may_send_messages_of_its_own_and_of_its_jobs_managers() {
        let may_say = may_say(introduction().federation, GlobalId(1));
        let says = |from| {
            let message = Message::ToMaster(ToMaster::CannotLaunch { why: String::new() });
            may_say(&Envelope { from, to: Address::Master, message })
        };
        assert!(says(Address::GlobalMaster(GlobalId(1))) && says(Address::JobManager(JobId(2))));
        assert!(!says(Address::GlobalMaster(GlobalId(0))) && !says(Address::JobManager(JobId(1))));
        assert!(!says(Address::Node(NodeId(1))) && !says(Address::Master));
    }
}
