//! `sim run`: printed results, tables, scenarios, the page, and errors.

use crate::support::Scene;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;
use std::fs::{self, File};

const SMALL: [&str; 12] = [
    "sim",
    "run",
    "--nodes",
    "4",
    "--cpus",
    "4",
    "--workload",
    "synthetic:layered",
    "-w",
    "jobs=6",
    "-w",
    "tasks=uniform:1-5",
];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL, more].concat()
}

/// The result without the values that depend on the machine instead of the seed.
fn result(scene: &Scene, arguments: &[&str]) -> Value {
    let mut result: Value = scene.json(arguments);
    for key in ["wall_seconds", "peak_memory_bytes"] {
        assert!(result[key].as_f64().unwrap() > 0.0, "{key}");
        result[key] = Value::Null;
    }
    result
}

#[test]
fn one_object_has_the_promised_keys_and_a_seed_gives_it_again() {
    let scene = Scene::new();
    let first = result(&scene, &small(&["--seed", "7"]));
    for key in [
        "preset",
        "seed",
        "nodes",
        "jobs",
        "tasks",
        "events",
        "simulated_seconds",
        "makespan_s",
        "jct_s",
        "task_wait_s",
        "allocation_s",
        "tasks_per_second",
        "utilization",
        "jain",
        "counters",
    ] {
        assert!(!first[key].is_null(), "{key}");
    }
    for (key, parts) in [
        ("jct_s", vec!["mean", "p50", "p75", "p95", "p99"]),
        ("utilization", vec!["cpu", "memory", "opportunistic"]),
        ("jain", vec!["mean", "min"]),
        ("counters", vec!["preempted", "shed", "promoted", "duplicated", "repartitioned", "refused"]),
    ] {
        assert!(parts.iter().all(|part| first[key][part].is_number()), "{key}: {}", first[key]);
    }
    let parts = &first["allocation_s"]["parts"];
    assert!(["queue", "processing", "communication", "node"].iter().all(|part| parts[part].is_number()), "{parts}");
    assert_eq!(
        (first["preset"].as_str(), first["seed"].as_u64(), first["jobs"].as_u64()),
        (Some("amalgam"), Some(7), Some(6))
    );
    assert_eq!(result(&scene, &small(&["--seed", "7"])), first);
    assert_ne!(result(&scene, &small(&["--seed", "8"])), first);
}

#[test]
fn flags_or_a_scenario_place_inputs_and_results_count_distances() {
    let scene = Scene::new();
    let flags = ["--preset", "apollo", "--racks", "2", "--replicas", "2", "-w", "input=80", "--seed", "3"];
    let by_flags = result(&scene, &small(&flags));
    let reading = &by_flags["reading"];
    for of in ["all", "blocks", "earlier_tasks"] {
        let sum: f64 = ["on_node", "in_rack", "elsewhere"]
            .map(|distance| reading[of][format!("bytes_{distance}")].as_f64().unwrap())
            .iter()
            .sum();
        assert!((sum - 1.0).abs() < 1e-9 && reading[of]["tasks"].as_u64() > Some(0), "{of}: {reading}");
    }
    let text = "nodes = 4\ncpus = 4\nworkload = 'synthetic:layered'\npreset = 'apollo'\nracks = 2\nreplicas = 2\nseed = 3\n\
                [workload-option]\njobs = 6\ntasks = 'uniform:1-5'\ninput = 80\n";
    fs::write(scene.work().join("placed.toml"), text).unwrap();
    assert_eq!(result(&scene, &["sim", "run", "placed.toml"]), by_flags);
    assert!(result(&scene, &small(&["--seed", "3"]))["reading"].is_null());
    let output = scene.ok(&small(&flags));
    assert!(output.contains("BEYOND") && output.contains("of earlier tasks"), "{output}");
}

