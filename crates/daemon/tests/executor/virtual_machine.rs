//! Runs the tests of this program again, in a virtual machine with cgroup version 2 only, as root.
//!
//! The machine is emulated, because few of the machines that run tests give access to KVM. Its kernel comes from the
//! distribution, and its files are BusyBox, this program, the executor and their libraries.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const QEMU: &str = "qemu-system-x86_64";
/// Tests that do not run in the machine: this one, those of containers, because podman is not there, and those of many files
/// and launches, which take too long there and do not depend on the version of cgroups.
const LEFT_OUT: [&str; 4] = ["virtual_machine::", "containers::", "removal_of_many_files", "two_thousand_launches"];
/// Many tests mostly wait, so several run at a time on the one processor.
const TESTS_AT_A_TIME: &str = "--test-threads=4";
/// How long the machine may run. It took 160 to 180 s on two slow cores with nothing beside it, and 220 s
/// beside a build.
const PATIENCE: Duration = Duration::from_secs(500);
const CLOSING: &str = "the tests have ended with exit code ";
/// Accounts of the machine, for tasks of other users.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
                      daemon:x:1:1:daemon:/usr/sbin:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n";
const GROUP: &str = "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n";

/// The machine's first process. Its arguments for the tests come from the file `/arguments`, and the path where they find the
/// executor, which may be below `/tmp`, from `/executor.path`.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin
export AMALGAM_TEST_SLOWNESS=8
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
chmod 700 /root
mount -t tmpfs none /tmp
mkdir -p "$(dirname "$(cat /executor.path)")"
ln -s /executor "$(cat /executor.path)"
mount -t cgroup2 none /sys/fs/cgroup
echo 1 > /proc/sys/kernel/printk
ip link set lo up
/tests $(cat /arguments) < /dev/null 2>&1
echo "CLOSING$?"
poweroff -f
"#;

#[test]
fn the_tests_pass_under_cgroup_version_2() {
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(why) => return eprintln!("skipped: no virtual machine: {why}"),
    };
    let tests = std::env::current_exe().unwrap();
    let left_out: Vec<&str> = LEFT_OUT.iter().flat_map(|name| ["--skip", *name]).collect();
    let listed = Command::new(&tests).arg("--list").args(&left_out).output().unwrap();
    let expected = String::from_utf8(listed.stdout).unwrap().lines().filter(|line| line.ends_with(": test")).count();
    assert!(expected > 30, "{expected} tests");

    let arguments = [&left_out[..], &["--nocapture", TESTS_AT_A_TIME]].concat().join(" ");
    let printed = machine.run(&tests, &arguments);
    let shown = last_lines(&printed, 200);
    assert!(printed.contains(&format!("{CLOSING}0")), "the tests failed in the virtual machine:\n{shown}");
    assert!(printed.contains(&format!("test result: ok. {expected} passed; 0 failed")), "not all ran:\n{shown}");
    assert!(!printed.contains("skipped"), "some were skipped:\n{shown}");
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// What a virtual machine needs.
struct Machine {
    kernel: PathBuf,
    busybox: PathBuf,
}

