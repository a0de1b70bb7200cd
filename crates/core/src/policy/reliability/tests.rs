use super::*;
use crate::vocabulary::Chance;

/// A test cluster, with `in_rack` consecutive nodes in each rack, or without racks.
struct Cluster {
    model: Reliability,
    now: Instant,
}

impl Cluster {
    fn new(nodes: u32, in_rack: Option<u32>) -> Cluster {
        let mut model = Reliability::new(ReliabilitySettings::USUAL);
        for node in 0..nodes {
            model.on_join(NodeId(node), in_rack.map(|size| format!("r{}", node / size)).as_deref());
        }
        Cluster { model, now: Instant::ZERO + Duration::from_secs(1_000_000) }
    }

    fn wait(&mut self, seconds: u64) -> &mut Cluster {
        self.now += Duration::from_secs(seconds);
        self
    }

    fn fail(&mut self, node: u32) -> &mut Cluster {
        self.model.on_failure(self.now, NodeId(node), 1);
        self
    }

    fn succeed(&mut self, node: u32, attempts: u32) -> &mut Cluster {
        self.model.on_success(self.now, NodeId(node), attempts);
        self
    }

    /// In thousandths.
    fn odds(&self, node: u32) -> u64 {
        self.model.success(self.now, NodeId(node), self.model.usual(self.now)) / 1_000
    }

    fn failures(&self, node: u32) -> u32 {
        self.model.doubt(self.now, NodeId(node), MILLION).map_or(0, |doubt| doubt.failures)
    }
}

// ---- a bad machine -------------------------------------------------------------------------------------------------

#[test]
fn a_machine_that_fails_again_and_again_is_trusted_less_each_time_and_the_others_as_before() {
    let mut cluster = Cluster::new(10, None);
    assert!(cluster.model.all(cluster.now).is_empty(), "nobody has failed");
    let mut odds = Vec::new();
    for _ in 0..16 {
        cluster.wait(5).fail(3);
        odds.push(cluster.odds(3));
    }
    assert_eq!(odds[0], 800, "four of five: the prior and one failure");
    assert!(odds.is_sorted_by(|before, after| before > after), "{odds:?}");
    assert!(odds[3] < 510 && odds[15] < 220, "{odds:?}");
    assert_eq!(cluster.failures(3), 16);
    cluster.wait(5).fail(3).wait(5).fail(3);
    assert_eq!(cluster.failures(3), 16, "those before are forgotten");
    let all = cluster.model.all(cluster.now);
    assert_eq!((all.len(), &all[..3]), (4, &[1_000_000; 3][..]), "the others are sure");
}

#[test]
fn what_ended_well_speaks_for_a_node_and_a_long_past_for_no_more_than_the_last_of_it() {
    let mut cluster = Cluster::new(10, None);
    cluster.fail(2).succeed(0, 3).succeed(1, 1_000_000).fail(0).wait(60).fail(1);
    let odds = [0, 1, 2].map(|node| cluster.odds(node));
    assert!(odds[2] < odds[0] && odds[0] < odds[1] && odds[1] < 1_000, "{odds:?}");
    for _ in 0..15 {
        cluster.wait(2).fail(1);
    }
    assert!(cluster.odds(1) < 350, "{}", cluster.odds(1));
    assert_eq!(cluster.failures(1), 16);
    let before = cluster.odds(1);
    assert!(cluster.succeed(1, 8).odds(1) >= before);
    let mut long_ago = Cluster::new(10, None);
    long_ago.succeed(0, 16).wait(6_000).succeed(0, 1).succeed(1, 1).fail(0).fail(1);
    assert_eq!(long_ago.odds(0), long_ago.odds(1), "what was long ago does not come back");
}

#[test]
fn failures_fade_and_are_forgotten() {
    let mut cluster = Cluster::new(10, None);
    for _ in 0..4 {
        cluster.wait(2).fail(0);
    }
    let mut odds = Vec::new();
    for _ in 0..9 {
        odds.push(cluster.odds(0));
        cluster.wait(600);
    }
    assert!(odds.is_sorted() && odds[0] < 510, "{odds:?}");
    assert!((660..675).contains(&odds[1]), "two of the four are left: {odds:?}");
    assert!(odds[3] > 880 && odds[8] == 1_000, "{odds:?}");
}

