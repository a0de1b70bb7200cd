//! Explains to users why a program could not be executed. The kernel only returns an error number.

use super::prepare::{Prepared, is_command_line, is_out_of_reach, needs_shell, node_fault};
use super::sys::SHELL;
use amalgam_core::vocabulary::EndReason;
use rustix::fs::{OFlags, StatVfsMountFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Number of bytes of a file that the kernel reads to recognize its format.
const HEAD: u64 = 256;
const ELF: &[u8] = b"\x7fELF";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The highest and the lowest limit of the size of arguments and environment, whatever the limit of the stack.
const MOST_OF_ALL: u64 = 6 << 20;
const LEAST_OF_ALL: u64 = 128 << 10;

/// The end of an attempt whose `execve` failed, with a sentence for the user. `memory_mib` is the task's limit, 0 for
/// none.
pub fn exec_failure(prepared: &Prepared, error: &io::Error, memory_mib: u32) -> EndReason {
    let number = error.raw_os_error();
    if matches!(number, Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES))
        && let Some(reason) = prepared.why_not_found()
    {
        return reason;
    }
    let (program, file) = prepared.tried();
    let shown = program.display();
    EndReason::LaunchFailed(match number {
        Some(libc::ENOEXEC) if let Err(EndReason::LaunchFailed(why)) = as_script(prepared) => why,
        Some(libc::E2BIG) => too_large(prepared, memory_mib),
        Some(libc::ENOMEM) if memory_mib > 0 && machine_has_memory() => no_room(prepared, memory_mib),
        Some(libc::EAGAIN | libc::ENOMEM | libc::ENFILE) => return node_fault("start another process", error),
        _ if is_out_of_reach(error) => return node_fault(&format!("read {shown}"), error),
        Some(libc::ENOENT) => missing(&program, &file),
        Some(libc::ENOTDIR) => match file.ancestors().skip(1).find(|above| above.exists()) {
            Some(above) => {
                format!("{shown} does not exist on this node: {} is a file, not a directory", above.display())
            }
            None => format!("{shown} does not exist on this node"),
        },
        Some(libc::EACCES) => format!("cannot execute {shown}: {}", not_permitted(&program, &file)),
        Some(libc::ELOOP) if file.exists() => {
            format!("cannot execute {shown}: the interpreter on its first line is a script, nested too deeply")
        }
        Some(libc::ETXTBSY) => format!(
            "cannot execute {shown}: a process has it open for writing; wait until the process closes it, or write it \
             under another name and rename it"
        ),
        Some(libc::ENOEXEC) => format!("cannot execute {shown}: it is {DAMAGED}"),
        _ => format!("cannot execute {shown}: {error}"),
    })
}

/// The arguments with which `/bin/sh` runs a script without an interpreter on its first line, which the kernel cannot
/// execute.
///
/// # Errors
/// If the file is not a script. A shell would run everything in it that looks like a command.
pub fn as_script(prepared: &Prepared) -> Result<Vec<CString>, EndReason> {
    let (program, file) = prepared.tried();
    match head(&file).map(|head| why_no_script(&head)) {
        Ok(None) => {
            let start = [CString::from(SHELL), prepared.program().clone()];
            Ok(start.into_iter().chain(prepared.arguments.iter().skip(1).cloned()).collect())
        }
        Ok(Some(why)) => Err(EndReason::LaunchFailed(format!("cannot execute {}: {why}", program.display()))),
        Err(error) if is_out_of_reach(&error) => Err(node_fault(&format!("read {}", program.display()), &error)),
        Err(error) => Err(EndReason::LaunchFailed(format!("cannot read {}: {error}", program.display()))),
    }
}

/// A message if the first line of a script ends with a carriage return. It may explain why an executed script failed.
pub fn carriage_return(program: &Path) -> Option<String> {
    let head = head(program).ok()?;
    let line = first_line(&head);
    let shown = program.display();
    (line.starts_with(b"#!") && line.ends_with(b"\r"))
        .then(|| format!("the first line of {shown} {}", is_from_windows(program)))
}