#[test]
fn inputs_that_cannot_be_placed_are_refused_with_a_remedy() {
    let scene = Scene::new();
    for (flags, output) in [
        (&["--replicas", "3"][..], "use -w input=MB"),
        (&["--replicas", "0", "-w", "input=80"], "0 is not in 1..=100"),
        (&["--block", "1MiB", "-w", "input=80"], "--replicas <N>"),
        (&["--read-rates", "160,100,80", "-w", "input=80"], "--replicas <N>"),
        (&["--replicas", "3", "-w", "input=80", "--read-rates", "80,100,160"], "three whole numbers of MB a second"),
        (&["--racks", "9"], "4 nodes cannot be in 9 racks"),
    ] {
        let outcome = scene.run(&small(flags));
        assert!(outcome.code == 2 && outcome.err.contains(output), "{flags:?}: {outcome:?}");
    }
}

#[test]
fn options_about_inputs_without_effect_are_noted() {
    let scene = Scene::new();
    for (flags, output) in [
        (&["-w", "input=80"][..], "-w input has no effect without --replicas N"),
        (&["--replicas", "9", "-w", "input=80"], "note: with 4 nodes each block has as many copies"),
    ] {
        let outcome = scene.run(&small(flags));
        assert!(outcome.code == 0 && outcome.err.contains(output), "{flags:?}: {outcome:?}");
    }
    let outcome = scene.run(&small(&["--replicas", "4", "-w", "input=80"]));
    assert!(outcome.code == 0 && !outcome.err.contains("copies"), "{outcome:?}");
}

#[test]
fn seeds_run_beside_each_other_and_make_the_same_on_any_number_of_threads() {
    let scene = Scene::new();
    let runs = |threads: &str| {
        let mut runs: Value = scene.json(&small(&["--preset", "fifo,drf", "--seeds", "3..5", "--threads", threads]));
        for run in runs.as_array_mut().unwrap() {
            (run["wall_seconds"], run["peak_memory_bytes"]) = (Value::Null, Value::Null);
        }
        runs
    };
    let alone = runs("1");
    assert_eq!(runs("4"), alone);
    let order =
        alone.as_array().unwrap().iter().map(|run| (run["preset"].as_str().unwrap(), run["seed"].as_u64().unwrap()));
    let expected = [("fifo", 3), ("fifo", 4), ("fifo", 5), ("drf", 3), ("drf", 4), ("drf", 5)];
    assert_eq!(order.collect::<Vec<_>>(), expected);
    assert_eq!(alone[1], result(&scene, &small(&["--preset", "fifo", "--seed", "4"])));

    let output = scene.ok(&small(&["--preset", "fifo,drf", "--seeds", "3..5"]));
    let mean = [0, 1, 2].iter().map(|&run| alone[run]["jct_s"]["mean"].as_f64().unwrap()).sum::<f64>() / 3.0;
    let row = output.lines().find(|line| line.starts_with("fifo ")).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some(format!("{mean:.2}").as_str()), "{output}");
}

#[test]
fn several_presets_make_one_table_and_one_page() {
    let scene = Scene::new();
    let output = scene.ok(&small(&["--preset", "all", "--report", "page.html"]));
    let presets =
        ["fifo", "capacity", "drf", "sjf", "srtf", "tetris", "carbyne", "sparrow", "mercury", "apollo", "apollo-plus"];
    for preset in presets {
        assert!(output.lines().any(|line| line.split_whitespace().next() == Some(preset)), "{preset}: {output}");
    }
    let page = scene.read("page.html");
    assert!(presets.iter().all(|preset| page.contains(preset)));
    let plots = ["Job completion", "Task wait", "CPU in use over time", "Fairness over time"];
    let of_each = presets.map(|preset| format!("Nodes over time under {preset}:"));
    for heading in plots.into_iter().chain(of_each.iter().map(String::as_str)) {
        let (_, below) = page.split_once(&format!("<h2>{heading}")).unwrap_or_else(|| panic!("no `{heading}`"));
        let plot = below.split("<h2>").next().unwrap();
        assert!(plot.contains("<svg"), "nothing below `{heading}`");
    }
    // The page has to work without a network.
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"));
}

