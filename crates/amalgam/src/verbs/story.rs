//! `amalgam story`

use crate::client::Query;
use crate::connection::Connection;
use crate::failure::Result;
use crate::selectors::Target;
use crate::{discovery, show};
use amalgam_daemon::api::StoryLine;
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam story last          the story of your newest job
  amalgam story 7.count       to the tasks of one stage, and to the job
  amalgam story 7.count.3     to one task, and to the job")]
pub struct StoryArgs {
    /// JOB, JOB.STAGE, JOB.STAGE.PLACE, JOB.STAGE.FIRST-LAST, or an attempt such as 7-1-3
    #[arg(value_parser = Target::parse)]
    target: Target,
    /// Print the interface's JSON
    #[arg(long)]
    json: bool,
}

pub fn execute(args: StoryArgs, connection: &Connection) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    let id = args.target.job(&client)?;
    let meant = args.target.find(&client, &client.job(id)?)?;
    let mut query = Query::default();
    match (meant.stage, meant.index()) {
        (Some(stage), Some(index)) => query.add("task", Some(&format!("{stage}.{index}"))),
        (stage, _) => query.add("stage", stage.map(|stage| stage.to_string()).as_deref()),
    }
    let mut lines: Vec<StoryLine> = client.list(&format!("/v1/jobs/{id}/story"), &query)?;
    // Records about the whole job concern all of its tasks.
    let place = |task: &String| task.rsplit('.').next().and_then(|place| place.parse().ok());
    lines.retain(|line| line.task.as_ref().and_then(place).is_none_or(|place| meant.has(place)));
    if args.json {
        show::json(&lines)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = lines.iter().map(|line| {
        let about = [&line.task, &line.attempt, &line.node].into_iter().flatten();
        let about: Vec<&str> = about.map(String::as_str).collect();
        let row = format!("{}  {:<18} {:<28} {}", line.at, line.kind, about.join(" "), line.text);
        format!("{}\n", show::visible(&row))
    });
    show::print(&text.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}
