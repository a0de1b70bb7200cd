//! The system calls that require `unsafe`: launching, waiting with resource usage, and signals as a descriptor.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// A process to start. Everything is resolved and allocated, because the child may not allocate memory.
pub struct Launch<'a> {
    pub program: &'a CStr,
    pub arguments: &'a [CString],
    pub environment: &'a [CString],
    pub directory: &'a CStr,
    /// Standard input, output and error; none of them may be below 3.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Files that the child writes `0` to, which moves it into their cgroups.
    pub join: &'a [OwnedFd],
    /// A cgroup v2 directory in which the child is created.
    pub born_in: Option<BorrowedFd<'a>>,
    pub open_files: Option<libc::rlimit>,
    /// Limit of private writable memory, mapped or used (`RLIMIT_DATA`).
    pub data: Option<libc::rlimit>,
    /// Low priority; `Lower::Io` if its cgroup sets the CPU priority.
    pub lower: Option<Lower>,
    /// Whether the executor is protected from the kernel's out-of-memory killer. Tasks must not inherit this.
    pub is_spared: bool,
    pub umask: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lower {
    Io,
    CpuAndIo,
}

/// Priority for CPU and disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precedence {
    nice: c_int,
    /// In the format of `ioprio_set`.
    io: c_int,
}

impl Precedence {
    /// Only what other processes leave idle: nice value 19 and the idle IO class.
    pub const LOWER: Precedence = Precedence { nice: 19, io: 3 << 13 };

    /// A nice value, and no IO class, so that the kernel derives the IO priority from the nice value.
    pub fn usual(nice: c_int) -> Precedence {
        Precedence { nice, io: 0 }
    }
}

/// The step in which the child failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Step {
    Clone = 1,
    Session,
    Streams,
    Limits,
    Cgroup,
    Directory,
    Exec,
}

#[derive(Debug)]
pub struct LaunchError {
    pub step: Step,
    pub error: io::Error,
}

/// The stack of children until they exec. One is enough, because the parent is suspended until then.
pub struct ChildStack(Vec<u128>);

impl Default for ChildStack {
    fn default() -> ChildStack {
        ChildStack(vec![0; (64 << 10) / size_of::<u128>()])
    }
}

/// Shared by parent and child, which use the same memory until the child execs.
#[repr(C)]
struct Shared {
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    directory: *const c_char,
    stdio: [c_int; 3],
    join: *const c_int,
    join_count: usize,
    open_files: *const libc::rlimit,
    data: *const libc::rlimit,
    lower: Option<Lower>,
    is_spared: bool,
    umask: Option<u16>,
    parent: libc::pid_t,
    failed_step: Option<Step>,
    errno: c_int,
}

/// Starts a process like `vfork`: the child uses the parent's memory until it execs, so no page tables are copied.
/// Returns its pid when the exec has succeeded.
pub fn launch(order: &Launch<'_>, stack: &mut ChildStack) -> Result<i32, LaunchError> {
    let table = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let arguments = table(order.arguments);
    let environment = table(order.environment);
    let mut join: Vec<c_int> = order.join.iter().map(AsRawFd::as_raw_fd).collect();
    let mut shared = Shared {
        program: order.program.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        directory: order.directory.as_ptr(),
        stdio: order.stdio.map(|stream| stream.as_raw_fd()),
        join: join.as_ptr(),
        join_count: join.len(),
        open_files: order.open_files.as_ref().map_or(ptr::null(), ptr::from_ref),
        data: order.data.as_ref().map_or(ptr::null(), ptr::from_ref),
        lower: order.lower,
        is_spared: order.is_spared,
        umask: order.umask,
        // SAFETY: getpid has no preconditions.
        parent: unsafe { libc::getpid() },
        failed_step: None,
        errno: 0,
    };
    let mut members = None;
    let shared_at = ptr::from_mut(&mut shared);
    let pid = match order.born_in {
        // SAFETY: `shared` and all that it points to live until the child has exec'd or exited, since CLONE_VFORK
        // suspends this thread until then; the stack is not used otherwise.
        Some(cgroup) => unsafe { clone_into(cgroup, stack, shared_at) }.or_else(|error| {
            // Kernels before 5.7 and strict seccomp filters do not allow it. The child then moves itself, which is
            // slower.
            if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::E2BIG)) {
                return Err(error);
            }
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
            let file = rustix::fs::openat(cgroup, c"cgroup.procs", flags, rustix::fs::Mode::empty())?;
            join.push(members.insert(file).as_raw_fd());
            // SAFETY: as above; `join` does not change from here on.
            unsafe {
                ((*shared_at).join, (*shared_at).join_count) = (join.as_ptr(), join.len());
                clone(stack, shared_at)
            }
        }),
        // SAFETY: as above.
        None => unsafe { clone(stack, shared_at) },
    }
    .map_err(|error| LaunchError { step: Step::Clone, error })?;
    // SAFETY: `shared_at` is valid; volatile, because the child wrote it, which the compiler does not know.
    let (failed_step, errno) = unsafe {
        (ptr::read_volatile(&raw const (*shared_at).failed_step), ptr::read_volatile(&raw const (*shared_at).errno))
    };
    let Some(step) = failed_step else { return Ok(pid) };
    // SAFETY: plain wait for this process's child, which has exited.
    unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
    Err(LaunchError { step, error: io::Error::from_raw_os_error(errno) })
}

