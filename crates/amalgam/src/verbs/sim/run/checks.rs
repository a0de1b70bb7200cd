//! Checks of the arguments before a simulated run, and of its results.

use super::arguments::{BesideArg, ClusterArgs, RunArgs};
use super::{World, selfish};
use crate::failure::{Failure, Result};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::JobId;
use amalgam_core::why::counted;
use amalgam_daemon::config::Config;
use amalgam_sim::{Outcome, Results, Subject};
use amalgam_workload::trace::Workload;

/// Checks what the runs read, as far as options require it.
pub(super) fn check_worlds(args: &RunArgs, worlds: &[World]) -> Result<()> {
    if args.world.replicas.is_some() {
        worlds.iter().try_for_each(|world| check_inputs(&world.workload))?;
    }
    if args.strict {
        worlds.iter().try_for_each(|world| check_workload(&world.workload))?;
    }
    if let Some(subject) = args.story {
        worlds.iter().try_for_each(|world| check_subject(subject, &world.workload))?;
    }
    Ok(())
}

/// Checks that the presets suit the other options and the number of nodes.
pub(super) fn check_presets(args: &RunArgs, configs: &[Config], nodes: usize) -> Result<()> {
    let presets: Vec<Preset> = configs.iter().map(|config| config.preset).collect();
    if let Some(BesideArg { preset: other, .. }) = &args.beside {
        check_shares(&presets, *other)?;
    }
    check_federation(&args.cluster, &presets, nodes)?;
    let federated = configs.iter().filter(|config| config.preset.is_federated());
    federated
        .map(|config| config.queues.check_federated(args.cluster.federation().1))
        .try_for_each(|checked| checked.map_err(|error| Failure::usage(error.problem, error.remedy)))?;
    if args.against_selfish {
        let yields = |preset: &Preset| selfish(*preset).is_some();
        let what = "in which they do, with altruism above 0";
        check_compares("--against-selfish", &presets, yields, "jobs never yield", what)?;
    }
    if args.against_oracle {
        let allows = |preset: &Preset| preset.entitled().is_some();
        check_compares("--against-oracle", &presets, allows, "jobs are allowed nothing", "in which they are")?;
    }
    Ok(())
}

/// Whether jobs of the other preset can share a cluster with each of these presets.
fn check_shares(presets: &[Preset], other: Preset) -> Result<()> {
    let shares = |own: &Preset| own.beside(other.name()).map(drop);
    let Err((what, remedy)) = presets.iter().try_for_each(shares) else { return Ok(()) };
    let suitable = Preset::all().find(|own| own.name() != other.name() && shares(own).is_ok());
    match suitable.filter(|_| presets.len() > 1) {
        Some(own) => {
            let what = format!(
                "--beside needs one preset whose cluster {} can share, and these are {}",
                other.name(),
                presets.len()
            );
            Err(Failure::usage(what, format!("name one, such as `--preset {}`", own.name())))
        }
        None => Err(Failure::usage(what, remedy)),
    }
}

/// Clusters and global masters need a preset of federations, and no cluster may be empty.
fn check_federation(args: &ClusterArgs, presets: &[Preset], nodes: usize) -> Result<()> {
    let names = || Preset::FEDERATED.map(Preset::name).join(", ");
    if (args.clusters.is_some() || args.globals.is_some()) && !presets.iter().any(|preset| preset.is_federated()) {
        let what = "--clusters and --globals are for presets of federations";
        return Err(Failure::usage(what, format!("choose one with --preset: {}", names())));
    }
    let clusters = usize::from(args.federation().0);
    if nodes.div_ceil(clusters) * (clusters - 1) >= nodes {
        let what = format!("{nodes} nodes in {clusters} clusters of equally many leave one without any");
        return Err(Failure::usage(what, "give fewer clusters, or more nodes"));
    }
    Ok(())
}

/// Checks that an option compares something: at least one preset has the property that the others lack (`never`).
fn check_compares(
    option: &str,
    presets: &[Preset],
    has: impl Fn(&Preset) -> bool,
    never: &str,
    what: &str,
) -> Result<()> {
    if presets.iter().any(&has) {
        return Ok(());
    }
    let names: Vec<&str> = presets.iter().map(|preset| preset.name()).collect();
    let problem = format!("{option} compares nothing here: {never} under {}", names.join(", "));
    let with: Vec<&str> = Preset::all().filter(&has).map(Preset::name).collect();
    Err(Failure::usage(problem, format!("name a preset {what} ({}), or leave it out", with.join(", "))))
}