#[test]
fn evidence_is_halved_by_each_half_life_and_never_grows() {
    let half_life = Duration::from_secs(10);
    let after = |millis| decayed(1_000, Duration::from_millis(millis), half_life);
    assert_eq!([0, 5_000, 10_000, 15_000, 20_000, 30_000].map(after), [1_000, 707, 500, 354, 250, 125]);
    assert_eq!((after(1_000_000), decayed(7, Duration::MAX, Duration::ZERO)), (0, 0));
    assert!((0..100_000).step_by(37).map(after).is_sorted_by(|before, later| before >= later));
}

#[test]
fn what_fails_at_once_fails_for_one_reason() {
    let mut cluster = Cluster::new(10, None);
    cluster.fail(0).fail(0).fail(0);
    assert_eq!((cluster.failures(0), cluster.odds(0)), (1, 800));
    cluster.wait(1).fail(0);
    assert_eq!(cluster.failures(0), 2);
}

#[test]
fn of_two_that_could_be_at_fault_each_is_so_by_half() {
    let mut cluster = Cluster::new(10, None);
    cluster.model.on_failure(cluster.now, NodeId(0), 2);
    assert!((885..895).contains(&cluster.odds(0)), "{}", cluster.odds(0));
    // A failure for which no other node could be the cause.
    cluster.fail(0);
    assert_eq!(cluster.odds(0), 800);
}

#[test]
fn a_node_that_was_repaired_is_as_good_as_any() {
    let mut cluster = Cluster::new(2, None);
    cluster.fail(0).wait(5).fail(0);
    cluster.model.forgive(NodeId(0));
    assert_eq!((cluster.odds(0), cluster.failures(0)), (1_000, 0));
}

#[test]
fn only_what_a_person_would_want_to_know_is_told() {
    let mut cluster = Cluster::new(10, None);
    cluster.succeed(0, 100).fail(0).fail(1).wait(10).fail(1).wait(3);
    let doubt = |node| cluster.model.doubt(cluster.now, NodeId(node), MILLION);
    assert_eq!(doubt(0), None, "once is nothing: {}", cluster.odds(0));
    let found = doubt(1).expect("twice and never well");
    assert_eq!((found.failures, found.since), (2, Duration::from_secs(13)));
    assert_eq!(u64::from(found.success) / 1_000, cluster.odds(1));
    assert_eq!(doubt(77), None);
}

// ---- the cluster as a whole ----------------------------------------------------------------------------------------

#[test]
fn where_most_nodes_fail_now_and_then_the_others_failures_say_less() {
    let mut cluster = Cluster::new(9, None);
    let alone = cluster.fail(0).odds(0);
    // Far apart in time, so that the failures are not an outage.
    for node in 1..6 {
        for _ in 0..3 {
            cluster.wait(70).fail(node);
        }
    }
    let usual = cluster.model.usual(cluster.now);
    assert!(usual < 800_000, "five of nine have failed: {usual}");
    assert_eq!((alone, cluster.odds(8)), (800, 1_000), "who has not failed is sure all the same");
    let beside_sure_ones = cluster.model.success(cluster.now, NodeId(0), MILLION) / 1_000;
    assert!(cluster.odds(0) + 50 < beside_sure_ones, "{} and {beside_sure_ones}", cluster.odds(0));
    let mut calm = Cluster::new(90, None);
    for node in 1..45 {
        calm.wait(70).fail(node);
    }
    assert_eq!(calm.model.usual(calm.now), 1_000_000, "the median node has not failed");
}

#[test]
fn equal_nodes_have_equal_odds_and_order_is_no_matter() {
    let mut chance = Chance::new(3, "reliability");
    let mut cluster = Cluster::new(6, None);
    for _ in 0..5 {
        cluster.wait(90);
        let first = chance.below(2_u32);
        cluster.fail(first).fail(1 - first);
    }
    assert_eq!(cluster.odds(0), cluster.odds(1));
}