/// # Safety
/// `shared` and what it points to must be valid, and `stack` unused by anyone else, until this returns.
unsafe fn clone(stack: &mut ChildStack, shared: *mut Shared) -> io::Result<i32> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the top of the stack is one past its end and aligned to 16 bytes.
    let pid = unsafe { libc::clone(child, stack.0.as_mut_ptr_range().end.cast(), flags, shared.cast()) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
}

/// A bit of `clone_args.flags`; libc's constant has a type that is too narrow.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// # Safety
/// As for [`clone`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn clone_into(cgroup: BorrowedFd<'_>, stack: &mut ChildStack, shared: *mut Shared) -> io::Result<i32> {
    // SAFETY: `clone_args` is plain integers, for which zero means "not used".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (libc::CLONE_VM | libc::CLONE_VFORK) as u64 | CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.stack = stack.0.as_mut_ptr() as u64;
    arguments.stack_size = size_of_val(stack.0.as_slice()) as u64;
    arguments.cgroup = cgroup.as_raw_fd() as u64;
    let result: isize;
    // glibc has no wrapper, and a child on another stack cannot return from `syscall`, so the child's function is
    // called from assembly. SAFETY: the kernel starts the child on its own stack, where it calls `child`, which never
    // returns; the parent's registers and stack are as after any system call.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") &raw const arguments,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") shared,
            in("r13") child as extern "C" fn(*mut c_void) -> c_int,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x0, x20",
            "blr x21",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") &raw const arguments as isize => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x20") shared,
            in("x21") child as extern "C" fn(*mut c_void) -> c_int,
        );
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as i32) }
}

/// # Safety
/// None; it always fails.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone_into(_: BorrowedFd<'_>, _: &mut ChildStack, _: *mut Shared) -> io::Result<i32> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Runs in the child on the parent's memory: only system calls, no allocation, no locks.
extern "C" fn child(shared: *mut c_void) -> c_int {
    let shared: *mut Shared = shared.cast();
    // SAFETY: the parent is suspended and keeps `shared` alive; every call below is async-signal-safe.
    unsafe {
        let step = become_the_task(&*shared);
        ptr::write_volatile(&raw mut (*shared).errno, *libc::__errno_location());
        ptr::write_volatile(&raw mut (*shared).failed_step, Some(step));
        libc::_exit(127)
    }
}

