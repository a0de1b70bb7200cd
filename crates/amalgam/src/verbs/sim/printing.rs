//! Results of runs as text for people.

use crate::show;
use amalgam_core::why::counted;
use amalgam_sim::{
    Against, Altruism, Busy, Duplicates, Forecast, OfPreset, Oracle, Outcome, QueueExchange, Queueing, ReadFrom,
    Reading, Reference, Results, Stragglers, statistics,
};
use amalgam_workload::trace::Summary;
use std::ops::RangeInclusive;

/// Number of refused jobs that the text lists; the JSON has all.
const SHOWN: usize = 10;

/// The story, one line for each record, with the simulated time in seconds.
pub fn story(run: &Outcome) -> String {
    if run.story.is_empty() {
        return "nothing happened to it before the run ended\n\n".to_owned();
    }
    run.story.iter().map(|line| format!("{line}\n")).collect::<String>() + "\n"
}

/// One line for each preset: its run, or the means over its runs with several seeds. `runs` follow the order of the presets. A
/// value without any job or task behind it is a dash.
pub fn comparison(runs: &[&Results], seeds: &RangeInclusive<u64>) -> String {
    let mut headings =
        vec!["PRESET", "JCT MEAN", "P50", "P95", "WAIT MEAN", "P95", "MAKESPAN", "JAIN", "CPU", "MEMORY"];
    headings.extend(["PREDICTED", "WIDTH", "FAILED", "NEVER FIT", "NOT ENDED", "WALL"]);
    let several = seeds.start() < seeds.end();
    if several {
        headings.insert(2, "OF SEEDS");
    }
    let of_preset = runs.chunk_by(|one, other| one.preset == other.preset);
    let rows: Vec<Vec<String>> = of_preset.map(|runs| comparison_row(runs, several)).collect();
    let mut text = show::table(&headings, &rows);
    text += "\nseconds; Jain's index is the mean over windows of 60 s; jobs that failed, could never run or had not ended are \
             not in the means; predicted: the part of the starts within their predicted range, which \
             is to be nine of ten, and the median width of the ranges\n";
    let (events, mattered): (u64, u64) =
        (runs.iter().map(|run| run.events).sum(), runs.iter().map(|run| run.mattered).sum());
    if mattered < events {
        text += &format!(
            "of {events} events {mattered} mattered; the others were reports of nodes that said nothing new\n"
        );
    }
    text += &runs.first().map(|run| misfits(run)).unwrap_or_default();
    if several {
        let (first, last) = (seeds.start(), seeds.end());
        text += &format!("means over the seeds {first} to {last}, and of the first column the least and the most\n");
    }
    for run in runs {
        if let Some(found) = &run.oracle {
            let seed = if several { format!(", seed {}", run.seed) } else { String::new() };
            text += &format!("{}{seed}: {}", run.preset, oracle(found));
        }
        let Some(found) = &run.altruism else { continue };
        match (several, &found.against_selfish) {
            (false, _) => text += &format!("{}: {}", run.preset, altruism(found)),
            // Of many runs only the requested comparison is printed.
            (true, Some(selfish)) => {
                text += &format!("{}, seed {}:\n{}", run.preset, run.seed, against_selfish(selfish));
            }
            (true, None) => {}
        }
    }
    if several {
        return text;
    }
    for run in runs.iter().filter(|run| !run.side_by_side.is_empty()) {
        text += &format!("\nwith {} as the cluster's preset:\n{}", run.preset, side_by_side(&run.side_by_side));
    }
    text + &runs.first().and_then(|run| run.reference.as_ref()).map(bounds).unwrap_or_default()
}

/// Donated and received resources, and the comparison of jobs' ends.
fn altruism(found: &Altruism) -> String {
    let number = show::number;
    let sum = |of: fn(&QueueExchange) -> f64| number(found.queues.iter().map(of).sum());
    let mut text = match found.queues.is_empty() {
        true => "no job ended that gave or received\n".to_owned(),
        false => format!(
            "jobs gave {} CPU-s and {} GiB-s of what they were entitled to, and received {} and {}\n",
            sum(|queue| queue.given_cpu_s),
            sum(|queue| queue.given_memory_gib_s),
            sum(|queue| queue.received_cpu_s),
            sum(|queue| queue.received_memory_gib_s)
        ),
    };
    text += &against("the ends with their shares to themselves, as estimated", &found.against_alone);
    if let Some(selfish) = &found.against_selfish {
        text += &against_selfish(selfish);
    }
    text
}

