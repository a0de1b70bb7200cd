//! Tokens: they prove to a node that a launch comes from a process that may launch there, and that it was not altered.
//!
//! Processes that place work have the root key; a node has a key that is derived from it. The cryptography is passed in as a
//! [`Mac`].

use super::resources::WIDTH;
use super::{AttemptId, ExecutionType, GrantId, NodeId, ProbeId, Resources, TaskId, TaskShape};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A secret key. Its holder can make tokens.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key(pub [u8; 32]);

/// The first bytes of a seal.
pub type Tag = [u8; 16];

/// Tokens expire by generations, which their issuer counts, so that no clocks are compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Generation(pub u32);

/// Valid for one [`Allocation`] at one node, until its generation expires.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Token {
    pub generation: Generation,
    pub tag: Tag,
}

/// What a token is valid for: one attempt of one task, the grant or probe under which it takes the node's resources, and their
/// amounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation<'a> {
    pub attempt: AttemptId,
    pub task: TaskId,
    pub grant: Option<GrantId>,
    pub probe: Option<ProbeId>,
    pub shape: &'a TaskShape,
}

/// A message authentication code over words, supplied by the driver of the roles.
#[derive(Clone, Copy)]
pub struct Mac {
    /// The seal of the words, which cannot be computed without the key.
    pub seal: fn(&Key, &[u64]) -> [u8; 32],
    /// Whether the seal of the words starts with the tag; in constant time where that matters.
    pub verify: fn(&Key, &[u64], &Tag) -> bool,
}

/// What a process that places work needs to make tokens.
#[derive(Clone, Copy)]
pub struct Sealing {
    /// Drawn anew for each incarnation of a process, so that tokens of another incarnation or another cluster are not valid.
    pub root: Key,
    pub mac: Mac,
}

/// No allocation starts with this word, so the input of a node's key is never that of a token.
const NODE_KEY: u64 = u64::from_le_bytes(*b"node key");

/// The number of words of a generation and an allocation, which is constant.
const WORDS: usize = 12 + WIDTH / 2;

impl Sealing {
    /// The key with which this node verifies tokens.
    pub fn node_key(&self, node: NodeId) -> Key {
        Key((self.mac.seal)(&self.root, &[NODE_KEY, u64::from(node.0)]))
    }

    pub fn token(&self, node: NodeId, generation: Generation, allocation: &Allocation) -> Token {
        let seal = (self.mac.seal)(&self.node_key(node), &words(generation, allocation));
        let mut tag = Tag::default();
        tag.copy_from_slice(&seal[..size_of::<Tag>()]);
        Token { generation, tag }
    }
}

impl Mac {
    /// Whether the token was made with the key for this allocation.
    pub fn verifies(&self, key: &Key, token: &Token, allocation: &Allocation) -> bool {
        (self.verify)(key, &words(token.generation, allocation), &token.tag)
    }

    /// Mixes key and words well and cheaply. It is not secure: it is for simulated time and for tests.
    pub const MIXING: Mac = Mac { seal: mixed, verify: |key, words, tag| mixed(key, words).starts_with(tag) };
}

fn words(generation: Generation, allocation: &Allocation) -> [u64; WORDS] {
    let Allocation { attempt, task, grant, probe, shape } = allocation;
    let TaskShape { resources: Resources(amounts), execution } = shape;
    let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let present = |is_some: bool, epoch: u32| pair(u32::from(is_some), epoch);
    let execution = match execution {
        ExecutionType::Guaranteed => 0,
        ExecutionType::Opportunistic => 1,
        ExecutionType::Auto => 2,
    };
    let of_grant = grant.unwrap_or_default();
    let of_probe = probe.unwrap_or_default();
    let mut words = [0; WORDS];
    words[..12].copy_from_slice(&[
        u64::from(generation.0),
        attempt.job.0,
        pair(attempt.epoch.0, attempt.number),
        task.job.0,
        pair(task.stage, task.index),
        present(grant.is_some(), of_grant.epoch.0),
        of_grant.number,
        u64::from(of_grant.slot),
        present(probe.is_some(), of_probe.epoch.0),
        of_probe.job.0,
        u64::from(of_probe.number),
        execution,
    ]);
    for (word, amounts) in words[12..].iter_mut().zip(amounts.chunks_exact(2)) {
        *word = pair(amounts[0], amounts[1]);
    }
    words
}

