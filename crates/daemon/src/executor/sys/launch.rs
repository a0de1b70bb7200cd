//! Starts processes: the child changes into the task by system calls only.

use super::mounts::{self, Fault, Mounts};
use super::{Lower, OOM_SCORE, Precedence, close_others, reset_signals, set_precedence};
use super::{init, sandbox};
use crate::executor::exec_failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

/// A process to start. Everything is resolved and allocated, because the child may not allocate memory.
pub struct Launch<'a> {
    /// Paths of the program. The first one that exists is executed; only a launch as another user tries more than one.
    pub programs: &'a [CString],
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
    /// Further limits of resources.
    pub limits: &'a [(libc::__rlimit_resource_t, libc::rlimit)],
    /// Limit of private writable memory, mapped or used (`RLIMIT_DATA`).
    pub data: Option<libc::rlimit>,
    /// Low priority; `Lower::Io` if its cgroup sets the CPU priority.
    pub lower: Option<Lower>,
    /// Whether the executor is protected from the kernel's out-of-memory killer. Tasks must not inherit this.
    pub is_spared: bool,
    pub umask: Option<u16>,
    /// The user that the process becomes; `None` for this process's own.
    pub user: Option<Credentials<'a>>,
    /// Mounts of its own; only for [`launch_apart`].
    pub mounts: Option<&'a Mounts>,
}

/// The ids of a user.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'a [u32],
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
    User,
    Directory,
    Exec,
    Namespace,
    Mount,
    Devices,
    Processes,
    ReadOnly,
    Privileges,
}

impl Step {
    const ALL: [Step; 14] = [
        Step::Clone,
        Step::Session,
        Step::Streams,
        Step::Limits,
        Step::Cgroup,
        Step::User,
        Step::Directory,
        Step::Exec,
        Step::Namespace,
        Step::Mount,
        Step::Devices,
        Step::Processes,
        Step::ReadOnly,
        Step::Privileges,
    ];
}

#[derive(Debug)]
pub struct LaunchError {
    pub step: Step,
    pub error: io::Error,
}

/// The stack of children until they exec. One is enough: the parent is suspended until then, or the child has a copy.
pub struct ChildStack(Vec<u128>);

impl Default for ChildStack {
    fn default() -> ChildStack {
        ChildStack(vec![0; (64 << 10) / size_of::<u128>()])
    }
}

/// What the child needs. It is shared with the parent, or a copy if the child has memory of its own.
#[repr(C)]
struct Shared {
    /// Ends with a null pointer.
    programs: *const *const c_char,
    arguments: *const *const c_char,
    /// The arguments of a shell that runs the program as a script; the second one is its path. Null: no script.
    script: *mut *const c_char,
    environment: *const *const c_char,
    directory: *const c_char,
    stdio: [c_int; 3],
    join: *const c_int,
    join_count: usize,
    open_files: *const libc::rlimit,
    limits: *const (libc::__rlimit_resource_t, libc::rlimit),
    limit_count: usize,
    data: *const libc::rlimit,
    lower: Option<Lower>,
    is_spared: bool,
    umask: Option<u16>,
    user: *const User,
    mounts: *const Mounts,
    parent: libc::pid_t,
    failed_step: Option<Step>,
    errno: c_int,
    /// The descriptor for a [`Failure`] of a child that has memory of its own; otherwise negative.
    report: c_int,
    /// The descriptor for the end of a sandboxed task; otherwise negative.
    ending: c_int,
}

#[repr(C)]
struct User {
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: *const libc::gid_t,
    group_count: usize,
}

/// What a child with memory of its own writes to its pipe if it fails: the step and the error number.
type Failure = [c_int; 2];

