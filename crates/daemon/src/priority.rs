//! Scheduling priority of threads. The control plane has to answer while tasks use all processors, so its threads
//! request a short time slice, which lets them run soon after they wake up, and a lower nice value if it is permitted.
//! Child processes get neither.

/// Length of a time slice in nanoseconds: the minimum of the kernel (Linux 6.12 and later; earlier versions ignore it).
const SLICE: u64 = 100_000;
const NICE: i32 = -10;
const RESET_ON_FORK: u64 = 1;

/// The kernel's `struct sched_attr`, first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Gives the calling thread a higher priority. If this is not permitted, the thread only runs later.
pub fn answer_soon() {
    // SAFETY: it has no preconditions.
    let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // A process with another nice value keeps it, and so do its children.
    let wanted = if own == 0 { NICE } else { own };
    if !set(wanted) {
        set(own);
    }
}

/// Gives the calling thread the lowest priority for CPU and disks.
pub fn lower_priority() {
    const LEAST: i32 = 19;
    const THREAD: i32 = 1;
    const IDLE: i32 = 3 << 13;
    // SAFETY: neither call touches memory.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, LEAST);
        libc::syscall(libc::SYS_ioprio_set, THREAD, 0, IDLE);
    }
}

fn set(nice: i32) -> bool {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: RESET_ON_FORK,
        nice,
        priority: 0,
        runtime: SLICE,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel reads `size` bytes of a live struct; pid 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn children_do_not_inherit_the_priority() {
        let inherited = std::thread::spawn(|| {
            super::answer_soon();
            let output = std::process::Command::new("nice").output().expect("nice runs");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        });
        let own = std::process::Command::new("nice").output().expect("nice runs");
        assert_eq!(inherited.join().expect("the thread ends"), String::from_utf8_lossy(&own.stdout).trim());
    }
}
