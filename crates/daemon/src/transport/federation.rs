//! A global master and the master of a cluster: their stream, which carries letters, and pieces of what tasks wrote and of
//! files between clusters.

use super::files::answer_in_turn;
use super::{Conversation, Joined, Outgoing, RemoteNodes, Wire};
use crate::files::MOST_SERVED;
use crate::shell::{Handle, Input, PeerId};
use amalgam_core::hosting::Letter;
use amalgam_core::protocol::{Address, Message, ToGlobalMaster};
use amalgam_core::vocabulary::{ClusterId, Federation, GlobalId, Kinds};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};

/// Who a global master is and what it takes the cluster for. Where both do not mean the same, numbers of nodes, jobs and kinds of
/// resources would not either.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GlobalIntroduction {
    pub federation: Federation,
    pub global: GlobalId,
    pub cluster: ClusterId,
    pub preset: String,
    pub kinds: Kinds,
    /// By number, with the share and the global master of each.
    pub queues: Vec<(String, u32, Option<u8>)>,
}

impl GlobalIntroduction {
    /// # Errors
    /// In which the master of this cluster is of another opinion, and what to do.
    pub(super) fn check(&self, own: &GlobalIntroduction) -> Result<(), String> {
        let Federation { clusters, globals, span } = own.federation;
        if self.federation != own.federation {
            return Err(format!(
                "this is a federation of {clusters} clusters and {globals} global masters, with {span} numbers of nodes for a \
                 cluster, and yours is another: write the same [federation] into all configurations"
            ));
        }
        if self.global.0 >= globals {
            return Err(format!("this federation has global masters 0 to {}, and not {}", globals - 1, self.global.0));
        }
        if self.cluster != own.cluster {
            return Err(format!(
                "this is {}, and not {}: mend the order of `masters`, or the `number` of one of us",
                own.cluster, self.cluster
            ));
        }
        if self.preset != own.preset {
            return Err(format!(
                "this cluster goes by the preset {}, and not {}: use the same",
                own.preset, self.preset
            ));
        }
        if self.kinds != own.kinds {
            let (ours, yours) = (own.kinds.custom().join(", "), self.kinds.custom().join(", "));
            return Err(format!(
                "this cluster's custom kinds of resources are [{ours}], and yours [{yours}]: write the same `kinds` into all \
                 configurations"
            ));
        }
        if self.queues != own.queues {
            let shorter = own.queues.len().min(self.queues.len());
            let first = own.queues.iter().zip(&self.queues).position(|(ours, yours)| ours != yours).unwrap_or(shorter);
            let (queue, _, _) = own.queues.get(first).or(self.queues.get(first)).expect("one of us has more");
            return Err(format!(
                "the queues here and yours are not the same, first {queue}: write the same [[queue]] into all configurations, for \
                 their shares hold in all clusters together"
            ));
        }
        Ok(())
    }
}

/// Passes letters between this global master's loop and the master of a cluster, until the connection breaks.
pub async fn serve_cluster(
    joined: Joined,
    federation: Federation,
    cluster: ClusterId,
    handle: &Handle,
    remote: &Arc<RemoteNodes>,
) -> io::Error {
    let Joined { incarnation, link, .. } = joined;
    let (parcels_in, parcels) = mpsc::unbounded_channel();
    let (wire_in, wire) = mpsc::unbounded_channel();
    let Some(route) = handle.routes().add(PeerId::Cluster(cluster), parcels_in) else {
        return io::Error::other("there is another connection to it");
    };
    if handle.send(Input::ClusterConnected { cluster, incarnation }).is_err() {
        return stopping();
    }
    let clock = handle.clock();
    let conversation = link.converse(parcels, wire, move || clock.now());
    remote.add_cluster(cluster, wire_in.clone());
    // A master speaks for itself and for its nodes.
    let may_say = move |letter: &Letter| match letter.from {
        Address::Master => {
            !matches!(&letter.message, Message::ToGlobalMaster(ToGlobalMaster::Told(told)) if told.cluster != cluster)
        }
        Address::Node(node) => federation.has(node) && federation.cluster_of(node) == cluster,
        _ => false,
    };
    let end = exchange(conversation, wire_in, handle, remote, may_say).await;
    remote.remove_cluster(cluster);
    let _ = handle.send(Input::ClusterDisconnected { cluster });
    drop(route);
    end
}

/// What a global master may say: it speaks for itself and for the managers of its jobs.
pub(super) fn may_say(federation: Federation, global: GlobalId) -> impl Fn(&Letter) -> bool {
    move |letter| match letter.from {
        Address::GlobalMaster(sender) => sender == global,
        Address::JobManager(job) => federation.admitted_by(job) == global,
        _ => false,
    }
}

/// Takes what the other side says until the connection breaks.
pub(super) async fn exchange(
    mut conversation: Conversation,
    answers: mpsc::UnboundedSender<Outgoing>,
    handle: &Handle,
    remote: &Arc<RemoteNodes>,
    may_say: impl Fn(&Letter) -> bool,
) -> io::Error {
    let served = Arc::new(Semaphore::new(MOST_SERVED));
    loop {
        match conversation.next().await {
            Ok(Wire::Mail(letters)) => {
                let own = letters.into_iter().filter(&may_say).collect();
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
                tokio::spawn(answer_in_turn(places, id, piece, answers.clone()));
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
            Ok(Wire::Alive | Wire::Hosts(_) | Wire::Log { .. } | Wire::Present { .. } | Wire::All { .. }) => {}
            Err(error) => return error,
        }
    }
}

fn stopping() -> io::Error {
    io::Error::other("it is stopping")
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
    fn who_means_another_federation_is_told_where_they_differ() {
        let own = introduction();
        assert_eq!(introduction().check(&own), Ok(()));
        let mut kinds = Kinds::new();
        kinds.add("fpga").unwrap();
        for (other, said) in [
            (
                GlobalIntroduction { federation: Federation::new(3, 2, 11).unwrap(), ..introduction() },
                "with 10 numbers",
            ),
            (GlobalIntroduction { global: GlobalId(2), ..introduction() }, "global masters 0 to 1, and not 2"),
            (GlobalIntroduction { cluster: ClusterId(0), ..introduction() }, "this is cluster 2, and not cluster 0"),
            (GlobalIntroduction { preset: "megha-plus".to_owned(), ..introduction() }, "goes by the preset megha"),
            (GlobalIntroduction { kinds, ..introduction() }, "resources are [], and yours [fpga]"),
            (GlobalIntroduction { queues: own.queues[..1].to_vec(), ..introduction() }, "not the same, first root.a"),
        ] {
            let refused = other.check(&own).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn a_global_master_speaks_for_itself_and_the_managers_of_its_jobs() {
        let may_say = may_say(introduction().federation, GlobalId(1));
        let says = |from| {
            let message = Message::ToMaster(ToMaster::CannotLaunch { why: String::new() });
            may_say(&Letter { from, to: Address::Master, message })
        };
        assert!(says(Address::GlobalMaster(GlobalId(1))) && says(Address::JobManager(JobId(2))));
        assert!(!says(Address::GlobalMaster(GlobalId(0))) && !says(Address::JobManager(JobId(1))));
        assert!(!says(Address::Node(NodeId(1))) && !says(Address::Master));
    }
}