/// The end of an attempt whose program file is incomplete. The kernel executes such a file, and kills the process when
/// it reaches the missing part.
pub fn cut_short(program: &Path) -> Option<EndReason> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(program).ok()?;
    let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let mut headers = Vec::new();
    file.take(MOST_HEADERS).read_to_end(&mut headers).ok()?;
    (needed(&headers)? > metadata.len()).then(|| {
        EndReason::LaunchFailed(format!(
            "cannot execute {}: the file is incomplete; write or copy it again",
            program.display()
        ))
    })
}

/// Number of bytes at the start of an ELF file in which its program headers are expected.
const MOST_HEADERS: u64 = 64 << 10;

/// The minimum length in bytes of a 64-bit ELF file of this machine's byte order, from its program headers.
fn needed(headers: &[u8]) -> Option<u64> {
    const CLASS_64: u8 = 2;
    const LOADED: u32 = 1;
    let bytes = |at: usize, length: usize| headers.get(at..at.checked_add(length)?);
    let short = |at| Some(u16::from_ne_bytes(bytes(at, 2)?.try_into().ok()?));
    let word = |at| Some(u32::from_ne_bytes(bytes(at, 4)?.try_into().ok()?));
    let long = |at| Some(u64::from_ne_bytes(bytes(at, 8)?.try_into().ok()?));
    if !headers.starts_with(ELF) || headers.get(4) != Some(&CLASS_64) {
        return None;
    }
    let (first, size, count) = (usize::try_from(long(32)?).ok()?, usize::from(short(54)?), usize::from(short(56)?));
    let segments = (0..count).map(|number| first.checked_add(number.checked_mul(size)?));
    let ends = segments.map(|at| {
        let at = at?;
        match word(at)? {
            LOADED => long(at + 8)?.checked_add(long(at + 32)?),
            _ => Some(0),
        }
    });
    ends.collect::<Option<Vec<u64>>>()?.into_iter().max()
}

const DAMAGED: &str = "damaged, or for another machine";

fn is_from_windows(program: &Path) -> String {
    let shown = program.display();
    format!("ends with a carriage return, as on Windows; convert the file: sed -i 's/\\r$//' {shown}")
}

/// The paths that the program's file may have.
pub fn files(prepared: &Prepared) -> Vec<PathBuf> {
    let directory = path(&prepared.directory);
    prepared.programs.iter().map(|program| directory.join(path(program))).collect()
}

fn path(text: &CStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text.to_bytes()))
}

/// The start of a regular file; empty for others. Opening a pipe does not block.
fn head(file: &Path) -> io::Result<Vec<u8>> {
    let opened: File = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(file)?;
    let mut head = Vec::new();
    if opened.metadata()?.is_file() {
        opened.take(HEAD).read_to_end(&mut head)?;
    }
    Ok(head)
}

fn first_line(head: &[u8]) -> &[u8] {
    head.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// The interpreter that the kernel would execute: the first word after `#!`.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let words = line.strip_prefix(b"#!")?;
    let word = words.split(|byte| matches!(byte, b' ' | b'\t' | 0)).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

fn missing(program: &Path, file: &Path) -> String {
    let shown = program.display();
    if file.exists() {
        let head = head(file).unwrap_or_default();
        let line = first_line(&head);
        return match interpreter(line) {
            Some(_) if line.ends_with(b"\r") => {
                format!("cannot execute {shown}: its first line {}", is_from_windows(program))
            }
            Some(interpreter) => format!(
                "cannot execute {shown}: the interpreter on its first line, {}, is missing on this node",
                interpreter.display()
            ),
            None => format!(
                "cannot execute {shown}: its loader is missing on this node, so it was built for another system; build \
                 it here"
            ),
        };
    }
    match fs::read_link(file) {
        Ok(target) => format!("{shown} is a link to {}, which does not exist on this node", target.display()),
        Err(_) if is_command_line(&shown.to_string()) => needs_shell(&shown.to_string()),
        Err(_) => format!("{shown} does not exist on this node"),
    }
}

fn not_permitted(program: &Path, file: &Path) -> String {
    let metadata = match fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(_) => {
            return "the user that tasks run as on this node may not enter a directory of its path".to_owned();
        }
    };
    if let Some(why) = why_not_executable(file, &metadata) {
        return format!("it {why}");
    }
    let line = head(file).unwrap_or_default();
    if let Some(interpreter) = interpreter(first_line(&line))
        && let Ok(metadata) = fs::metadata(&interpreter)
        && let Some(why) = why_not_executable(&interpreter, &metadata)
    {
        return format!("the interpreter on its first line, {}, {why}", interpreter.display());
    }
    format!("the user that tasks run as on this node has no permission; see `ls -l {}`", program.display())
}