fn against_selfish(selfish: &Against) -> String {
    const WHAT: &str = "the same run without altruism";
    match selfish.jobs {
        0 => format!("  against {WHAT}: no job succeeded in both\n"),
        _ => against(WHAT, selfish),
    }
}

fn against(what: &str, Against { jobs, earlier, later, jct_s, speedup }: &Against) -> String {
    if *jobs == 0 {
        return String::new();
    }
    let number = show::number;
    format!(
        "  against {what} (mean {} s, p95 {} s): of {} {earlier} ended earlier and {later} later; a job is {} times as fast in \
         the median, {} at p95\n",
        number(jct_s.mean),
        number(jct_s.p95),
        counted(*jobs, "job"),
        number(speedup.p50),
        number(speedup.p95)
    )
}

fn comparison_row(runs: &[&Results], several: bool) -> Vec<String> {
    // The mean over the runs that have jobs or tasks behind the number.
    let mean = |number: fn(&Results) -> (u64, f64)| {
        let numbers: Vec<f64> = runs
            .iter()
            .filter_map(|run| Some(number(run)).filter(|(behind, _)| *behind > 0))
            .map(|(_, number)| number)
            .collect();
        (!numbers.is_empty()).then(|| statistics::mean(&numbers))
    };
    let seconds = |number| mean(number).map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"));
    let share = |number: fn(&Results) -> f64| statistics::mean(&runs.iter().map(|run| number(run)).collect::<Vec<_>>());
    let sum = |number: fn(&Results) -> u64| runs.iter().map(|run| number(run)).sum::<u64>().to_string();
    let jain = mean(|run| (u64::from(run.jain.mean.is_some()), run.jain.mean.unwrap_or_default()));
    let mut cells = vec![
        runs[0].preset.clone(),
        seconds(|run| (run.succeeded_jobs, run.jct_s.mean)),
        seconds(|run| (run.succeeded_jobs, run.jct_s.p50)),
        seconds(|run| (run.succeeded_jobs, run.jct_s.p95)),
        seconds(|run| (run.started_tasks, run.task_wait_s.mean)),
        seconds(|run| (run.started_tasks, run.task_wait_s.p95)),
        seconds(|run| (run.succeeded_jobs, run.makespan_s)),
        jain.map_or_else(|| "-".to_owned(), |jain| format!("{jain:.3}")),
        show::percent(share(|run| run.utilization.cpu)),
        show::percent(share(|run| run.utilization.memory)),
        mean(|run| (run.forecast.predicted, run.forecast.covered)).map_or_else(|| "-".to_owned(), show::percent),
        seconds(|run| (run.forecast.predicted, run.forecast.median_width_s)),
        sum(|run| run.failed_jobs),
        sum(|run| run.refused_jobs.len() as u64),
        sum(|run| run.unfinished_jobs),
        format!("{:.2}", share(|run| run.wall_seconds)),
    ];
    if several {
        let means = || runs.iter().filter(|run| run.succeeded_jobs > 0).map(|run| run.jct_s.mean);
        let (least, most) =
            means().fold((f64::INFINITY, 0.0_f64), |(least, most), mean| (least.min(mean), most.max(mean)));
        cells.insert(2, if least > most { "-".to_owned() } else { format!("{least:.2}..{most:.2}") });
    }
    cells
}

/// Comparison of jobs' ends with an oracle's.
fn oracle(found: &Oracle) -> String {
    let number = show::number;
    let over = |summary: &Summary| format!("{} s ({})", number(summary.mean), number(found.jct_s.mean / summary.mean));
    format!(
        "{} that were allowed something took {} s in the mean; an oracle, and how often that goes into it: within what they \
         were allowed {}, within the most of it {}, without a limit {}\n",
        counted(found.jobs, "job"),
        number(found.jct_s.mean),
        over(&found.as_allowed_s),
        over(&found.most_allowed_s),
        over(&found.unlimited_s)
    )
}

fn bounds(reference: &Reference) -> String {
    let number = show::number;
    format!(
        "no scheduler beats a makespan of {} s and a mean completion of {} s;\n\
         a greedy one that knows everything, on one machine as large as all: {} s and {} s\n",
        number(reference.critical_path_s.max(reference.work_over_capacity_s)),
        number(reference.srpt_mean_jct_s),
        number(reference.greedy_makespan_s),
        number(reference.greedy_mean_jct_s)
    )
}

