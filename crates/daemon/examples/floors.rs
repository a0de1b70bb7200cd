//! Prints the floors of this machine: `cargo run --release -p amalgam-daemon --example floors`.

use amalgam_daemon::bench::{disk_floor, launch_floor};
use amalgam_daemon::executor::{self, EnforcementChoice, ExecutorConfig};
use std::error::Error;

const LAUNCHES: u32 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|argument| argument == "executor").is_some() {
        return Ok(executor::run(ExecutorConfig::parse(arguments)?)?);
    }
    let dir = std::env::temp_dir().join(format!("amalgam-floors-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let program = std::env::current_exe()?;
    for slots in [2, 8] {
        let bare = launch_floor::bare_loop(LAUNCHES, slots)?;
        println!("{slots} slots, bare loop: {:.0} launches/s", bare.per_second());
        for enforcement in [EnforcementChoice::None, EnforcementChoice::Rlimits, EnforcementChoice::Auto] {
            let through =
                launch_floor::through_executor(LAUNCHES, slots, enforcement, &dir, &program, &["executor".into()])?;
            let (rate, ratio) = (through.per_second(), through.per_second() / bare.per_second());
            println!("{slots} slots, executor, {:?}: {rate:.0} launches/s, {ratio:.2} of bare", through.mechanism);
        }
    }
    println!("fdatasync of 256 bytes: {:?}", disk_floor::fdatasync_floor(&dir, 500)?);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