/// Starts a process like `vfork`: the child uses the parent's memory until it execs, so no page tables are copied.
/// Returns its pid when the exec has succeeded.
pub fn launch(order: &Launch<'_>, stack: &mut ChildStack) -> Result<i32, LaunchError> {
    debug_assert!(order.user.is_none(), "a user could stop this process together with the child");
    debug_assert!(order.mounts.is_none(), "a file system that does not answer would stop this process");
    let mut failure = None;
    let pid = with_shared(order, [-1; 2], |shared, join| {
        let pid = start(order, shared, join, stack, libc::CLONE_VM | libc::CLONE_VFORK)?;
        // SAFETY: `shared` is valid; volatile, because the child wrote it, which the compiler does not know.
        let (step, errno) = unsafe {
            (ptr::read_volatile(&raw const (*shared).failed_step), ptr::read_volatile(&raw const (*shared).errno))
        };
        failure = step.map(|step| LaunchError { step, error: io::Error::from_raw_os_error(errno) });
        Ok(pid)
    });
    let pid = pid.map_err(|error| LaunchError { step: Step::Clone, error })?;
    let Some(failure) = failure else { return Ok(pid) };
    // SAFETY: plain wait for this process's child, which has exited.
    unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
    Err(failure)
}

/// Starts a process as another user, or with mounts of its own. The child has memory of its own and this process does not wait
/// for it: the user may stop the child before it execs, and the directory and the program may be on a file system that does not
/// answer.
///
/// In a sandbox, the process is the parent of the task, see `init.rs`.
pub fn launch_apart(order: &Launch<'_>, stack: &mut ChildStack) -> Result<Apart, LaunchError> {
    let sandboxed = order.mounts.filter(|mounts| mounts.sandbox.is_some());
    let step = if sandboxed.is_some() { Step::Namespace } else { Step::Clone };
    let failed = |error| LaunchError { step, error };
    let pipe = || {
        let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
        rustix::pipe::pipe_with(flags).map_err(|error| LaunchError { step: Step::Clone, error: error.into() })
    };
    let (report, report_writer) = pipe()?;
    let (ending, ending_writer) = sandboxed.map(|_| pipe()).transpose()?.unzip();
    let namespaces =
        sandboxed.map_or(0, |mounts| libc::CLONE_NEWPID | if mounts.maps.is_some() { libc::CLONE_NEWUSER } else { 0 });
    let writers = [report_writer.as_raw_fd(), ending_writer.as_ref().map_or(-1, AsRawFd::as_raw_fd)];
    let started = with_shared(order, writers, |shared, join| start(order, shared, join, stack, namespaces));
    Ok(Apart { pid: started.map_err(failed)?, report, ending })
}

/// A process that was started by [`launch_apart`].
pub struct Apart {
    pub pid: i32,
    /// [`failure_of`] reads from it why it did not exec.
    pub report: OwnedFd,
    /// [`super::ending_of`] reads from it how the task of a sandbox ended.
    pub ending: Option<OwnedFd>,
}

/// Why a child of [`launch_apart`] did not exec. `None` if it has, or is not there yet.
pub fn failure_of(report: BorrowedFd<'_>) -> Option<LaunchError> {
    let mut failure = [0; size_of::<Failure>()];
    let length = rustix::io::read(report, failure.as_mut_slice()).ok()?;
    let (step, errno) = failure.split_at(size_of::<c_int>());
    let number = |bytes: &[u8]| Some(c_int::from_ne_bytes(bytes.try_into().ok()?));
    let step = Step::ALL.into_iter().find(|known| Some(*known as c_int) == number(step))?;
    (length == failure.len()).then_some(LaunchError { step, error: io::Error::from_raw_os_error(number(errno)?) })
}

/// Whether a child of [`launch_apart`] has exec'd: the other end of its pipe is closed, and nothing was written.
pub fn has_execed(report: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(&report, PollFlags::IN)];
    let ready = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready == Ok(1) && !watched[0].revents().contains(PollFlags::IN)
}