pub fn table(results: &Results) -> String {
    let number = show::number;
    let mut text = format!(
        "{} on {} nodes: {} jobs, {} tasks in {} s simulated, {} s of work here, {} events\n\n",
        results.preset,
        results.nodes,
        results.jobs,
        results.tasks,
        number(results.simulated_seconds),
        number(results.wall_seconds),
        results.events,
    );
    let row = |name: &str, behind: u64, of: &Summary| {
        let cell = |value: f64| if behind == 0 { "-".to_owned() } else { number(value) };
        let cells = [of.mean, of.p50, of.p75, of.p95, of.p99].map(cell);
        [vec![name.to_owned()], cells.to_vec()].concat()
    };
    let rows = [
        row("job completion", results.succeeded_jobs, &results.jct_s),
        row("task wait", results.started_tasks, &results.task_wait_s),
    ];
    text += &show::table(&["SECONDS", "MEAN", "P50", "P75", "P95", "P99"], &rows);
    let parts = &results.allocation_s.parts;
    text += &format!(
        "\nof a task's wait: {} s in the queue, {} s processing, {} s communication, {} s at the node\n",
        number(parts.queue),
        number(parts.processing),
        number(parts.communication),
        number(parts.node)
    );
    if results.succeeded_jobs > 0 {
        let (makespan, rate) = (number(results.makespan_s), number(results.tasks_per_second));
        text += &format!("makespan {makespan} s, {rate} tasks a second\n");
    }
    text += &format!(
        "{:.1} % of the CPUs, {:.1} % of the memory in use\n",
        results.utilization.cpu * 100.0,
        results.utilization.memory * 100.0
    );
    let Busy { server, managers, nodes } = results.busy;
    let managers = match managers {
        0.0 => String::new(),
        busy => format!(", the busiest of the job managers' for {}", show::percent(busy)),
    };
    let (server, agent) = (show::percent(server), show::percent(nodes));
    text +=
        &format!("the server's process was busy for {server} of the time{managers}, the busiest agent for {agent}\n");
    if let (Some(mean), Some(least)) = (results.jain.mean, results.jain.min) {
        text += &format!("fairness (Jain, 60 s windows): mean {mean:.3}, least {least:.3}\n");
    }
    text += &predictions(results);
    text += &results.reading.as_ref().map(reading).unwrap_or_default();
    text += &side_by_side(&results.side_by_side);
    text += &results.queueing.as_ref().map(queueing).unwrap_or_default();
    text += &results.altruism.as_ref().map(altruism).unwrap_or_default();
    text += &results.reference.as_ref().map(bounds).unwrap_or_default();
    text += &results.oracle.as_ref().map(oracle).unwrap_or_default();
    text += &misfits(results);
    for (jobs, what) in [(results.failed_jobs, "failed"), (results.unfinished_jobs, "not ended")] {
        if jobs > 0 {
            text += &format!("{} had {what}\n", counted(jobs, "job"));
        }
    }
    text
}

/// Where tasks read their inputs.
fn reading(reading: &Reading) -> String {
    let row = |name: &str, of: &ReadFrom| {
        let parts = [
            of.tasks_on_node,
            of.tasks_in_rack,
            of.tasks_elsewhere,
            of.bytes_on_node,
            of.bytes_in_rack,
            of.bytes_elsewhere,
        ];
        let cells = [of.tasks.to_string(), show::number(of.bytes as f64 / 1e9), show::number(of.longer_s)];
        [vec![name.to_owned()], cells.to_vec(), parts.map(show::percent).to_vec()].concat()
    };
    let all = [("blocks", &reading.blocks), ("of earlier tasks", &reading.earlier_tasks), ("all", &reading.all)];
    let rows: Vec<Vec<String>> = all.iter().filter(|(_, of)| of.tasks > 0).map(|(name, of)| row(name, of)).collect();
    let headings = ["READ", "TASKS", "GB", "LONGER S", "ON NODE", "RACK", "BEYOND", "GB ON NODE", "RACK", "BEYOND"];
    format!("\n{}\n", show::table(&headings, &rows))
}

/// Accuracy of the predictions made before attempts started.
fn predictions(results: &Results) -> String {
    let (number, Forecast { predicted, covered, early, late, median_width_s, .. }) = (show::number, results.forecast);
    let mut text = String::new();
    if predicted > 0 {
        let [covered, early, late] = [covered, early, late].map(|part| part * 100.0);
        text += &format!(
            "starts predicted, 9 of 10 to be within the range: {covered:.1} % were, {early:.1} % were earlier and {late:.1} % \
             later; half of the ranges are at most {} s wide\n",
            number(median_width_s)
        );
    }
    let runs = &results.run_times;
    if runs.predicted > 0 {
        let (good, all) = (runs.within_a_quarter * 100.0, 100.0 * runs.predicted as f64 / runs.attempts as f64);
        text += &format!("run times predicted to within a quarter: {good:.1} %, of the {all:.1} % with a prediction\n");
    }
    text
}