#[test]
fn a_federation_places_everything_on_stale_views_and_refusals_are_counted() {
    let scene = Scene::new();
    let jobs = ["-w", "jobs=40", "-w", "run-time=lognormal:20s:1.2", "-w", "arrival=poisson:4s"];
    let run = |more: &[&str]| result(&scene, &small(&[&jobs, more].concat()));
    let central = run(&["--preset", "fifo"]);
    for preset in ["megha", "megha-plus"] {
        let alone = run(&["--preset", preset]);
        assert_eq!(alone["counters"]["repartitioned"], 0, "one global master has all partitions");
        assert_eq!(alone["counters"]["refused"], 0, "nobody else changes what it believes");
        let many = run(&["--preset", preset, "--clusters", "2", "--globals", "3"]);
        for federation in [&alone, &many] {
            assert_eq!(federation["succeeded_jobs"], central["succeeded_jobs"]);
            assert_eq!(federation["unfinished_jobs"], 0);
            assert_eq!(federation["counters"]["lost"], 0);
        }
        let count = |counter: &str| many["counters"][counter].as_u64().unwrap();
        assert!(count("repartitioned") > 0 && count("refused") > 0, "{}", many["counters"]);
        let part = |run: &serde_json::Value, part: &str| run["allocation_s"]["parts"][part].as_f64().unwrap();
        assert!(part(&many, "communication") > part(&central, "communication"), "two hops are longer than one");
        // Only a refused launch is an additional attempt.
        assert_eq!(count("launched"), central["tasks"].as_u64().unwrap() + count("refused"));
    }
}

#[test]
fn the_default_preset_is_also_that_of_federations() {
    let scene = Scene::new();
    let jobs = ["-w", "jobs=40", "-w", "run-time=lognormal:20s:1.2", "-w", "arrival=poisson:4s"];
    let run = |more: &[&str]| result(&scene, &small(&[&jobs, more].concat()));
    let central = run(&[]);
    let federation = run(&["--clusters", "2", "--globals", "3"]);
    for run in [&central, &federation] {
        assert_eq!((run["preset"].as_str(), run["unfinished_jobs"].as_u64()), (Some("amalgam"), Some(0)));
    }
    let count = |counter: &str| federation["counters"][counter].as_u64().unwrap();
    assert!(count("repartitioned") > 0 && count("preempted") > 0, "{}", federation["counters"]);
    let tasks = central["tasks"].as_u64().unwrap();
    assert_eq!(count("launched"), tasks + count("refused") + count("preempted"), "{}", federation["counters"]);
}

#[test]
fn a_federation_that_cannot_be_is_refused() {
    let scene = Scene::new();
    let refused = |more: &[&str]| {
        let outcome = scene.run(&small(more));
        assert_eq!(outcome.code, 2, "{}", outcome.err);
        outcome.err
    };
    let clusters = refused(&["--preset", "drf", "--clusters", "2"]);
    assert!(clusters.contains("choose one with --preset: amalgam, megha, megha-plus"), "{clusters}");
    scene.write("placed.toml", "[policies]\nreserve_after = '5s'\n");
    let policies = refused(&["--config", "placed.toml", "--clusters", "2"]);
    assert!(policies.contains("`reserve_after` of [policies] have no effect in a federation"), "{policies}");
    let empty = refused(&["--preset", "megha", "--nodes", "5", "--clusters", "4"]);
    assert!(empty.contains("give fewer clusters"), "{empty}");
}