/// Resolves an order to pointers, which are valid during the call of `start`.
fn with_shared(
    order: &Launch<'_>,
    [report, ending]: [c_int; 2],
    start: impl FnOnce(*mut Shared, &mut Vec<c_int>) -> io::Result<i32>,
) -> io::Result<i32> {
    let table = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let programs = table(order.programs);
    let arguments = table(order.arguments);
    let environment = table(order.environment);
    let mut script: Vec<*const c_char> =
        [SHELL.as_ptr(), ptr::null()].into_iter().chain(arguments.iter().skip(1).copied()).collect();
    let user = order.user.map(|user| User {
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.as_ptr(),
        group_count: user.groups.len(),
    });
    let mut join: Vec<c_int> = order.join.iter().map(AsRawFd::as_raw_fd).collect();
    let mut shared = Shared {
        programs: programs.as_ptr(),
        arguments: arguments.as_ptr(),
        script: if report >= 0 { script.as_mut_ptr() } else { ptr::null_mut() },
        environment: environment.as_ptr(),
        directory: order.directory.as_ptr(),
        stdio: order.stdio.map(|stream| stream.as_raw_fd()),
        join: join.as_ptr(),
        join_count: join.len(),
        open_files: order.open_files.as_ref().map_or(ptr::null(), ptr::from_ref),
        limits: order.limits.as_ptr(),
        limit_count: order.limits.len(),
        data: order.data.as_ref().map_or(ptr::null(), ptr::from_ref),
        lower: order.lower,
        is_spared: order.is_spared,
        umask: order.umask,
        user: user.as_ref().map_or(ptr::null(), ptr::from_ref),
        mounts: order.mounts.map_or(ptr::null(), ptr::from_ref),
        // SAFETY: getpid has no preconditions.
        parent: unsafe { libc::getpid() },
        failed_step: None,
        errno: 0,
        report,
        ending,
    };
    start(ptr::from_mut(&mut shared), &mut join)
}

/// Starts the child in its cgroup. `shared` is that of [`with_shared`], and `join` the list in it. `sharing` are the flags of the
/// clone. If memory is shared with the child, this thread is suspended until the child has exec'd or exited.
fn start(
    order: &Launch<'_>,
    shared: *mut Shared,
    join: &mut Vec<c_int>,
    stack: &mut ChildStack,
    sharing: c_int,
) -> io::Result<i32> {
    let Some(cgroup) = order.born_in else {
        // SAFETY: `shared` and all that it points to live until the child has exec'd or exited, or has a copy of the
        // memory; the stack is not used otherwise.
        return unsafe { clone(stack, shared, sharing) };
    };
    // SAFETY: as above.
    unsafe { clone_into(cgroup, stack, shared, sharing) }.or_else(|error| {
        // Kernels before 5.7 and strict seccomp filters do not allow it. The child then moves itself, which is slower.
        if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::E2BIG)) {
            return Err(error);
        }
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::openat(cgroup, c"cgroup.procs", flags, rustix::fs::Mode::empty())?;
        join.push(file.as_raw_fd());
        // SAFETY: as above; `join` does not change from here on, and `file` is open until the end of this function.
        unsafe {
            ((*shared).join, (*shared).join_count) = (join.as_ptr(), join.len());
            clone(stack, shared, sharing)
        }
    })
}