/// Sets up the process and executes the program. Returns only if a step failed.
///
/// # Safety
/// Must be called only in the child of a clone that suspends its parent.
unsafe fn become_the_task(shared: &Shared) -> Step {
    // SAFETY: pointers come from `launch` and are valid; all calls are plain system calls.
    unsafe {
        // Ignored signals would stay ignored after the exec.
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        for signal in IGNORED {
            libc::sigaction(signal, &raw const default, ptr::null_mut());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        if libc::setsid() < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
            return Step::Session;
        }
        if libc::getppid() != shared.parent {
            libc::_exit(127);
        }
        for (target, source) in shared.stdio.iter().enumerate() {
            if libc::dup2(*source, target as c_int) < 0 {
                return Step::Streams;
            }
        }
        for place in 0..shared.join_count {
            if libc::write(*shared.join.add(place), c"0".as_ptr().cast(), 1) != 1 {
                return Step::Cgroup;
            }
        }
        if !shared.open_files.is_null() && libc::setrlimit(libc::RLIMIT_NOFILE, shared.open_files) < 0 {
            return Step::Limits;
        }
        if !shared.data.is_null() && libc::setrlimit(libc::RLIMIT_DATA, shared.data) < 0 {
            return Step::Limits;
        }
        if let Some(lower) = shared.lower {
            set_precedence(0, Precedence::LOWER, lower == Lower::CpuAndIo);
        }
        if shared.is_spared {
            // The kernel changes the score only for the child, although it shares the parent's memory.
            let file = libc::open(OOM_SCORE.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 || libc::write(file, c"0".as_ptr().cast(), 1) != 1 {
                return Step::Limits;
            }
        }
        // The task gets only its three streams. Other descriptors should be close-on-exec already. Kernels before 5.9
        // do not have this call.
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
        if let Some(mask) = shared.umask {
            libc::umask(libc::mode_t::from(mask));
        }
        if libc::chdir(shared.directory) < 0 {
            return Step::Directory;
        }
        libc::execve(shared.program, shared.arguments, shared.environment);
        Step::Exec
    }
}

/// The score by which the kernel selects the process to kill when the machine runs out of memory.
const OOM_SCORE: &CStr = c"/proc/self/oom_score_adj";

/// Whether this process is protected when the machine runs out of memory: the kernel prefers to kill others.
pub fn is_spared() -> bool {
    let score = OOM_SCORE.to_str().ok().and_then(|path| std::fs::read_to_string(path).ok());
    score.and_then(|score| score.trim().parse::<i32>().ok()).is_some_and(|score| score < 0)
}

/// The exit status and resource usage of a reaped child.
pub struct Exit {
    pub status: c_int,
    pub cpu_micros: u64,
    pub max_rss_bytes: u64,
}

/// The pid of a child that has exited and is not reaped. While it is a zombie, its pid and process group are not
/// reused.
pub fn exited_child() -> Option<i32> {
    // SAFETY: `siginfo_t` is plain data that the kernel fills in.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is valid for writing, and after success its child fields are the active ones.
    let pid = unsafe {
        if libc::waitid(libc::P_ALL, 0, &raw mut info, flags) < 0 {
            return None;
        }
        info.si_pid()
    };
    (pid > 0).then_some(pid)
}

/// Reaps a child that [`exited_child`] returned.
pub fn reap(pid: i32) -> io::Result<Exit> {
    let mut status = 0;
    // SAFETY: `rusage` is plain data that the kernel fills in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for writing.
    if unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } != pid {
        return Err(io::Error::last_os_error());
    }
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Ok(Exit {
        status,
        cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss as u64 * 1024,
    })
}

/// Signals that the executor ignores: those of a terminal, `SIGPIPE`, and `SIGXFSZ`. For the latter two, the write
/// returns an error, which is reported.
const IGNORED: [c_int; 5] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGPIPE, libc::SIGXFSZ];

/// Returns a descriptor from which `SIGCHLD` and `SIGTERM` are read. Sets all other signals to their default, except
/// the ignored ones, whatever was inherited from the parent.
pub fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: signal sets are plain data and every pointer is valid; no handler runs, so no invariants are at stake.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, if IGNORED.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL });
        }
        // The C library reserves the first real-time signals and does not allow to change them, so this uses the system
        // call.
        let default = [0_u64; 4];
        for signal in 32..libc::SIGRTMIN() {
            let nothing = ptr::null_mut::<c_void>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), nothing, size_of::<u64>());
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Reads all pending signals from the descriptor. Returns true if one of them is `SIGTERM`.
pub fn take_signals(descriptor: BorrowedFd<'_>) -> bool {
    let mut terminate = false;
    loop {
        // SAFETY: `signalfd_siginfo` is plain data, and the length given is its size.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: as above.
        let read = unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut info).cast(), size) };
        if read != size as isize {
            return terminate;
        }
        terminate |= info.ssi_signo == libc::SIGTERM as u32;
    }
}

