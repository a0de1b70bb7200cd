use super::*;
use crate::files::{FileStore, Incoming, Left};
use amalgam_core::vocabulary::{Digest, Fetched};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use tempfile::TempDir;
use tokio::net::TcpStream;

const SOURCE_NODE: NodeId = NodeId(1);
const READER_NODE: NodeId = NodeId(2);
const LOOPBACK: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

/// A node with a file that listens for others.
struct Source {
    state: TempDir,
    port: Port,
    file: StoredFile,
}

impl Source {
    async fn with(bytes: usize) -> Source {
        let state = tempfile::tempdir().unwrap();
        let file = put(state.path(), bytes);
        let port = Port::new(state.path().to_owned(), SOURCE_NODE, FilesAddress::default()).unwrap();
        port.listen(LOOPBACK).await.unwrap();
        Source { state, port, file }
    }

    /// The address, as another node is told it.
    async fn ready(&self, pass: &Pass) -> String {
        let visit = Visit { reader: READER_NODE, file: self.file, pass: pass.clone() };
        match self.port.expect(visit).await {
            Expected::Ready { address } => address,
            other => panic!("{other:?}"),
        }
    }

    fn store(&self) -> FileStore {
        FileStore::of(self.state.path(), SOURCE_NODE)
    }
}

fn put(state: &Path, bytes: usize) -> StoredFile {
    let contents: Vec<u8> = (0..bytes).map(|at| (at / 3 % 253) as u8).collect();
    fs::write(state.join("o"), contents).unwrap();
    FileStore::of(state, SOURCE_NODE).put(&Left::find(state, "o").unwrap(), false).unwrap()
}

fn incoming(state: &Path) -> Incoming {
    FileStore::of(state, READER_NODE).incoming().unwrap()
}

async fn fetched(address: &str, pass: &Pass, file: StoredFile, incoming: Incoming) -> (Fetched, Option<Incoming>) {
    let Visited::Open(channel, opened) = visit(address, pass, incoming.bytes()).await.unwrap() else {
        panic!("the file is there");
    };
    tokio::task::spawn_blocking(move || receive(channel, &opened, file, incoming)).await.unwrap().unwrap()
}

async fn refusal(address: &str, pass: &Pass, offset: u64) -> String {
    visit(address, pass, offset).await.err().expect("it is refused").to_string()
}