/// # Safety
/// `shared` and what it points to must be valid, and `stack` unused by anyone else, until this returns.
unsafe fn clone(stack: &mut ChildStack, shared: *mut Shared, sharing: c_int) -> io::Result<i32> {
    let flags = sharing | libc::SIGCHLD;
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
unsafe fn clone_into(
    cgroup: BorrowedFd<'_>,
    stack: &mut ChildStack,
    shared: *mut Shared,
    sharing: c_int,
) -> io::Result<i32> {
    // SAFETY: `clone_args` is plain integers, for which zero means "not used".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from(sharing.cast_unsigned()) | CLONE_INTO_CGROUP;
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
unsafe fn clone_into(_: BorrowedFd<'_>, _: &mut ChildStack, _: *mut Shared, _: c_int) -> io::Result<i32> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Runs in the child, on the parent's memory or on a copy in which other threads may have held locks: only system calls, no
/// allocation, no locks.
extern "C" fn child(shared: *mut c_void) -> c_int {
    let shared: *mut Shared = shared.cast();
    // SAFETY: the parent is suspended and keeps `shared` alive, or this is a copy; every call below is async-signal-safe.
    unsafe {
        let step = become_the_task(&*shared);
        if (*shared).report >= 0 {
            let failure: Failure = [step as c_int, *libc::__errno_location()];
            libc::write((*shared).report, failure.as_ptr().cast(), size_of::<Failure>());
            libc::_exit(127)
        }
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
        let is_sandboxed = shared.ending >= 0;
        reset_signals(is_sandboxed);
        if libc::setsid() < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
            return Step::Session;
        }
        exit_if_orphan(shared);
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
        for place in 0..shared.limit_count {
            let (resource, limit) = &*shared.limits.add(place);
            if libc::setrlimit(*resource, limit) < 0 {
                return Step::Limits;
            }
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
        close_others([shared.report, shared.ending]);
        if let Err(step) = isolate(shared) {
            return step;
        }
        if is_sandboxed {
            if !init::split(shared.report, shared.ending) {
                return Step::Clone;
            }
            sandbox::bound_capabilities();
        }
        if let Some(mask) = shared.umask {
            libc::umask(libc::mode_t::from(mask));
        }
        // The parent of a sandboxed task is the first process of its namespace.
        let parent = if is_sandboxed { 1 } else { shared.parent };
        if !shared.user.is_null() && !become_user(&*shared.user, parent) {
            return Step::User;
        }
        if is_sandboxed && !sandbox::drop_privileges() {
            return Step::Privileges;
        }
        if libc::chdir(shared.directory) < 0 {
            return Step::Directory;
        }
        execute(shared);
        Step::Exec
    }
}

/// Ends this process if the executor has ended before it would have been told.
///
/// # Safety
/// As for [`become_the_task`].
unsafe fn exit_if_orphan(shared: &Shared) {
    // SAFETY: plain system calls.
    unsafe {
        // The first process of a namespace does not see its parent.
        let is_orphan = match shared.ending >= 0 {
            true => init::is_orphan(shared.ending),
            false => libc::getppid() != shared.parent,
        };
        if is_orphan {
            libc::_exit(127);
        }
    }
}

/// Gives this process mounts of its own, if it is to have any.
///
/// # Safety
/// As for [`become_the_task`], in a child with memory of its own.
unsafe fn isolate(shared: &Shared) -> Result<(), Step> {
    // SAFETY: the pointers are valid in the copy of the parent's memory.
    unsafe {
        let user = shared.user.as_ref().map(|user| Credentials {
            uid: user.uid,
            gid: user.gid,
            groups: match user.group_count {
                0 => &[],
                count => std::slice::from_raw_parts(user.groups, count),
            },
        });
        let Some(mounts) = shared.mounts.as_ref() else { return Ok(()) };
        mounts::enter(mounts, user).map_err(|fault| match fault {
            Fault::Namespace => Step::Namespace,
            Fault::Mount => Step::Mount,
            Fault::Directory => Step::Directory,
            Fault::Devices => Step::Devices,
            Fault::Processes => Step::Processes,
            Fault::ReadOnly => Step::ReadOnly,
        })?;
        // Opening a file as the user removed this setting.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        exit_if_orphan(shared);
        Ok(())
    }
}

/// Changes the credentials, for ever. The system calls are made directly: the C library's functions would change other
/// threads as well, which are not those of this process.
///
/// # Safety
/// As for [`become_the_task`].
unsafe fn become_user(user: &User, parent: libc::pid_t) -> bool {
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        let changed = libc::syscall(libc::SYS_setgroups, user.group_count, user.groups) == 0
            && libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid) == 0
            && libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid) == 0;
        // Keys of the kernel that this process can use are not the task's.
        const JOIN_SESSION_KEYRING: c_int = 1;
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, ptr::null::<c_char>());
        // A change of credentials removes this setting.
        if !changed || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
            return false;
        }
        if libc::getppid() != parent {
            libc::_exit(127);
        }
        true
    }
}

/// Executes the first program that exists. Returns with the error of the best candidate: one that exists and may not be
/// executed is worth more than those that do not exist.
///
/// # Safety
/// As for [`become_the_task`].
unsafe fn execute(shared: &Shared) {
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        let mut denied = false;
        let mut next = shared.programs;
        while !(*next).is_null() {
            libc::execve(*next, shared.arguments, shared.environment);
            let errno = *libc::__errno_location();
            if errno == libc::ENOEXEC && !shared.script.is_null() && is_text(*next) {
                *shared.script.add(1) = *next;
                libc::execve(SHELL.as_ptr(), shared.script.cast_const(), shared.environment);
            }
            denied |= errno == libc::EACCES;
            if !matches!(errno, libc::ENOENT | libc::ENOTDIR | libc::EACCES) {
                return;
            }
            next = next.add(1);
        }
        if denied {
            *libc::__errno_location() = libc::EACCES;
        }
    }
}