/// Forks the process, which must have a single thread. Returns true in the child.
pub fn fork() -> io::Result<bool> {
    // SAFETY: with one thread, no other thread can hold a lock, so the child may call any function.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid == 0),
    }
}

/// Exits without destructors or exit handlers: after a [`fork`], they belong to the parent.
pub fn exit_at_once(code: c_int) -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(code) }
}

/// Raises the soft limit of open files to the hard limit. Returns the previous limits, which tasks get.
pub fn raise_open_files() -> Option<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `before` is valid for writing.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) } < 0 {
        return None;
    }
    let raised = libc::rlimit { rlim_cur: before.rlim_max, ..before };
    // SAFETY: `raised` is valid for reading.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    Some(before)
}

/// Sends a signal to a process, or with a negative pid to its process group. Returns false if it was not sent, for
/// example because there is no such process.
pub fn kill(pid: i32, signal: c_int) -> bool {
    // SAFETY: kill has no memory preconditions. 0 and -1, which mean many processes, are excluded.
    pid != 0 && pid != -1 && unsafe { libc::kill(pid, signal) } == 0
}

/// Sets the priority of a thread, or of the calling thread for 0. Makes only system calls. Errors are ignored: if a
/// call is not permitted or the thread does not exist, nothing changes.
pub fn set_precedence(thread: c_int, precedence: Precedence, with_cpu: bool) {
    /// `IOPRIO_WHO_PROCESS`: `thread` is a thread id.
    const WHO_PROCESS: c_int = 1;
    // SAFETY: neither call accesses memory.
    unsafe {
        if with_cpu {
            libc::setpriority(libc::PRIO_PROCESS, thread.cast_unsigned(), precedence.nice);
        }
        libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, thread, precedence.io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::AsFd;

    fn run(program: &CStr, born_in: Option<BorrowedFd<'_>>, out: &File) -> Result<i32, LaunchError> {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let order = Launch {
            program,
            arguments: &[c"cat".into(), c"/proc/self/cgroup".into()],
            environment: &[],
            directory: c"/",
            stdio: [null.as_fd(), out.as_fd(), null.as_fd()],
            join: &[],
            born_in,
            open_files: None,
            data: None,
            lower: None,
            is_spared: false,
            umask: None,
        };
        launch(&order, &mut ChildStack::default())
    }

    fn wait(pid: i32) {
        // SAFETY: plain wait for this process's child.
        unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
    }

    #[test]
    fn a_failed_exec_is_reported_with_its_error() {
        let out = tempfile::tempfile().unwrap();
        let failure = run(c"/no/such/program", None, &out).unwrap_err();
        assert_eq!((failure.step, failure.error.raw_os_error()), (Step::Exec, Some(libc::ENOENT)));
    }

    #[test]
    fn a_process_is_created_in_a_version_2_cgroup() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let Some(group) = crate::executor::hierarchy::own_group(&mounts, &own, None) else {
            return println!("skipped: no cgroup v2 is mounted");
        };
        let name = format!("amalgam-test-{}", std::process::id());
        let directory = group.join(&name);
        if let Err(error) = fs::create_dir(&directory) {
            return println!("skipped: cannot create {}: {error}", directory.display());
        }
        let out = tempfile::NamedTempFile::new().unwrap();
        let cgroup = File::open(&directory).unwrap();
        let pid = run(c"/bin/cat", Some(cgroup.as_fd()), out.as_file()).unwrap();
        wait(pid);
        let output = fs::read_to_string(out.path()).unwrap();
        fs::remove_dir(&directory).unwrap();
        assert!(output.lines().any(|line| line.starts_with("0::") && line.ends_with(&name)), "{output}");
    }
}