impl Machine {
    fn find() -> Result<Machine, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("its kernel is one for x86_64, and the tests are not".to_owned());
        }
        if Command::new(QEMU).arg("--version").output().is_err() {
            return Err(format!("{QEMU} cannot be executed; install Debian's qemu-system-x86"));
        }
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from);
        let is_static = |path: &PathBuf| path.exists() && libraries_of(path).is_empty();
        let Some(busybox) = busybox.into_iter().find(is_static) else {
            return Err("there is no static BusyBox; install Debian's busybox-static".to_owned());
        };
        let kernel = kernel().ok_or("there is no kernel; `.ci/kernel` fetches one")?;
        Ok(Machine { kernel, busybox })
    }

    /// Runs the test program, and returns what the machine has printed.
    fn run(&self, tests: &Path, arguments: &str) -> String {
        let home = tempfile::tempdir().unwrap();
        let files = home.path().join("initramfs");
        self.write_files(&files, tests, arguments).unwrap();
        let console = home.path().join("console");
        let mut qemu = Command::new(QEMU)
            // One processor: with several, the emulation has stopped in the kernel, once in ten runs.
            .args(["-accel", "tcg,thread=single", "-smp", "1", "-m", "1G", "-nodefaults", "-nographic"])
            .args(["-serial", "stdio", "-no-reboot"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&files)
            .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off"])
            .stdin(Stdio::null())
            .stdout(File::create(&console).unwrap())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        let printed = || String::from_utf8_lossy(&fs::read(&console).unwrap()).replace('\r', "");
        while qemu.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                qemu.kill().and_then(|()| qemu.wait()).unwrap();
                panic!("the virtual machine still ran after {PATIENCE:?}:\n{}", last_lines(&printed(), 200));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        printed()
    }

    /// Writes the machine's files to an archive that the kernel unpacks.
    fn write_files(&self, archive: &Path, tests: &Path, arguments: &str) -> io::Result<()> {
        let mut files = Archive::new(File::create(archive)?);
        for directory in ["/proc", "/sys", "/dev", "/tmp", "/root", "/etc/security"] {
            files.directories(Path::new(directory))?;
        }
        files.program(Path::new("/init"), INIT.replace("CLOSING", CLOSING).as_bytes())?;
        files.data(Path::new("/arguments"), arguments.as_bytes())?;
        files.data(Path::new("/etc/passwd"), PASSWD.as_bytes())?;
        files.data(Path::new("/etc/group"), GROUP.as_bytes())?;
        files.program(Path::new("/bin/busybox"), &fs::read(&self.busybox)?)?;
        // Scripts start with this path.
        files.link(Path::new("/usr/bin/env"), "/bin/busybox")?;
        files.program(Path::new("/tests"), &fs::read(tests)?)?;
        let executor = Path::new(crate::agent::PROGRAM);
        files.program(Path::new("/executor"), &fs::read(executor)?)?;
        files.data(Path::new("/executor.path"), crate::agent::PROGRAM.as_bytes())?;
        let libraries: BTreeSet<PathBuf> = [tests, executor].into_iter().flat_map(libraries_of).collect();
        for library in libraries {
            files.program(&library, &fs::read(&library)?)?;
        }
        files.finish()
    }
}

/// The kernel that `.ci/kernel` has fetched, or else the newest one of this machine that can be read.
fn kernel() -> Option<PathBuf> {
    let fetched = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("virtual-machine").join("vmlinuz");
    let entries = fs::read_dir("/boot").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
    let changed = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    let installed = entries.filter(|path| is_kernel(path) && File::open(path).is_ok()).max_by_key(changed);
    Some(fetched).filter(|path| path.exists()).or(installed)
}

/// The shared libraries of a program, and its loader.
fn libraries_of(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output().map(|output| output.stdout).unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    listed
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// A writer of archives in the `newc` format of cpio, which the kernel reads.
struct Archive {
    file: io::BufWriter<File>,
    entries: u32,
    directories: BTreeSet<PathBuf>,
}

impl Archive {
    const DIRECTORY: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;
    const DATA: u32 = 0o100_644;
    const LINK: u32 = 0o120_777;

    fn new(file: File) -> Archive {
        Archive { file: io::BufWriter::new(file), entries: 0, directories: BTreeSet::new() }
    }

    fn directories(&mut self, path: &Path) -> io::Result<()> {
        let mut missing: Vec<PathBuf> = path.ancestors().map(Path::to_owned).collect();
        while let Some(directory) = missing.pop() {
            if self.directories.insert(directory.clone()) {
                self.entry(&directory, Archive::DIRECTORY, &[])?;
            }
        }
        Ok(())
    }

    fn program(&mut self, path: &Path, contents: &[u8]) -> io::Result<()> {
        self.file(path, Archive::PROGRAM, contents)
    }

    fn data(&mut self, path: &Path, contents: &[u8]) -> io::Result<()> {
        self.file(path, Archive::DATA, contents)
    }

    fn link(&mut self, path: &Path, target: &str) -> io::Result<()> {
        self.file(path, Archive::LINK, target.as_bytes())
    }

    fn file(&mut self, path: &Path, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.directories(path.parent().unwrap_or(path))?;
        self.entry(path, mode, contents)
    }

    fn finish(mut self) -> io::Result<()> {
        self.entry(Path::new("TRAILER!!!"), 0, &[])?;
        self.file.flush()
    }

    fn entry(&mut self, path: &Path, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let name = path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned();
        let name = if name.is_empty() { ".".to_owned() } else { name };
        let (size, name_size) = (contents.len() as u32, name.len() as u32 + 1);
        // Number, mode, owner, group, links, time, size, four device numbers, length of the name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        let head = format!("070701{header}{name}\0");
        self.padded(head.as_bytes())?;
        self.padded(contents)
    }

    /// Headers and contents end at a multiple of four bytes.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.write_all(&[0; 3][..bytes.len().wrapping_neg() % 4])
    }
}