/// Waiting times of attempts in nodes' queues.
fn queueing(queueing: &Queueing) -> String {
    let number = show::number;
    let Queueing { guaranteed_wait_s, guaranteed, opportunistic_wait_s, opportunistic, .. } = queueing;
    let wait = |name: &str, attempts: u64, wait: &Summary| {
        let (mean, p95, p99) = (number(wait.mean), number(wait.p95), number(wait.p99));
        format!(
            "{attempts} {name} attempts waited at their nodes for {mean} s in the mean, {p95} at p95, {p99} at p99\n"
        )
    };
    let mut text = wait("guaranteed", *guaranteed, guaranteed_wait_s);
    text += &wait("promoted", queueing.promoted, &queueing.promoted_wait_s);
    text += &wait("opportunistic", *opportunistic, opportunistic_wait_s);
    // A scheduler that tries node after node makes no estimates.
    if queueing.duplicates.explored == 0 {
        text += &format!(
            "guaranteed and promoted ones as estimated to within a second: {:.1} %; off by {} s at p95\n",
            queueing.within_a_second * 100.0,
            number(queueing.error_s.p95)
        );
    }
    let Duplicates { underestimated, above_mean, waited_long, explored, first, upgraded } = queueing.duplicates;
    let explored = if explored > 0 { format!("{explored} to try another node, ") } else { String::new() };
    text += &format!(
        "{}: {explored}{underestimated} whose wait grew, {above_mean} and {waited_long} that wait or waited longer than their \
         stage; {first} were first; beside them {upgraded} that became guaranteed elsewhere\n",
        counted(queueing.duplicates.all(), "duplicate")
    );
    let Stragglers { slow, caught, slow_by_much, caught_by_much, duplicates, first, slow_inputs } = queueing.stragglers;
    if slow + duplicates > 0 {
        let (of, slow) = (counted(duplicates, "duplicate"), counted(slow, "attempt"));
        text += &format!(
            "{of} of running attempts, of which {first} were done first; {slow} ran slowly, of which {caught} got one, and \
             {caught_by_much} of the {slow_by_much} that lost a second beyond another try\n"
        );
    }
    if queueing.yields > 0 {
        let (yields, of) = (counted(queueing.yields, "time"), &queueing.yielded_s);
        text += &format!(
            "opportunistic ones left their CPU to guaranteed ones {yields}, for {} s in the mean, {} at p95\n",
            number(of.mean),
            number(of.p95)
        );
    }
    if slow_inputs > 0 {
        text += &format!("{} ran once more for files that were slow to come\n", counted(slow_inputs, "finished task"));
    }
    text
}

/// Results for the jobs of each preset.
fn side_by_side(all: &[OfPreset]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let row = |of: &OfPreset| {
        let cell = |behind: u64, value: f64| if behind == 0 { "-".to_owned() } else { show::number(value) };
        let (jct, wait) = (|value| cell(of.succeeded_jobs, value), |value| cell(of.started_tasks, value));
        let mut row = vec![of.preset.clone(), of.jobs.to_string()];
        row.extend([of.jct_s.mean, of.jct_s.p50, of.jct_s.p95].map(jct));
        row.extend([of.task_wait_s.mean, of.task_wait_s.p95].map(wait));
        row.extend([of.launched, of.duplicated].map(|count| count.to_string()));
        row
    };
    let headings = ["SIDE BY SIDE", "JOBS", "JCT MEAN", "P50", "P95", "WAIT MEAN", "P95", "ATTEMPTS", "DUPLICATES"];
    format!("\n{}\n", show::table(&headings, &all.iter().map(row).collect::<Vec<_>>()))
}

/// The first jobs that can never run, by name.
fn misfits(results: &Results) -> String {
    let refused = &results.refused_jobs;
    if refused.is_empty() {
        return String::new();
    }
    let mut text =
        format!("{} can never run on these nodes and were left out:\n", counted(refused.len() as u64, "job"));
    refused.iter().take(SHOWN).for_each(|refused| text += &format!("  {refused}\n"));
    if refused.len() > SHOWN {
        text += &format!("  and {} more\n", refused.len() - SHOWN);
    }
    text
}