// ---- outages -------------------------------------------------------------------------------------------------------

#[test]
fn an_outage_of_a_rack_is_held_against_none_of_its_nodes() {
    // Large enough that the failures are not an outage of the whole cluster.
    let mut cluster = Cluster::new(20_000, Some(40));
    for node in 0..9 {
        cluster.fail(node);
    }
    assert!((0..9).all(|node| cluster.odds(node) == 800), "nine of a rack of forty");
    cluster.wait(20).fail(9);
    assert!((0..40).all(|node| cluster.odds(node) == 1_000), "ten are an outage");
    cluster.wait(20).fail(10).fail(11).fail(50);
    assert_eq!([10, 11, 12, 50].map(|node| cluster.odds(node)), [1_000, 1_000, 1_000, 800], "another rack");
    // After the outage, failures count against the node again.
    cluster.wait(61).fail(12);
    assert_eq!(cluster.odds(12), 800);
}

#[test]
fn many_nodes_of_the_cluster_at_once_are_an_outage_whatever_their_racks() {
    let mut cluster = Cluster::new(20_000, None);
    for node in 0..19 {
        cluster.fail(7 * node);
    }
    assert_eq!(cluster.odds(7), 800);
    cluster.wait(59);
    for node in 19..3_000 {
        cluster.fail(7 * node % 20_000);
    }
    assert!(cluster.model.all(cluster.now).is_empty());
    let mut small = Cluster::new(4, Some(2));
    small.fail(0).fail(1);
    assert_eq!((small.odds(0), small.odds(1)), (800, 800), "two are no outage");
    small.fail(3);
    assert!(small.model.all(small.now).is_empty(), "three are");
}

#[test]
fn failures_that_are_far_apart_are_no_outage() {
    let mut cluster = Cluster::new(40, Some(4));
    for node in 0..4 {
        cluster.fail(node).wait(60);
    }
    assert!((0..4).all(|node| cluster.odds(node) < 900));
}

#[test]
fn bad_machines_are_no_outage_however_many_they_are() {
    let mut cluster = Cluster::new(400, Some(4));
    for _ in 0..20 {
        for node in 0..3 {
            cluster.wait(5).fail(node);
        }
    }
    let odds = [0, 1, 2].map(|node| cluster.odds(node));
    assert!(odds.iter().all(|odds| *odds < 350), "only the first failure of each was excused: {odds:?}");
    assert_eq!(cluster.odds(3), 1_000, "and their rack had one outage");
}

#[test]
fn who_goes_on_failing_after_an_outage_is_a_bad_machine() {
    let mut cluster = Cluster::new(100, None);
    for node in 0..50 {
        cluster.fail(node);
    }
    // Another attempt that was lost with it.
    cluster.fail(6);
    cluster.wait(5).fail(7).wait(5).fail(7);
    assert_eq!((cluster.odds(6), cluster.failures(7)), (1_000, 2));
}

#[test]
fn a_rack_with_one_outage_after_another_is_avoided_for_a_while() {
    let mut cluster = Cluster::new(20_000, Some(10));
    let outage = |cluster: &mut Cluster| {
        for node in 0..5 {
            cluster.fail(node);
        }
        [cluster.odds(0), cluster.odds(9), cluster.odds(10)]
    };
    assert_eq!(outage(&mut cluster), [1_000; 3]);
    cluster.wait(120);
    let [own, beside, elsewhere] = outage(&mut cluster);
    assert!((800..850).contains(&own) && own == beside && elsewhere == 1_000, "{own} {beside} {elsewhere}");
    cluster.wait(6_000);
    assert_eq!(cluster.odds(9), 999, "next to nothing");
    assert_eq!(outage(&mut cluster)[1], 999, "and the next one after a long time is a first one");
}

#[test]
fn a_node_that_moves_is_counted_in_its_new_rack() {
    let mut cluster = Cluster::new(20_000, Some(10));
    cluster.fail(0).fail(1).fail(2);
    assert!((0..3).all(|node| cluster.odds(node) == 1_000));
    for node in 10..12 {
        cluster.model.on_join(NodeId(node), Some("new"));
    }
    cluster.model.on_join(NodeId(0), Some("new"));
    cluster.fail(10).fail(11);
    assert!((10..12).all(|node| cluster.odds(node) == 1_000), "with the one that came they are three");
    cluster.wait(60).fail(20);
    cluster.model.on_join(NodeId(20), None);
    cluster.wait(60).fail(21);
    assert_eq!(cluster.odds(21), 800);
}