fn why_not_executable(file: &Path, metadata: &fs::Metadata) -> Option<String> {
    if metadata.is_dir() {
        return Some("is a directory, not a program".to_owned());
    }
    if !metadata.is_file() {
        return Some("is not a regular file".to_owned());
    }
    if metadata.mode() & 0o111 == 0 {
        return Some("is not executable on this node; use `chmod +x`".to_owned());
    }
    let mounted = rustix::fs::statvfs(file).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOEXEC));
    mounted.then(|| "is on a file system that is mounted `noexec` on this node; put it on another one".to_owned())
}

/// Why a file in a format that the kernel does not know is not a script for a shell; `None` if it is one.
fn why_no_script(head: &[u8]) -> Option<String> {
    let line = first_line(head);
    if head.is_empty() {
        return Some("it is empty; write or copy it again".to_owned());
    }
    if head.strip_prefix(BYTE_ORDER_MARK).is_some_and(|rest| rest.starts_with(b"#!")) {
        return Some("a byte order mark is before its `#!`; remove it: sed -i '1s/^\\xef\\xbb\\xbf//' FILE".to_owned());
    }
    if line.starts_with(b"#!") {
        return Some(match interpreter(line) {
            None => "its first line names no interpreter after `#!`".to_owned(),
            Some(_) if line.len() as u64 >= HEAD => {
                format!("its first line is longer than the {} bytes that the kernel reads", HEAD - 1)
            }
            Some(path) => format!("the interpreter on its first line, {}, is {DAMAGED}", path.display()),
        });
    }
    if may_be_script(head) {
        return None;
    }
    let own = rustix::system::uname().machine().to_string_lossy().into_owned();
    Some(match machine(head) {
        Some(machine) if machine != own => format!("it is a program for {machine}, and this node is {own}"),
        _ => format!("it is {DAMAGED}"),
    })
}

/// Whether a file in a format that the kernel does not know is a script for a shell. Does not allocate memory.
pub fn may_be_script(head: &[u8]) -> bool {
    // Like shells, this takes a file for binary if its first line contains one of these bytes.
    let is_binary = |byte: &u8| matches!(byte, 0..=6 | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f);
    let has_mark = head.strip_prefix(BYTE_ORDER_MARK).is_some_and(|rest| rest.starts_with(b"#!"));
    let line = first_line(head);
    !head.is_empty() && !has_mark && !line.starts_with(b"#!") && !head.starts_with(ELF) && !line.iter().any(is_binary)
}

/// The machine of an ELF file, in the form of `uname -m`.
fn machine(head: &[u8]) -> Option<&'static str> {
    let number: [u8; 2] = head.starts_with(ELF).then(|| head.get(18..20)?.try_into().ok())??;
    let number = if head.get(5) == Some(&2) { u16::from_be_bytes(number) } else { u16::from_le_bytes(number) };
    const NAMES: [(u16, &str); 8] = [
        (3, "i686"),
        (21, "ppc64le"),
        (22, "s390x"),
        (40, "armv7l"),
        (62, "x86_64"),
        (183, "aarch64"),
        (243, "riscv64"),
        (258, "loongarch64"),
    ];
    NAMES.into_iter().find_map(|(known, name)| (known == number).then_some(name))
}