#[test]
fn jobs_that_yield_are_compared_with_the_same_jobs_without_altruism() {
    let scene = Scene::new();
    let jobs = ["-w", "jobs=40", "-w", "run-time=lognormal:20s:1.2", "-w", "arrival=poisson:4s"];
    let run = |more: &[&str]| result(&scene, &small(&[&jobs, more].concat()));
    scene.write("selfish.toml", "preset = 'carbyne'\n[policies]\naltruism = 0\n");
    let (alone, both) = (run(&["--preset", "carbyne"]), run(&["--preset", "carbyne", "--against-selfish"]));
    let selfish = run(&["--config", "selfish.toml"]);
    assert_eq!(both["jct_s"], alone["jct_s"]);
    assert_eq!(alone["altruism"]["against_selfish"], Value::Null);
    let against = &both["altruism"]["against_selfish"];
    assert_eq!((&against["jct_s"], &against["jobs"]), (&selfish["jct_s"], &selfish["succeeded_jobs"]));
    assert!(against["earlier"].as_u64() > Some(0), "{against}");
    let queue = &both["altruism"]["queues"][0];
    assert_eq!((&queue["queue"], queue["jobs"].as_u64()), (&Value::from("root.default"), Some(40)));
    assert!(queue["given_cpu_s"].as_f64() > Some(1.0) && queue["received_cpu_s"].as_f64() > Some(1.0), "{queue}");
    assert_eq!(run(&["--preset", "drf"])["altruism"], Value::Null);
    let output = scene.ok(&small(&["--preset", "drf,carbyne", "--against-selfish", "--csv", "csv"]));
    assert!(output.contains("carbyne: jobs gave ") && output.contains("the same run without altruism"), "{output}");
    let rows = scene.read("csv/jobs-carbyne.csv");
    assert!(rows.lines().next().unwrap().ends_with("alone_jct_s,selfish_jct_s"), "{rows}");
    assert!(rows.lines().skip(1).all(|row| !row.ends_with(',')), "{rows}");
}

#[test]
fn every_run_is_compared_with_one_without_altruism_or_refused() {
    let scene = Scene::new();
    let seeds = ["--preset", "drf,carbyne", "--seeds", "3..4"];
    assert!(!scene.ok(&small(&seeds)).contains("altruism"));
    let output = scene.ok(&small(&[&seeds[..], &["--against-selfish"]].concat()));
    for run in ["carbyne, seed 3:\n", "carbyne, seed 4:\n"] {
        let (_, below) = output.split_once(run).unwrap_or_else(|| panic!("no {run}: {output}"));
        assert!(below.starts_with("  against the same run without altruism (mean "), "{output}");
    }
    assert!(!output.contains("drf, seed"), "{output}");
    let cut = scene.ok(&small(&["--preset", "carbyne", "--against-selfish", "--until", "1s"]));
    assert!(cut.contains("against the same run without altruism: no job succeeded in both"), "{cut}");

    scene.write("selfish.toml", "preset = 'carbyne'\n[policies]\naltruism = 0\n");
    for (more, names) in
        [(&["--preset", "drf,sjf"][..], "never yield under drf, sjf"), (&["--config", "selfish.toml"], "under carbyne")]
    {
        let outcome = scene.run(&small(&[more, &["--against-selfish"]].concat()));
        assert!(outcome.code == 2 && outcome.err.contains(names), "{outcome:?}");
        assert!(
            outcome.err.contains("help: name a preset in which they do, with altruism above 0 (carbyne)"),
            "{outcome:?}"
        );
    }
}

#[test]
fn an_oracle_needs_no_longer_than_the_jobs_that_were_allowed_something() {
    let scene = Scene::new();
    let jobs = ["-w", "jobs=40", "-w", "run-time=lognormal:20s:1.2", "-w", "arrival=poisson:4s"];
    let run = |more: &[&str]| result(&scene, &small(&[&jobs, more].concat()));
    let (alone, both) = (run(&["--preset", "apollo"]), run(&["--preset", "apollo", "--against-oracle"]));
    assert_eq!((&both["jct_s"], &alone["oracle"]), (&alone["jct_s"], &Value::Null));
    let oracle = &both["oracle"];
    assert_eq!((&oracle["jobs"], &oracle["jct_s"]), (&Value::from(40), &alone["jct_s"]));
    let mean = |of: &str| oracle[of]["mean"].as_f64().unwrap();
    assert!(mean("jct_s") >= mean("unlimited_s"), "{oracle}");
    assert!(mean("most_allowed_s") > mean("unlimited_s") && mean("as_allowed_s") >= mean("most_allowed_s"), "{oracle}");
    let output = scene.ok(&small(&["--preset", "drf,apollo", "--against-oracle"]));
    assert!(output.contains("apollo: ") && output.contains("within the most of it "), "{output}");
    let outcome = scene.run(&small(&["--preset", "drf,sjf", "--against-oracle"]));
    assert!(outcome.code == 2 && outcome.err.contains("jobs are allowed nothing under drf, sjf"), "{outcome:?}");
    assert!(
        outcome.err.contains("help: name a preset in which they are (apollo, apollo-plus), or leave it out"),
        "{outcome:?}"
    );
}