// ---- a bad task ----------------------------------------------------------------------------------------------------

#[test]
fn a_task_that_fails_everywhere_is_not_blamed_on_a_node() {
    let mut cluster = Cluster::new(100, None);
    let mut met = Vec::new();
    let mut worst = Vec::new();
    for node in 0..5 {
        cluster.wait(40).fail(node);
        met.push((NodeId(node), cluster.now));
        let at: Vec<(NodeId, Duration)> = met.iter().map(|(node, at)| (*node, cluster.now.since(*at))).collect();
        if at.len() > 1 {
            cluster.model.on_bad_task(cluster.now, &at);
        }
        worst.push((0..=node).map(|node| cluster.odds(node)).min().expect("one at least"));
    }
    assert_eq!(worst[0], 800);
    assert!(worst.is_sorted() && worst[1] > 935 && worst[4] > 988, "{worst:?}");
}

#[test]
fn a_bad_task_takes_no_other_failure_off_the_account() {
    let mut cluster = Cluster::new(100, None);
    cluster.fail(0).fail(0).wait(30).fail(0).wait(30).fail(1);
    let at = |ages: [u64; 2]| [(NodeId(0), Duration::from_secs(ages[0])), (NodeId(1), Duration::from_secs(ages[1]))];
    let before = cluster.odds(0);
    cluster.model.on_bad_task(cluster.now, &at([45, 0]));
    assert_eq!(cluster.odds(0), before, "nothing failed there then");
    cluster.model.on_bad_task(cluster.now, &at([60, 0]));
    assert_eq!(cluster.odds(0), before, "two attempts did");
    cluster.model.on_bad_task(cluster.now, &at([30, 0]));
    assert!(cluster.odds(0) > before && cluster.odds(1) > 900);
    cluster.model.on_bad_task(cluster.now, &[(NodeId(5_000), Duration::ZERO)]);
}

// ---- invariants ----------------------------------------------------------------------------------------------------

#[test]
fn failing_never_helps_and_neither_time_nor_success_harms() {
    for seed in 0..300 {
        let mut chance = Chance::new(seed, "reliability");
        let mut cluster = Cluster::new(12, (seed % 2 == 0).then_some(4));
        for _ in 0..120 {
            let node = chance.below(12_u32);
            let before = cluster.odds(node);
            match chance.below(6_u32) {
                0 | 1 => {
                    let was_excused = cluster.model.outages.clone();
                    cluster.fail(node);
                    // Unless it turns earlier failures into an outage.
                    let is_outage = format!("{was_excused:?}").matches("Instant").count()
                        != format!("{:?}", cluster.model.outages).matches("Instant").count();
                    assert!(cluster.odds(node) <= before || is_outage, "seed {seed}");
                }
                2 => {
                    cluster.succeed(node, 1 + chance.below(5_u32));
                    assert!(cluster.odds(node) >= before, "seed {seed}");
                }
                3 => {
                    let usual = cluster.model.usual(cluster.now);
                    cluster.wait(chance.below(300_u64));
                    let later = cluster.model.success(cluster.now, NodeId(node), usual) / 1_000;
                    // Without evidence, the estimate returns to the prior.
                    assert!(later + 1 >= before.min(usual / 1_000), "seed {seed}: {later} after {before}");
                }
                4 => cluster.model.on_bad_task(cluster.now, &[(NodeId(node), Duration::ZERO); 2]),
                _ => drop(cluster.wait(chance.below(3_u64))),
            }
            let all = cluster.model.all(cluster.now);
            assert!(all.iter().all(|success| (1..=1_000_000).contains(success)), "seed {seed}: {all:?}");
            assert!(cluster.model.nodes.iter().all(|entry| entry.failures.len() <= MOST_FAILURES));
        }
    }
}
