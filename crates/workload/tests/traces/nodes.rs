//! Nodes with attributes, and constraints of tasks.

use crate::support::{Samples, has_note, public, try_read};
use amalgam_core::vocabulary::resources::GPU;
use amalgam_core::vocabulary::{Constraint, Resources};
use amalgam_workload::trace::{Node, WorkloadError, read_nodes};

fn nodes(nodes: &str, options: &str) -> Result<Vec<Node>, WorkloadError> {
    let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    read_nodes(nodes, &options.split_whitespace().filter_map(pair).collect::<Vec<_>>())
}

fn met(nodes: &[Node], constraint: &str) -> usize {
    let constraint = Constraint::parse(constraint).unwrap();
    nodes.iter().filter(|node| constraint.is_met_by(&node.attributes)).count()
}

#[test]
fn gpu_nodes_have_their_model_as_an_attribute() {
    let samples =
        Samples::one("n.csv", "sn,cpu_milli,memory_mib,gpu,model\na,32000,262144,0,\nb,96000,786432,8,V100M32\n");
    let read = nodes(&format!("openb:{}", samples.path("n.csv")), "").unwrap();
    assert_eq!(read[0].resources.basic, Resources::new(32_000, 262_144));
    assert_eq!(read[1].resources.basic.0[GPU], 8_000);
    assert_eq!(met(&read, "gpu-model=V100M32"), 1);
    let milli = nodes(&format!("openb:{}", samples.path("n.csv")), "gpu-unit=thousandths").unwrap();
    assert_eq!(milli[1].resources.custom, [("gpu-milli".to_owned(), 8_000)]);
    samples.add("n.csv", "sn,cpu_milli\na,1\n");
    let error = nodes(&format!("openb:{}", samples.path("n.csv")), "").unwrap_err();
    assert!(error.problem.ends_with("n.csv: line 2: the line has 2 fields, not 5"), "{error}");
}

#[test]
fn nodes_may_be_assigned_to_racks_of_equal_size_and_keep_their_attributes() {
    let read = nodes("drawn:10", "racks=4 shares=1").unwrap();
    let racks: Vec<&str> = read.iter().map(|node| node.attributes.get("rack").unwrap()).collect();
    assert_eq!(racks, ["0", "0", "0", "1", "1", "2", "2", "2", "3", "3"]);
    assert_eq!(met(&read, "c1=1"), 10);
    assert_eq!(nodes("drawn:10", "").unwrap()[0].attributes.get("rack"), None);
    assert!(nodes("drawn:3", "racks=4").unwrap_err().problem.contains("3 nodes cannot be in 4 racks"));
    assert!(nodes("drawn:3", "racks=0").unwrap_err().problem.contains("`racks`"));
}

#[test]
fn bit_vectors_are_attributes() {
    let text = r#"{"LMs": {"1": {"LM_id": "1", "partitions": {"1": ["0b101", "0b011"]}}}}"#;
    let samples = Samples::one("c.json", text);
    let path = format!("bit-vectors:{}", samples.path("c.json"));
    let read = nodes(&path, "cpus=4 memory=8GiB").unwrap();
    assert_eq!((read.len(), met(&read, "c1=1"), met(&read, "c2=1")), (3, 2, 2));
    assert_eq!(read[0].attributes.get("c2"), None);
    assert_eq!(read[2].resources.basic, Resources::new(4_000, 8_192));
    assert_eq!(nodes(&path, "count=100").unwrap().len(), 100);
    samples.add("c.json", text.replace("0b011", "0b01"));
    assert!(nodes(&path, "").unwrap_err().problem.contains("partition 1-1: the vectors differ in length"));
}

#[test]
fn drawn_nodes_meet_constraints_in_the_requested_shares() {
    let drawn = nodes("drawn:10000", "shares=0.25,1,0 cpus=uniform:1-8 memory=4GiB seed=3").unwrap();
    assert_eq!(drawn, nodes("drawn:10000", "shares=0.25,1,0 cpus=uniform:1-8 memory=4GiB seed=3").unwrap());
    assert!((2_300..2_700).contains(&met(&drawn, "c1=1")));
    assert_eq!((met(&drawn, "c2=1"), met(&drawn, "c3=1")), (10_000, 0));
    assert!(drawn.iter().all(|node| (1_000..=8_000).contains(&node.resources.basic.cpu_millis())));
    assert!(nodes("drawn:10", "shares=2").unwrap_err().remedy.contains("from 0 to 1"));
    assert_eq!(nodes("drwn:10", "").unwrap_err().remedy, "did you mean `drawn`?");
    assert_eq!(nodes("drawn:10", "cpu=3").unwrap_err().remedy, "did you mean `cpus`?");
}