#[test]
fn the_tables_are_equal_in_both_formats() {
    let scene = Scene::new();
    scene.ok(&small(&["--preset", "sjf", "--csv", "csv", "--parquet", "parquet"]));
    for (table, least) in [("jobs-sjf", 6), ("windows-sjf", 2)] {
        let mut csv = csv::Reader::from_path(scene.work().join(format!("csv/{table}.csv"))).unwrap();
        let headings: Vec<String> = csv.headers().unwrap().iter().map(str::to_owned).collect();
        let rows: Vec<Vec<String>> =
            csv.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
        assert!(rows.len() >= least, "{table}: {rows:?}");
        let file = File::open(scene.work().join(format!("parquet/{table}.parquet"))).unwrap();
        let parquet = SerializedFileReader::new(file).unwrap();
        let mut same = 0;
        for (row, expected) in parquet.get_row_iter(None).unwrap().zip(&rows) {
            let row = row.unwrap();
            for ((name, field), (heading, expected)) in row.get_column_iter().zip(headings.iter().zip(expected)) {
                assert_eq!(name, heading);
                let cell = match field {
                    Field::Null => String::new(),
                    Field::Str(text) => text.clone(),
                    number => number.to_string(),
                };
                let numbers = (cell.parse::<f64>(), expected.parse::<f64>());
                assert!(
                    cell == *expected || matches!(numbers, (Ok(a), Ok(b)) if a == b),
                    "{heading}: {cell}, {expected}"
                );
            }
            same += 1;
        }
        assert_eq!(same, rows.len());
    }
}

#[test]
fn a_scenario_is_its_flags_and_flags_come_before_it() {
    let scene = Scene::new();
    scene.write(
        "scenario.toml",
        "preset = 'amalgam'\nseed = 7\nnodes = 4\ncpus = 4\nworkload = 'synthetic:layered'\n\
         [workload-option]\njobs = 6\ntasks = 'uniform:1-5'\n",
    );
    let of_flags = result(&scene, &small(&["--seed", "7"]));
    assert_eq!(result(&scene, &["sim", "run", "scenario.toml"]), of_flags);
    let other = result(&scene, &["sim", "run", "scenario.toml", "--preset", "fifo", "-w", "jobs=3"]);
    assert_eq!((other["preset"].as_str(), other["jobs"].as_u64()), (Some("fifo"), Some(3)));

    scene.write("slip.toml", "nodes = 4\nworkloads = 'synthetic:layered'\n");
    let outcome = scene.run(&["sim", "run", "slip.toml"]);
    assert!(outcome.code == 2 && outcome.err.contains("slip.toml:2: unknown key `workloads`"), "{outcome:?}");
    assert!(outcome.err.contains("did you mean `workload`?"), "{outcome:?}");
    scene.write("none.toml", "nodes = 4\n");
    let outcome = scene.run(&["sim", "run", "none.toml"]);
    assert!(outcome.code == 2 && outcome.err.contains("no workload"), "{outcome:?}");
}

