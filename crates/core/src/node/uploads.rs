//! The files that a node sends to other nodes. A large file is sent to few nodes at once. The others are asked to wait, and are
//! told which nodes have received it, so that of many nodes that want one file not all wait for the first one that had it.
//!
//! Few at once, because each of them is then complete, and can send the file itself, sooner than if all shared this node's
//! bandwidth.

use crate::vocabulary::{Digest, NodeId, StoredFile};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Files up to this size are always sent: asking another node would take as long.
pub const SMALL: u64 = 4 << 20;
/// Maximum number of nodes to which one file is sent at once.
const MOST_OF_ONE: usize = 2;
/// Maximum number of large files that are sent at once.
const MOST: usize = 8;
/// Maximum number of nodes that are named to one that has to wait.
const MOST_NAMED: usize = 4;
/// Maximum number of receivers that are remembered for a file, and of files.
const MOST_RECEIVERS: usize = 16;
const MOST_FILES: usize = 256;

/// The files that one node sends.
#[derive(Debug, Default)]
pub struct Uploads {
    files: BTreeMap<Digest, Sending>,
    asks: u64,
    complete: u64,
}

#[derive(Debug, Default)]
struct Sending {
    to: BTreeSet<NodeId>,
    /// Nodes that have received it, the oldest first.
    received: VecDeque<NodeId>,
    /// The larger, the more recently it was asked for.
    last_ask: u64,
}

/// The answer to a node that wants a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is sent. The end has to be reported.
    Now,
    /// It has to ask again, or one of these nodes, which have received the file.
    Later(Vec<NodeId>),
}

impl Uploads {
    /// A node wants a file that is here.
    pub fn ask(&mut self, file: StoredFile, reader: NodeId) -> Turn {
        if file.bytes <= SMALL {
            return Turn::Now;
        }
        self.asks += 1;
        let others: usize = self.files.values().map(|sending| sending.to.len()).sum();
        let sending = self.files.entry(file.digest).or_default();
        sending.last_ask = self.asks;
        // Had it the file still, it would not ask.
        sending.received.retain(|node| *node != reader);
        if sending.to.contains(&reader) || sending.to.len() < MOST_OF_ONE && others < MOST {
            sending.to.insert(reader);
            self.forget_oldest();
            return Turn::Now;
        }
        let named = sending.named(self.asks);
        self.forget_oldest();
        Turn::Later(named)
    }

    /// A transfer that `ask` permitted has ended.
    pub fn end(&mut self, file: StoredFile, reader: NodeId, is_complete: bool) {
        let Some(sending) = self.files.get_mut(&file.digest) else { return };
        if sending.to.remove(&reader) && is_complete {
            self.complete += 1;
            sending.received.push_back(reader);
            if sending.received.len() > MOST_RECEIVERS {
                sending.received.pop_front();
            }
        }
    }

    /// How many times a large file was sent completely.
    pub fn complete(&self) -> u64 {
        self.complete
    }

    fn forget_oldest(&mut self) {
        if self.files.len() <= MOST_FILES {
            return;
        }
        let idle = self.files.iter().filter(|(_, sending)| sending.to.is_empty());
        let oldest = idle.min_by_key(|(_, sending)| sending.last_ask).map(|(digest, _)| *digest);
        oldest.and_then(|digest| self.files.remove(&digest));
    }
}

impl Sending {
    /// Some receivers, others for each ask.
    fn named(&self, ask: u64) -> Vec<NodeId> {
        let first = ask as usize % self.received.len().max(1);
        let from_first = self.received.iter().cycle().skip(first);
        from_first.take(self.received.len().min(MOST_NAMED)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u8) -> StoredFile {
        StoredFile { digest: Digest([number; 32]), bytes: SMALL + 1 }
    }

    fn later(nodes: &[u32]) -> Turn {
        Turn::Later(nodes.iter().copied().map(NodeId).collect())
    }

    #[test]
    fn a_file_is_sent_to_few_at_once_and_the_others_are_told_who_has_it() {
        let mut uploads = Uploads::default();
        let answers = [1, 2, 3, 1].map(|reader| uploads.ask(file(1), NodeId(reader)));
        assert_eq!(answers, [Turn::Now, Turn::Now, later(&[]), Turn::Now], "an ask may be repeated");
        uploads.end(file(1), NodeId(1), true);
        uploads.end(file(1), NodeId(2), false);
        assert_eq!([3, 4, 5].map(|reader| uploads.ask(file(1), NodeId(reader))), [Turn::Now, Turn::Now, later(&[1])]);
        uploads.end(file(1), NodeId(3), true);
        uploads.end(file(1), NodeId(4), true);
        // Node 1 has lost the file.
        assert_eq!(
            [1, 5, 6].map(|reader| uploads.ask(file(1), NodeId(reader))),
            [Turn::Now, Turn::Now, later(&[3, 4])]
        );
        assert_eq!(uploads.ask(StoredFile { bytes: SMALL, ..file(1) }, NodeId(7)), Turn::Now, "small files never wait");
    }

    #[test]
    fn all_files_together_have_a_limit_and_few_are_remembered() {
        let mut uploads = Uploads::default();
        let now = (0..20).filter(|number| uploads.ask(file(*number), NodeId(1)) == Turn::Now).count();
        assert_eq!(now, MOST);
        (0..20).for_each(|number| uploads.end(file(number), NodeId(1), true));
        for number in 0..2 * MOST_FILES {
            let file = StoredFile {
                digest: Digest([number as u8, (number >> 8) as u8].repeat(16).try_into().unwrap()),
                ..file(0)
            };
            assert_eq!(uploads.ask(file, NodeId(1)), Turn::Now);
            (0..2 * MOST_RECEIVERS as u32).for_each(|reader| {
                uploads.ask(file, NodeId(reader));
                uploads.end(file, NodeId(reader), true);
            });
            uploads.end(file, NodeId(1), true);
        }
        let known = uploads.files.values().map(|sending| sending.received.len()).max();
        assert_eq!((uploads.files.len(), known), (MOST_FILES, Some(MOST_RECEIVERS)));
    }
}
