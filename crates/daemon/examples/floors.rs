//! Prints the floors of this machine: `cargo run --release -p amalgam-daemon --example floors`.

use amalgam_daemon::bench::{disk_floor, launch_floor};
use amalgam_daemon::executor::{self, EnforcementChoice, ExecutorConfig};
use std::error::Error;

const LAUNCHES: u32 = 1_500;
/// Of each pair the one with the median ratio is shown.
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|argument| argument == "executor").is_some() {
        return Ok(executor::run(ExecutorConfig::parse(arguments)?)?);
    }
    let dir = std::env::temp_dir().join(format!("amalgam-floors-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let program = std::env::current_exe()?;
    for slots in [2, 8] {
        for enforcement in [EnforcementChoice::None, EnforcementChoice::Polling, EnforcementChoice::Auto] {
            // In turns, so that whatever else the machine does meets both.
            let mut rates = Vec::new();
            let mut mechanism = None;
            for _ in 0..ROUNDS {
                let bare = launch_floor::bare_loop(LAUNCHES, slots)?;
                let executor = ["executor".into()];
                let through = launch_floor::through_executor(LAUNCHES, slots, enforcement, &dir, &program, &executor)?;
                mechanism = through.mechanism;
                rates.push((bare.per_second(), through.per_second()));
            }
            rates.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
            let (bare, through) = rates[ROUNDS / 2];
            let mechanism = mechanism.map_or("none".to_owned(), |mechanism| format!("{mechanism:?}"));
            let ratio = through / bare;
            println!("{slots} slots, {mechanism}: bare {bare:.0}/s, executor {through:.0}/s, {ratio:.2} of bare");
        }
    }
    println!("fdatasync of 256 bytes: {:?}", disk_floor::fdatasync_floor(&dir, 500)?);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