#[test]
fn queues_and_policies_are_those_of_a_servers_configuration() {
    let scene = Scene::new();
    scene.write("server.toml", "preset = 'capacity'\n[[queue]]\nname = 'default'\nmax_running_jobs = 1\n");
    let narrow = result(&scene, &small(&["--config", "server.toml"]));
    assert_eq!(narrow["preset"], "capacity");
    let wide = result(&scene, &small(&["--preset", "capacity"]));
    assert!(narrow["makespan_s"].as_f64() > wide["makespan_s"].as_f64(), "one job at a time takes longer");
    scene.write("server.toml", "preset = 'capacitee'\n");
    let outcome = scene.run(&small(&["--config", "server.toml"]));
    assert!(outcome.code == 2 && outcome.err.contains("server.toml:1:10: unknown preset `capacitee`"), "{outcome:?}");
    assert!(outcome.err.ends_with("\n  help: did you mean `capacity`?\n"), "{outcome:?}");
}

#[test]
fn the_policies_of_a_configuration_apply_to_the_presets_that_are_named() {
    let scene = Scene::new();
    scene.write("strict.toml", "preset = 'drf'\n[policies]\nstrict_shares = true\n[[queue]]\nname = 'default'\n");
    scene.write("random.toml", "preset = 'fifo'\n[policies]\nplacement = 'random'\n");
    // Enough work for the order to matter.
    let run = |more: &[&str]| result(&scene, &small(&[&["-w", "jobs=30"], more].concat()));
    let strict = run(&["--config", "strict.toml"]);
    assert_eq!(run(&["--config", "strict.toml", "--preset", "drf"]), strict);
    assert_ne!(run(&["--preset", "drf"]), strict);
    let random = run(&["--config", "random.toml", "--preset", "drf"]);
    assert_eq!(random["preset"], "drf");
    assert_ne!(random["jct_s"], run(&["--preset", "drf"])["jct_s"]);

    // As `dev` and `server` do.
    let outcome = scene.run(&small(&["--config", "strict.toml", "--preset", "drf,sjf"]));
    assert!(outcome.code == 2 && outcome.err.contains("strict.toml"), "{outcome:?}");
    assert!(outcome.err.contains("strict_shares is a setting of the preset drf, and not of sjf"), "{outcome:?}");
}

#[test]
fn stories_of_a_job_and_of_a_task_are_printed() {
    let scene = Scene::new();
    let output = scene.ok(&small(&["--story", "2"]));
    for part in
        ["job 2 (job-2): submitted", "task 2.0.0 granted as guaranteed work on", "process of", "job 2: job succeeded"]
    {
        assert!(output.contains(part), "{part}: {output}");
    }
    assert!(!output.contains("job 3:"), "{output}");
    let output = scene.ok(&small(&["--preset", "sparrow", "--story", "2.1.0"]));
    assert!(
        output.contains("task 2.1.0 sent as")
            && output.contains("job 2 (job-2): submitted")
            && !output.contains("2.0.0"),
        "{output}"
    );
    let late = small(&["--until", "1us", "--story", "6"]);
    assert!(scene.ok(&late).contains("nothing happened to it before the run ended"));
    assert_eq!(scene.run(&small(&["--story", "soon"])).code, 2);
    for (subject, output) in [
        (
            "9999",
            "no job 9999: the workload has 6 jobs\n  help: jobs count from 1 in the order of their arrival: 1 to 6",
        ),
        ("0", "no job 0: "),
        ("7.0.0", "no job 7: "),
        ("2.99.0", "no stage 99 of job 2, which has "),
        ("2.0.99", "no task 2.0.99: its stage has "),
    ] {
        let outcome = scene.run(&small(&["--story", subject]));
        assert!(outcome.code == 2 && outcome.out.is_empty() && outcome.err.contains(output), "{subject}: {outcome:?}");
    }
}