/// Whether the workload has inputs that can be stored on nodes.
fn check_inputs(workload: &Workload) -> Result<()> {
    let mut stages = workload.jobs.iter().flat_map(|job| &job.spec.stages);
    if stages.any(|stage| !stage.input_kib.is_empty()) {
        return Ok(());
    }
    let what = format!("`{}` has no sizes of inputs, so no inputs can be stored on nodes", workload.name);
    Err(Failure::usage(what, "use -w input=MB, for each second of a task's run time, or leave out --replicas"))
}

fn check_workload(workload: &Workload) -> Result<()> {
    let Some(first) = workload.malformed.first.first() else { return Ok(()) };
    let what =
        format!("{} of the workload are malformed; the first: {first}", counted(workload.malformed.count, "line"));
    Err(Failure::new(what, "correct the file, or leave out --strict to continue without such lines"))
}

/// Whether the subject of the story exists.
fn check_subject(subject: Subject, workload: &Workload) -> Result<()> {
    let JobId(id) = match subject {
        Subject::Job(job) => job,
        Subject::Task(task) => task.job,
    };
    let jobs = workload.jobs.len();
    let job = usize::try_from(id).ok().and_then(|id| workload.jobs.get(id.checked_sub(1)?));
    let Some(job) = job else {
        let remedy = format!("jobs count from 1 in the order of their arrival: 1 to {jobs}");
        return Err(Failure::usage(format!("no job {id}: the workload has {}", counted(jobs as u64, "job")), remedy));
    };
    let Subject::Task(task) = subject else { return Ok(()) };
    let stages = &job.spec.stages;
    let Some(stage) = stages.get(task.stage as usize) else {
        let what = format!("no stage {} of job {id}, which has {}", task.stage, counted(stages.len() as u64, "stage"));
        return Err(Failure::usage(what, "stages count from 0"));
    };
    let tasks = stage.tasks.len();
    if task.index >= tasks {
        let what = format!("no task {task}: its stage has {}", counted(u64::from(tasks), "task"));
        return Err(Failure::usage(what, "tasks count from 0"));
    }
    Ok(())
}

/// Failures of a strict run.
pub(super) fn check_fits(run: &Outcome) -> Result<()> {
    let Results { preset, refused_jobs, .. } = &run.results;
    let Some(first) = refused_jobs.first() else { return Ok(()) };
    let what = format!("{preset}: a job can never run on these nodes: {first}");
    Err(Failure::new(what, "give larger nodes, or leave out --strict to continue without such jobs"))
}

/// A run without any job is an error.
pub(super) fn check_any_fits(runs: &[Outcome], workload: &Workload) -> Result<()> {
    let is_empty = |run: &Outcome| run.results.refused_jobs.len() >= workload.jobs.len();
    if !runs.iter().all(is_empty) {
        return Ok(());
    }
    match runs.first().and_then(|run| run.results.refused_jobs.first()) {
        Some(first) => {
            let jobs = counted(workload.jobs.len() as u64, "job");
            let what = format!(
                "{jobs} can never run on these nodes, and `{}` has no other; the first: {first}",
                workload.name
            );
            Err(Failure::new(what, "give larger nodes with --cpus and --memory, or nodes that have what the jobs need"))
        }
        None => {
            let what = format!("`{}` has no jobs, so there is nothing to simulate", workload.name);
            Err(Failure::usage(what, "name another --workload, or options of it that leave some jobs in"))
        }
    }
}

pub(super) fn check_ends(run: &Outcome) -> Result<()> {
    let Results { preset, unfinished_jobs, failed_jobs, .. } = &run.results;
    if *unfinished_jobs > 0 {
        let what = format!("{preset}: {} had not ended", counted(*unfinished_jobs, "job"));
        return Err(Failure::new(what, "give more time with --until, or leave out --strict"));
    }
    if *failed_jobs > 0 {
        let what = format!("{preset}: {} failed", counted(*failed_jobs, "job"));
        return Err(Failure::new(what, "let tasks be tried again with -w retries=N, or leave out --strict"));
    }
    Ok(())
}