/// Whether the start of a file that the kernel cannot execute is text, so that a shell may run it. Otherwise the error number is
/// that of the kernel.
///
/// # Safety
/// `path` must be valid.
unsafe fn is_text(path: *const c_char) -> bool {
    let mut head = [0_u8; 256];
    // SAFETY: plain system calls with valid pointers.
    unsafe {
        let file = libc::open(path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC);
        let length = if file < 0 { -1 } else { libc::read(file, head.as_mut_ptr().cast(), head.len()) };
        *libc::__errno_location() = libc::ENOEXEC;
        usize::try_from(length).is_ok_and(|length| exec_failure::may_be_script(&head[..length]))
    }
}

/// The shell for scripts without an interpreter on their first line.
pub const SHELL: &CStr = c"/bin/sh";

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::AsFd;

    /// A launch without arguments, environment and limits.
    pub fn order<'a>(programs: &'a [CString], null: &'a File) -> Launch<'a> {
        Launch {
            programs,
            arguments: &[],
            environment: &[],
            directory: c"/",
            stdio: [null.as_fd(), null.as_fd(), null.as_fd()],
            join: &[],
            born_in: None,
            open_files: None,
            limits: &[],
            data: None,
            lower: None,
            is_spared: false,
            umask: None,
            user: None,
            mounts: None,
        }
    }

    fn run(program: &CStr, born_in: Option<BorrowedFd<'_>>, out: &File) -> Result<i32, LaunchError> {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let programs = [program.to_owned()];
        let arguments = [c"cat".into(), c"/proc/self/cgroup".into()];
        let plain = order(&programs, &null);
        let order =
            Launch { arguments: &arguments, stdio: [null.as_fd(), out.as_fd(), null.as_fd()], born_in, ..plain };
        launch(&order, &mut ChildStack::default())
    }

    fn wait(pid: i32) {
        // SAFETY: plain wait for this process's child.
        unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
    }

    #[test]
    fn limits_are_those_of_the_order() {
        let limit = |soft, hard| libc::rlimit { rlim_cur: soft, rlim_max: hard };
        let limits = [(libc::RLIMIT_CPU, limit(70, 80)), (libc::RLIMIT_CORE, limit(0, 4096))];
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let out = tempfile::NamedTempFile::new().unwrap();
        let programs = [c"/bin/cat".into()];
        let arguments = [c"cat".into(), c"/proc/self/limits".into()];
        let stdio = [null.as_fd(), out.as_file().as_fd(), null.as_fd()];
        let order = Launch { arguments: &arguments, stdio, limits: &limits, ..order(&programs, &null) };
        wait(launch(&order, &mut ChildStack::default()).unwrap());
        let text = fs::read_to_string(out.path()).unwrap();
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((of("Max cpu time"), of("Max core file size")), ("70 80".to_owned(), "0 4096".to_owned()));
    }

    #[test]
    fn a_failed_exec_is_reported_with_its_error() {
        let out = tempfile::tempfile().unwrap();
        let failure = run(c"/no/such/program", None, &out).unwrap_err();
        assert_eq!((failure.step, failure.error.raw_os_error()), (Step::Exec, Some(libc::ENOENT)));
    }

    #[test]
    fn a_directory_that_was_replaced_since_is_not_mounted() {
        let directory = tempfile::tempdir().unwrap();
        let source = CString::new(directory.path().to_str().unwrap()).unwrap();
        let found = std::os::linux::fs::MetadataExt::st_ino(&fs::metadata(directory.path()).unwrap());
        let identity = (0, found);
        let private = mounts::Private { source: source.clone(), identity, target: source, is_writable: true };
        let mounts = Mounts { private: vec![private], ..Mounts::default() };
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let programs = [c"/bin/true".into()];
        let order = Launch { mounts: Some(&mounts), ..order(&programs, &null) };
        let Apart { pid, report, .. } = launch_apart(&order, &mut ChildStack::default()).unwrap();
        wait(pid);
        let failure = failure_of(report.as_fd()).unwrap();
        if failure.step == Step::Namespace {
            return println!("skipped: no namespaces: {}", failure.error);
        }
        assert_eq!((failure.step, failure.error.raw_os_error()), (Step::Mount, Some(libc::ESTALE)));
    }

    #[test]
    fn a_process_is_created_in_a_version_2_cgroup() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let Some(group) = crate::executor::own_group::own_group(&mounts, &own, None) else {
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