/// Explains `E2BIG`. The kernel has a limit for each argument and variable, and one for all together. If neither is
/// exceeded, the task's memory limit is too low.
fn too_large(prepared: &Prepared, memory_mib: u32) -> String {
    let most_of_one = rustix::param::page_size() * 32 - 1;
    let is_too_long = |text: &&CString| text.as_bytes().len() > most_of_one;
    let remedy = "write it to a file, and pass the file's name";
    if let Some(variable) = prepared.environment.iter().find(is_too_long) {
        let name = variable.as_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
        let (name, length) = (String::from_utf8_lossy(name), variable.as_bytes().len());
        return format!(
            "its variable {name} is {length} bytes long with its name, and the kernel allows at most {most_of_one}; \
             {remedy}"
        );
    }
    if let Some((place, argument)) = prepared.arguments.iter().enumerate().find(|(_, text)| is_too_long(text)) {
        let length = argument.as_bytes().len();
        return format!(
            "its argument {place} is {length} bytes long, and the kernel allows at most {most_of_one}; {remedy}"
        );
    }
    let most_of_all = getrlimit(Resource::Stack).current.map_or(MOST_OF_ALL, |stack| stack / 4);
    let most_of_all = most_of_all.clamp(LEAST_OF_ALL, MOST_OF_ALL);
    let bytes = size(prepared);
    match memory_mib {
        1.. if bytes <= most_of_all => no_room(prepared, memory_mib),
        _ => format!(
            "its arguments and environment are {bytes} bytes together, and the kernel allows at most {most_of_all} on \
             this node, a quarter of the stack's limit; write them to a file, and pass the file's name"
        ),
    }
}

fn no_room(prepared: &Prepared, memory_mib: u32) -> String {
    let bytes = size(prepared);
    format!(
        "its memory limit of {memory_mib} MiB is too low to start it with {bytes} bytes of arguments and environment; \
         request more with `-r memory`"
    )
}

/// Size of arguments and environment as the kernel counts it: the texts, and a pointer to each.
fn size(prepared: &Prepared) -> u64 {
    let texts = prepared.arguments.iter().chain(&prepared.environment);
    texts.map(|text| (text.as_bytes_with_nul().len() + size_of::<usize>()) as u64).sum()
}