fn mixed(key: &Key, words: &[u64]) -> [u8; 32] {
    let keys = key.0.chunks_exact(8).map(|bytes| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    // Each step is injective, so any word that differs changes the result.
    let state =
        keys.chain(words.iter().copied()).fold(0, |state, word| (state ^ word).wrapping_mul(ODD).rotate_left(29));
    let mut seal = [0; 32];
    for (number, bytes) in (0..).zip(seal.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&stirred(state ^ number).to_le_bytes());
    }
    seal
}

/// Half of its bits are set, with no pattern (the golden ratio).
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A step of splitmix64.
fn stirred(state: u64) -> u64 {
    let mut mix = state.wrapping_add(ODD);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ (mix >> 31)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Epoch, JobId};

    const SEALING: Sealing = Sealing { root: Key([7; 32]), mac: Mac::MIXING };
    const NODE: NodeId = NodeId(3);
    const GENERATION: Generation = Generation(5);

    fn shape() -> TaskShape {
        TaskShape { resources: Resources::new(1_000, 512), execution: ExecutionType::Guaranteed }
    }

    fn allocation(shape: &TaskShape) -> Allocation<'_> {
        let job = JobId(1);
        Allocation {
            attempt: AttemptId { job, epoch: Epoch(2), number: 4 },
            task: TaskId { job, stage: 0, index: 9 },
            grant: Some(GrantId { epoch: Epoch(2), number: 8, slot: 6 }),
            probe: None,
            shape,
        }
    }

    #[test]
    fn a_token_is_valid_for_one_allocation_at_one_node_in_one_generation() {
        let (shape, key) = (shape(), SEALING.node_key(NODE));
        let honest = allocation(&shape);
        let token = SEALING.token(NODE, GENERATION, &honest);
        let verifies = |key: &Key, token: &Token, allocation: &Allocation| Mac::MIXING.verifies(key, token, allocation);
        assert!(verifies(&key, &token, &honest));

        assert!(!verifies(&SEALING.node_key(NodeId(4)), &token, &honest), "another node");
        let other_incarnation = Sealing { root: Key([8; 32]), ..SEALING };
        assert!(!verifies(&other_incarnation.node_key(NODE), &token, &honest), "another incarnation of the server");
        let later = Token { generation: Generation(6), ..token };
        assert!(!verifies(&key, &later, &honest), "another generation");
        for byte in 0..size_of::<Tag>() {
            let mut tag = token.tag;
            tag[byte] ^= 1;
            assert!(!verifies(&key, &Token { tag, ..token }, &honest), "byte {byte}");
        }
    }

    #[test]
    fn any_alteration_is_detected() {
        let shape = shape();
        let honest = allocation(&shape);
        let token = SEALING.token(NODE, GENERATION, &honest);
        let (attempt, task) = (honest.attempt, honest.task);
        let grant = honest.grant.unwrap();
        let probe = ProbeId { job: JobId(0), epoch: Epoch(0), number: 0 };
        let mut shapes = vec![TaskShape { execution: ExecutionType::Opportunistic, ..shape.clone() }];
        shapes.extend((0..WIDTH).map(|kind| {
            let amount = shape.resources.0[kind] + 1;
            TaskShape { resources: shape.resources.with(kind, amount), ..shape.clone() }
        }));
        let mut altered = vec![
            Allocation { attempt: AttemptId { job: JobId(2), ..attempt }, ..honest },
            Allocation { attempt: AttemptId { epoch: Epoch(3), ..attempt }, ..honest },
            Allocation { attempt: AttemptId { number: 5, ..attempt }, ..honest },
            Allocation { task: TaskId { job: JobId(2), ..task }, ..honest },
            Allocation { task: TaskId { stage: 1, ..task }, ..honest },
            Allocation { task: TaskId { index: 8, ..task }, ..honest },
            Allocation { grant: None, ..honest },
            Allocation { grant: Some(GrantId { epoch: Epoch(3), ..grant }), ..honest },
            Allocation { grant: Some(GrantId { number: 9, ..grant }), ..honest },
            Allocation { grant: Some(GrantId { slot: 7, ..grant }), ..honest },
            Allocation { probe: Some(probe), ..honest },
        ];
        altered.extend(shapes.iter().map(|shape| Allocation { shape, ..honest }));
        let key = SEALING.node_key(NODE);
        for allocation in altered {
            assert!(!Mac::MIXING.verifies(&key, &token, &allocation), "{allocation:?}");
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", Key([65; 32])), "Key(..)");
    }
}