/// A frame without content, as a peer that does not know the protocol could send it.
async fn stranger(address: &str, sent: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    received
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_fetched_with_a_pass_and_the_rest_of_another_from_where_it_stopped() {
    let source = Source::with(5_000_001).await;
    let reader = tempfile::tempdir().unwrap();
    let pass = Pass::new().unwrap();
    let address = source.ready(&pass).await;
    let (outcome, rest) = fetched(&address, &pass, source.file, incoming(reader.path())).await;
    assert!(outcome == Fetched::Done && rest.is_none());
    let here = FileStore::of(reader.path(), READER_NODE);
    assert!(here.has(&source.file.digest, 5_000_001));
    let written = |store: &FileStore| store.written(&source.file.digest).unwrap();
    assert_eq!(written(&here), written(&source.store()));

    here.remove(&source.file.digest);
    let mut partial = incoming(reader.path());
    let start = source.store().read(&source.file.digest, 0, 3_000_000).unwrap().unwrap();
    partial.write(&start).unwrap();
    let pass = Pass::new().unwrap();
    let address = source.ready(&pass).await;
    assert_eq!(fetched(&address, &pass, source.file, partial).await.0, Fetched::Done);
    assert!(here.has(&source.file.digest, 5_000_001));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_pass_of_this_transfer_opens_the_port_and_only_once() {
    let source = Source::with(100).await;
    let reader = tempfile::tempdir().unwrap();
    let pass = Pass::new().unwrap();
    let address = source.ready(&pass).await;
    let unknown = "the pass is wrong, was used or has expired";
    assert!(refusal(&address, &Pass::new().unwrap(), 0).await.contains(unknown));
    // Somebody who knows the number, and not the secret, does not use it up.
    let forged = Pass { number: pass.number, ..Pass::new().unwrap() };
    assert!(refusal(&address, &forged, 0).await.contains(unknown));
    assert!(refusal(&address, &pass, 101).await.contains("the file has 100 bytes, fewer than 101"));
    for sent in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"\x16\x03\x01\x00\x05hello"] {
        let received = stranger(&address, sent).await;
        // An alert of TLS, at most: seven bytes.
        assert!(received.len() <= 7, "{received:?}");
    }
    assert_eq!(fetched(&address, &pass, source.file, incoming(reader.path())).await.0, Fetched::Done);
    assert!(refusal(&address, &pass, 0).await.contains(unknown), "it was used");
    // Another node, with a secret of its own under the same number, does not take it.
    let other = Source::with(200).await;
    let unannounced = other.ready(&Pass { secret: auth::hex(&[0; 32]), ..pass.clone() }).await;
    assert!(refusal(&unannounced, &pass, 0).await.contains(unknown));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_is_sent_to_two_nodes_at_once_and_those_that_got_it_are_named() {
    let source = Source::with(5 << 20).await;
    let expect = |reader: u32| {
        let visit = Visit { reader: NodeId(reader), file: source.file, pass: Pass::new().unwrap() };
        async { (visit.pass.clone(), source.port.expect(visit).await) }
    };
    let (pass, first) = expect(2).await;
    let Expected::Ready { address } = first else { panic!("{first:?}") };
    assert!(matches!(expect(3).await.1, Expected::Ready { .. }));
    assert_eq!(expect(4).await.1, Expected::Busy(vec![]));
    let reader = tempfile::tempdir().unwrap();
    assert_eq!(fetched(&address, &pass, source.file, incoming(reader.path())).await.0, Fetched::Done);
    // The source learns that the file is stored just after that.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while expect(4).await.1 == Expected::Busy(vec![]) && std::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(expect(5).await.1, Expected::Busy(vec![READER_NODE]));
    source.store().remove(&source.file.digest);
    assert_eq!(expect(6).await.1, Expected::Absent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_arrived_before_the_source_stopped_is_kept_and_a_wrong_file_is_not() {
    let source = Source::with(1_000_000).await;
    let reader = tempfile::tempdir().unwrap();
    let longer = StoredFile { bytes: 2_000_000, ..source.file };
    let wrong = StoredFile { digest: Digest([7; 32]), ..source.file };
    for (file, outcome, kept) in [(longer, Fetched::CutShort, Some(1_000_000)), (wrong, Fetched::Wrong, None)] {
        let pass = Pass::new().unwrap();
        let address = source.ready(&pass).await;
        let (ended, rest) = fetched(&address, &pass, file, incoming(reader.path())).await;
        assert_eq!((ended, rest.map(|rest| rest.bytes())), (outcome, kept));
    }
}

#[tokio::test]
async fn a_port_listens_where_it_is_told_to() {
    let state = tempfile::tempdir().unwrap();
    let port = |listen, advertise: Option<&str>| {
        let advertise = advertise.map(str::to_owned);
        Port::new(state.path().to_owned(), SOURCE_NODE, FilesAddress { listen, advertise }).unwrap()
    };
    let file = put(state.path(), 10);
    let expected = |port: Port, local| async move {
        port.listen(local).await.unwrap();
        port.listen(local).await.unwrap();
        port.expect(Visit { reader: READER_NODE, file, pass: Pass::new().unwrap() }).await
    };
    let anywhere = Listen::At("0.0.0.0:0".parse().unwrap());
    assert_eq!(expected(port(Listen::Nowhere, None), LOOPBACK).await, Expected::NotListening);
    assert_eq!(expected(port(Listen::TowardServer, None), None).await, Expected::NotListening);
    let Expected::Ready { address } = expected(port(anywhere, None), LOOPBACK).await else { panic!("it listens") };
    assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"), "{address}");
    let told = Expected::Ready { address: "head:1".to_owned() };
    assert_eq!(expected(port(anywhere, Some("head:1")), LOOPBACK).await, told);
    let taken = port(Listen::At("192.0.2.1:7435".parse().unwrap()), None).listen(None).await.unwrap_err();
    assert!(taken.to_string().contains("cannot listen for files at 192.0.2.1:7435"), "{taken}");
}