#[test]
fn errors_are_reported_before_the_simulation() {
    let scene = Scene::new();
    for place in ["--report=nowhere/page.html", "--csv=file/tables", "--parquet=file/tables"] {
        scene.write("file", "");
        let outcome = scene.run(&small(&[place]));
        assert!(
            outcome.code == 1 && outcome.err.contains("cannot write") && outcome.out.is_empty(),
            "{place}: {outcome:?}"
        );
    }
    let outcome = scene.run(&small(&["--csv", "/dev/null"]));
    let output = "error: cannot write tables to /dev/null: it is not a directory\n  help: name a directory; it is made if there is none\n";
    assert!(outcome.code == 1 && outcome.err.ends_with(output), "{outcome:?}");
    for wrong in ["--slowdown=nan", "--slowdown=-1", "--straggler-factor=0.5", "--heartbeat=1us", "--threads=0"] {
        let outcome = scene.run(&small(&[wrong]));
        assert!(outcome.code == 2 && outcome.err.contains("error"), "{wrong}: {outcome:?}");
    }
    // An error is the only output, without the notes of a successful run.
    scene.write("wrong.toml", "spares = true\n");
    let outcome = scene.run(&small(&["-w", "input=80", "--config", "wrong.toml"]));
    let alone = outcome.err.starts_with("error: wrong.toml:1:1: unknown key") && !outcome.err.contains("note");
    assert!(outcome.code == 2 && alone, "{outcome:?}");
    let outcome = scene.run(&small(&["--preset", "drfs"]));
    assert!(outcome.code == 2 && outcome.err.contains("known: amalgam, fifo, capacity, drf"), "{outcome:?}");
    fs::write(scene.work().join("cut.tr.gz"), [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3]).unwrap();
    let outcome = scene.run(&["sim", "run", "--workload", "hawk:cut.tr.gz"]);
    assert!(outcome.code != 0 && outcome.err.contains("cut.tr.gz"), "{outcome:?}");
}

#[test]
fn failed_jobs_are_counted_and_excluded_from_means_and_bounds() {
    let scene = Scene::new();
    let fail = ["--failures", "0.2", "--seed", "3"];
    let failed = result(&scene, &small(&fail));
    let [succeeded, failures] = ["succeeded_jobs", "failed_jobs"].map(|key| failed[key].as_u64().unwrap());
    assert!(failures > 0 && succeeded + failures == 6, "{failed}");
    assert!(failed["reference"].is_null(), "nothing is said of bounds for work that was not done");
    let outcome = scene.run(&small(&[&fail[..], &["--strict"]].concat()));
    assert!(outcome.code == 1 && outcome.err.contains("failed"), "{outcome:?}");
    let tried_again = result(&scene, &small(&[&fail[..], &["-w", "retries=20"]].concat()));
    assert_eq!(tried_again["failed_jobs"].as_u64(), Some(0));
    assert!(tried_again["counters"]["retried"].as_u64() > Some(0), "{tried_again}");
    let bound = tried_again["reference"]["srpt_mean_jct_s"].as_f64().unwrap();
    assert!(tried_again["jct_s"]["mean"].as_f64().unwrap() >= bound);
    let table = scene.ok(&small(&[&fail[..], &["--preset", "fifo,drf"]].concat()));
    let heading = table.lines().next().unwrap();
    assert!(heading.contains("FAILED") && heading.contains("NEVER FIT"), "{table}");
}

#[test]
fn jobs_that_fit_nowhere_are_named_and_stop_a_strict_run() {
    let scene = Scene::new();
    let wide = ["-w", "demand=8"];
    let outcome = scene.run(&small(&["-w", "demand=uniform:1-5,1MiB"]));
    assert!(
        outcome.code == 0 && outcome.out.contains("5 jobs can never run on these nodes and were left out"),
        "{outcome:?}"
    );
    // Without any other job there are no results.
    let outcome = scene.run(&small(&wide));
    let none = "6 jobs can never run on these nodes, and `synthetic:layered` has no other; the first: job-1";
    assert!(outcome.code == 1 && outcome.out.is_empty() && outcome.err.contains(none), "{outcome:?}");
    let outcome = scene.run(&small(&[&wide[..], &["--strict"]].concat()));
    assert!(
        outcome.code == 1
            && outcome.out.is_empty()
            && outcome.err.contains("a job can never run on these nodes: job-1"),
        "{outcome:?}"
    );
    let outcome = scene.run(&small(&["--strict", "--until", "1s"]));
    assert!(outcome.code == 1 && outcome.err.contains("had not ended"), "{outcome:?}");
}