/// Whether the machine has free memory, so that a lack of memory is due to the task's limit.
fn machine_has_memory() -> bool {
    const ENOUGH_KIB: u64 = 64 << 10;
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.is_some_and(|kib| kib > ENOUGH_KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(program: &Path, more: &[CString]) -> Prepared {
        let program = CString::new(program.as_os_str().as_bytes()).unwrap();
        let arguments = [std::slice::from_ref(&program), more].concat();
        Prepared {
            programs: vec![program],
            arguments,
            environment: Vec::new(),
            directory: c"/".into(),
            is_of_another_user: false,
            mounts: None,
            container: None,
        }
    }

    fn why(program: &Path, number: i32) -> String {
        exec_failure(&prepared(program, &[]), &io::Error::from_raw_os_error(number), 0).to_string()
    }

    #[test]
    fn only_scripts_are_run_by_a_shell() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("program");
        let mut elf = vec![0_u8; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = 183;
        let long = format!("#!/{}\necho\n", "x".repeat(300));
        let own = rustix::system::uname().machine().to_string_lossy().into_owned();
        let foreign = format!("it is a program for aarch64, and this node is {own}");
        for (contents, expected) in [
            (&b"echo hi\n"[..], None),
            ("échò\ttab\r\nexit\n".as_bytes(), None),
            (b"caf\xe9=1\n\0\0binary behind a first line of text", None),
            (b"", Some("it is empty")),
            (b"\x7fELF", Some(DAMAGED)),
            (&elf[..16], Some(DAMAGED)),
            (b"MZ\x90\0\x03", Some(DAMAGED)),
            (b"\xff\xfee\0c\0h\0o\0", Some(DAMAGED)),
            (&elf, Some(if own == "aarch64" { DAMAGED } else { &foreign })),
            (b"#!\necho\n", Some("names no interpreter")),
            (long.as_bytes(), Some("longer than the 255 bytes")),
            (b"#!/etc/passwd\n", Some("the interpreter on its first line, /etc/passwd, is damaged")),
            (b"\xef\xbb\xbf#!/bin/sh\n", Some("a byte order mark")),
        ] {
            fs::write(&file, contents).unwrap();
            let result = as_script(&prepared(&file, &[c"argument".into()]));
            match expected {
                Some(expected) => {
                    let why = result.unwrap_err().to_string();
                    assert!(why.contains(expected), "{expected}: {why}");
                }
                None => {
                    let arguments = result.unwrap_or_else(|why| panic!("{contents:?}: {why}"));
                    assert_eq!((&*arguments[0], &*arguments[2]), (c"/bin/sh", c"argument"));
                }
            }
        }
    }

    #[test]
    fn the_message_names_the_missing_file() {
        let home = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let file = home.path().join(name);
            fs::write(&file, text).unwrap();
            file
        };
        let lacks = script("lacks", "#!  /no/such/interpreter -x\n");
        assert!(
            why(&lacks, libc::ENOENT).contains("the interpreter on its first line, /no/such/interpreter, is missing")
        );
        let crlf = script("crlf", "#!/bin/sh\r\necho\r\n");
        assert!(why(&crlf, libc::ENOENT).contains("ends with a carriage return"));
        assert!(carriage_return(&crlf).is_some() && carriage_return(&lacks).is_none());
        let binary = script("binary", "\x7fELF");
        assert!(why(&binary, libc::ENOENT).contains("its loader is missing"));
        let link = home.path().join("link");
        std::os::unix::fs::symlink("/no/such/target", &link).unwrap();
        assert!(why(&link, libc::ENOENT).contains("is a link to /no/such/target, which does not exist"));
        assert!(why(&crlf.join("below/x"), libc::ENOTDIR).contains("crlf is a file, not a directory"));
        assert!(why(Path::new("/no/such"), libc::ENOENT).ends_with("/no/such does not exist on this node"));
    }

    #[test]
    fn a_denied_execution_names_the_file_and_the_reason() {
        let home = tempfile::tempdir().unwrap();
        let directory = why(home.path(), libc::EACCES);
        assert!(directory.contains("it is a directory, not a program") && !directory.contains("chmod"), "{directory}");
        let script = home.path().join("script");
        fs::write(&script, "#!/etc\n").unwrap();
        assert!(why(&script, libc::EACCES).contains("`chmod +x`"));
        fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(why(&script, libc::EACCES).contains("the interpreter on its first line, /etc, is a directory"));
        fs::write(&script, "#!/etc/passwd\n").unwrap();
        assert!(why(&script, libc::EACCES).contains("/etc/passwd, is not executable"));
        assert!(why(&script, libc::ETXTBSY).contains("open for writing"));
    }

    #[test]
    fn errors_of_disks_file_servers_and_processes_are_node_faults() {
        let is_nodes = |number| {
            let error = io::Error::from_raw_os_error(number);
            matches!(exec_failure(&prepared(Path::new("/shared/tool"), &[]), &error, 0), EndReason::NodeFault(_))
        };
        assert!([libc::EIO, libc::ESTALE, libc::ENOTCONN, libc::ETIMEDOUT, libc::EAGAIN].into_iter().all(is_nodes));
        assert!(![libc::ENOENT, libc::EACCES, libc::ENOTDIR, libc::E2BIG].into_iter().any(is_nodes));
    }

    #[test]
    fn the_message_names_the_exceeded_limit() {
        let long = CString::new("x".repeat(200_000)).unwrap();
        let too_big = io::Error::from_raw_os_error(libc::E2BIG);
        let program = Path::new("/bin/true");
        let one = exec_failure(&prepared(program, std::slice::from_ref(&long)), &too_big, 1).to_string();
        assert!(one.contains("its argument 1 is 200000 bytes long, and the kernel allows at most 131071"), "{one}");
        let mut variable = prepared(program, &[]);
        variable.environment.push(CString::new(format!("BIG={}", "x".repeat(200_000))).unwrap());
        assert!(exec_failure(&variable, &too_big, 1).to_string().contains("its variable BIG is 200004 bytes long"));
        let many = vec![CString::new("x".repeat(100_000)).unwrap(); 70];
        let all = exec_failure(&prepared(program, &many), &too_big, 1).to_string();
        assert!(all.contains("are 7000") && all.contains("a quarter of the stack's limit"), "{all}");
        let little = exec_failure(&prepared(program, &many[..10]), &too_big, 1).to_string();
        assert!(little.contains("its memory limit of 1 MiB is too low") && little.contains("-r memory"), "{little}");
    }
}
