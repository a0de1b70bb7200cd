//! Which peers a listening process accepts.

use super::super::JOINING;
use super::*;
use crate::transport::{JoinError, Joined, job_hosts, join};
use tokio::io::copy_bidirectional;

const TOKEN: &str = "token";

struct Listening {
    gate: Gate,
    listener: TcpListener,
    _dir: tempfile::TempDir,
}

impl Listening {
    async fn new() -> Listening {
        let dir = tempfile::tempdir().unwrap();
        let (handle, _) = job_hosts::tests::host(dir.path());
        let (secrets, side) = (Secrets::Single(TOKEN.to_owned()), Side::JobHost(HostId(1)));
        let certificate = Certificate::of_process().unwrap();
        let gate = Gate { handle, secrets, certificate, certifier: None, side, lease: None };
        Listening { gate, listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), _dir: dir }
    }

    async fn let_in(&self) -> io::Result<Guest> {
        match self.gate.let_in(self.listener.accept().await?.0, 1).await?.expect("it stays") {
            Accepted::Peer(guest) => Ok(*guest),
            Accepted::Standby(_) => panic!("it is none"),
        }
    }

    /// What both sides report of a node that joins at the address of a process between them.
    async fn joined_through(
        &self,
        address: &str,
        forward: impl Future<Output = ()>,
    ) -> (Result<Joined, JoinError>, io::Result<Guest>) {
        let both = async { tokio::join!(join_with(TOKEN, address), self.let_in()) };
        let forward = async {
            forward.await;
            std::future::pending().await
        };
        tokio::select! {
            ends = both => ends,
            () = forward => unreachable!("it waits"),
        }
    }

    fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }
}

async fn join_with(token: &str, address: &str) -> Result<Joined, JoinError> {
    join(address, &Secrets::Single(token.to_owned()), || Introduction::NodeOf { node: NodeId(7) }).await
}

/// Both sides can encrypt, and somebody between them lets neither start TLS.
#[tokio::test]
async fn a_node_does_not_join_without_tls_if_the_listener_has_it() {
    let listening = Listening::new().await;
    let middle = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, middle_address) = (listening.address(), middle.local_addr().unwrap().to_string());
    let forward = async {
        // The first connection has TLS; it is answered with the bytes of version 32.
        let (mut first, _) = middle.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut first, b"\0\0\0\x04none").await.unwrap();
        let (mut outer, _) = middle.accept().await.unwrap();
        let mut inner = TcpStream::connect(&address).await.unwrap();
        let _ = copy_bidirectional(&mut outer, &mut inner).await;
    };
    let (joined, guest) = listening.joined_through(&middle_address, forward).await;
    let refused = joined.err().unwrap().to_string();
    assert!(refused.contains("although both programs can encrypt it"), "{refused}");
    assert!(guest.is_err());
}

#[tokio::test]
async fn a_listener_refuses_a_peer_without_tls_that_has_it_and_accepts_one_of_version_32() {
    let listening = Listening::new().await;
    for (has_tls, expected) in [(true, Some(DOWNGRADED)), (false, None)] {
        let join = async {
            let stream = TcpStream::connect(listening.address()).await.unwrap();
            let mut link = Link::new(Channel::Plain(stream), STRANGERS_FRAME).unwrap();
            let challenge: Challenge = link.read().await.unwrap();
            assert_eq!(challenge.versions.newest, 32);
            let nonce = if has_tls { link.nonce().unwrap() } else { [1; 32] };
            let introduction = Introduction::NodeOf { node: NodeId(7) };
            let proof = auth::prove(TOKEN, JOINING, &challenge.nonce);
            link.write(&Hello { version: 32, introduction, nonce, proof, program: None }).await.unwrap();
            match link.read::<Answer>().await.unwrap() {
                Answer::Refused { why, .. } => Some(why),
                Answer::Accepted { .. } => None,
            }
        };
        let (refused, guest) = tokio::join!(join, listening.let_in());
        assert_eq!((refused.as_deref(), guest.is_err()), (expected, has_tls));
    }
}

#[tokio::test]
async fn a_node_with_the_token_joins_and_another_does_not() {
    let listening = Listening::new().await;
    let address = listening.address();
    let (joined, guest) = tokio::join!(join_with(TOKEN, &address), listening.let_in());
    assert!(joined.is_ok());
    assert_eq!(guest.unwrap().peer, PeerId::Node(NodeId(7)));
    let (refused, guest) = tokio::join!(join_with("another", &address), listening.let_in());
    assert!(matches!(refused, Err(JoinError::Refused { obstacle: Obstacle::Token, .. })));
    assert!(guest.is_err());
}

#[tokio::test]
async fn proofs_that_are_forwarded_to_another_connection_are_refused() {
    let listening = Listening::new().await;
    let middle = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, middle_address) = (listening.address(), middle.local_addr().unwrap().to_string());
    let forward = async {
        let certificate = Certificate::of_process().unwrap();
        let mut outer = Channel::accept(middle.accept().await.unwrap().0, &certificate).await.unwrap();
        let mut inner = Channel::connect(&address, None).await.unwrap();
        let _ = copy_bidirectional(&mut outer, &mut inner).await;
    };
    let (joined, guest) = listening.joined_through(&middle_address, forward).await;
    assert!(matches!(joined, Err(JoinError::Refused { obstacle: Obstacle::Token, .. })));
    assert!(guest.is_err());
}

#[tokio::test]
async fn a_listener_without_the_token_is_not_joined() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let impostor = async {
        let certificate = Certificate::of_process().unwrap();
        let channel = Channel::accept(listener.accept().await.unwrap().0, &certificate).await.unwrap();
        let mut link = Link::new(channel, STRANGERS_FRAME).unwrap();
        link.write(&Challenge { versions: link.versions(), nonce: [1; 32] }).await.unwrap();
        let hello: Hello = link.read().await.unwrap();
        let proof = auth::prove("another", LISTENING, &link.bound(&hello.nonce));
        let accepted = Answer::Accepted { incarnation: 1, terms: Terms::NodeOf, proof, longest_silence: None };
        link.write(&accepted).await.unwrap();
        link
    };
    let (joined, _link) = tokio::join!(join_with(TOKEN, &address), impostor);
    assert!(matches!(joined, Err(JoinError::Impostor { .. })));
}