#[test]
fn errors_about_numbers_of_nodes_and_cores_state_the_allowed_range() {
    for count in ["0", "1.5", "-3", "ten", "1000001", "99999999999"] {
        for text in [count.to_owned(), format!("drawn:{count}")] {
            let error = nodes(&text, "").unwrap_err();
            assert_eq!(error.problem, format!("`{count}` is not a number of nodes"));
            assert!(error.remedy.starts_with("write a count from 1 to 1000000, or FORMAT:PATH with one of openb"));
        }
    }
    assert_eq!(nodes("3", "").unwrap().len(), 3);
    assert_eq!(nodes("openb", "").unwrap_err().problem, "the path is missing after `openb`");
    for cpus in ["0", "0.0001", "uniform:0-2", "1e9"] {
        let error = nodes("3", &format!("cpus={cpus}")).unwrap_err();
        assert!(error.problem.starts_with("node option `cpus`: ") && error.remedy.contains("from 0.001"), "{error}");
    }
    assert_eq!(nodes("3", "colour=3").unwrap_err().problem, "unknown node option `colour`");
    assert!(nodes("3", "count=1000001").is_err());
}

fn tables() -> Samples {
    let samples = Samples::one("task_constraint_percent.csv", "task_cluster,c1,c2\n1,100,0\n2,0,50\n");
    samples.add("task_cluster_occurrence.csv", "task_cluster,type1,type2\n1,1,0.5\n2,0,0.5\n");
    samples
}

#[test]
fn constraints_are_drawn_from_the_tables() {
    let samples = tables();
    let options = format!("jobs=8000 constraints={} constrained=0.5", samples.path(""));
    let workload = try_read("synthetic", &options).unwrap();
    let with = |text: &str| {
        let jobs = workload.jobs.iter();
        jobs.filter(|job| job.spec.stages[0].constraints.iter().map(ToString::to_string).eq([text])).count()
    };
    // Half of the stages are constrained. Of those, cluster 1 has 3/4 and always c1, cluster 2 has 1/4 and c2 half the
    // time.
    assert!((2_800..3_200).contains(&with("c1=1")), "{}", with("c1=1"));
    assert!((430..570).contains(&with("c2=1")), "{}", with("c2=1"));
    assert!(has_note(&workload, "0.5 of the stages got constraints"));
}

#[test]
fn tables_with_different_task_clusters_are_refused() {
    let samples = tables();
    samples.add("task_cluster_occurrence.csv", "task_cluster,type1\n1,1\n");
    let error = try_read("synthetic", &format!("constraints={}", samples.path(""))).unwrap_err();
    assert!(error.problem.contains("do not have the same task clusters"), "{error}");
}

#[test]
fn the_public_nodes_have_their_known_sizes() {
    let Some(path) = public("flat/alibaba_gpu2023/openb_node_list_all_node.csv") else { return };
    let read = nodes(&format!("openb:{path}"), "").unwrap();
    assert_eq!((read.len(), met(&read, "gpu-model=G2")), (1_523, 549));

    let Some(path) = public("constraints/megha_config_G5L5S10000_C.json.gz") else { return };
    let read = nodes(&format!("bit-vectors:{path}"), "").unwrap();
    assert_eq!((read.len(), met(&read, "c21=1")), (10_000, 10_000));

    let Some(path) = public("constraints") else { return };
    let workload = try_read("synthetic", &format!("jobs=1000 constrained=1 constraints={path}")).unwrap();
    let constraints: usize = workload.jobs.iter().map(|job| job.spec.stages[0].constraints.len()).sum();
    assert!((1_400..2_500).contains(&constraints), "about two for each: {constraints}");
}
