use super::*;

const OWN: NodeId = NodeId(0);
const JOB: JobId = JobId(1);

/// With room for three files of one byte each, which arrive in this order.
fn dropped(files: &[(u8, Origin)]) -> Vec<u8> {
    let mut node = Files::new(3);
    for &(name, origin) in files {
        node.take_in(OWN, StoredFile { digest: Digest([name; 32]), bytes: 1 }, origin);
        node.admit(OWN);
        node.check_invariants();
    }
    node.effects.drop.iter().map(|digest| digest.0[0]).collect()
}

#[test]
fn copies_that_other_nodes_have_are_dropped_before_files_that_are_only_here() {
    use Origin::{Fetched, Found, Left, Unread};
    assert_eq!(dropped(&[(1, Left(JOB)), (2, Left(JOB)), (3, Left(JOB)), (4, Left(JOB))]), [1]);
    assert_eq!(dropped(&[(1, Left(JOB)), (2, Fetched), (3, Found), (4, Fetched), (5, Left(JOB))]), [2, 3]);
    let unread = [(1, Fetched), (2, Left(JOB)), (3, Left(JOB)), (4, Unread(JOB)), (5, Unread(JOB)), (6, Left(JOB))];
    assert_eq!(dropped(&unread), [4, 5, 1], "files without readers are dropped first");
}

/// A reader of these files of one byte each.
fn add(node: &mut Files, number: u32, is_opportunistic: bool, files: &[u8]) -> AttemptId {
    let id = AttemptId { job: JOB, number, ..AttemptId::default() };
    let input = |name: &u8| {
        let (path, digest) = (name.to_string(), Digest([*name; 32]));
        InputFile { path, digest, bytes: 1, holders: vec![NodeId(1)] }
    };
    node.add_reader(OWN, id, files.iter().map(input).collect(), is_opportunistic, &[]);
    node.check_invariants();
    id
}

#[test]
fn guaranteed_readers_have_priority_also_if_they_became_guaranteed() {
    let mut node = Files::new(1);
    let ids = [(0, true), (1, true), (2, true), (3, false)]
        .map(|(number, is_opportunistic)| add(&mut node, number, is_opportunistic, &[number as u8]));
    node.guarantee(OWN, ids[2]);
    node.check_invariants();
    let line: Vec<u32> = node.line.iter().map(|(_, _, id)| id.number).collect();
    assert_eq!(line, [3, 2, 1]);
    assert_eq!(node.in_the_way(&[], &ids[..1]), Some((ids[3], vec![ids[0]])));
    assert_eq!(node.in_the_way(&ids[..1], &[]), Some((ids[3], vec![])), "it leaves without being preempted");
    node.send_back(ids[0]);
    node.admit(OWN);
    node.check_invariants();
    let line: Vec<u32> = node.line.iter().map(|(_, _, id)| id.number).collect();
    assert_eq!(line, [3, 2, 0, 1], "it is before later ones, and its file is under way");
}

#[test]
fn no_reader_is_preempted_if_that_is_not_enough_or_not_needed() {
    let mut node = Files::new(4);
    let guaranteed = add(&mut node, 0, false, &[1, 2]);
    let others = [add(&mut node, 1, true, &[1, 3]), add(&mut node, 2, true, &[4])];
    let larger = add(&mut node, 3, false, &[5, 6, 7]);
    assert_eq!(node.in_the_way(&[], &[others[1], others[0]]), None, "the guaranteed reader has two of four bytes");
    node.remove_reader(larger);
    let last = add(&mut node, 4, false, &[1, 5]);
    assert_eq!(node.in_the_way(&[], &[others[1], others[0]]), Some((last, vec![others[1]])));
    node.remove_reader(guaranteed);
    node.check_invariants();
}

#[test]
fn a_fetch_that_becomes_guaranteed_does_not_wait_for_opportunistic_ones() {
    let mut node = Files::new(20);
    let files: Vec<u8> = (0..10).collect();
    add(&mut node, 0, true, &files);
    assert_eq!(node.effects.ask.len(), MOST_FETCHES);
    let other = add(&mut node, 1, true, &files[8..]);
    node.guarantee(OWN, other);
    node.check_invariants();
    let asked: Vec<u8> = node.effects.ask.iter().map(|(file, _)| file.digest.0[0]).collect();
    assert_eq!(asked[MOST_FETCHES..], [8, 9]);
}
