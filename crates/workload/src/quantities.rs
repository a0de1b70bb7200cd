//! Parsers of amounts, names and ranges that users write: `256MiB`, `1.5G`, `500m`, `0-199:10`.

use crate::suggest::closest;
use amalgam_core::vocabulary::byte_string::shown;
use amalgam_core::vocabulary::gpus::is_gpu_amount;
use amalgam_core::vocabulary::resources::{BUILT_IN, GPU};
use amalgam_core::vocabulary::{BadName, ByteString, Constraint, Duration, IndexRange, Named, ResourceSpec, WHOLE_GPU};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// The problem of a malformed text, and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    pub problem: String,
    pub remedy: String,
}

impl Malformed {
    pub fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Malformed {
        Malformed { problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for Malformed {}

const UNITS: [(&str, u64); 17] = [
    ("b", 1),
    ("k", 1_000),
    ("kb", 1_000),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1_000_000_000_000),
    ("tb", 1_000_000_000_000),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
];

/// Reads a size in bytes. A number without a unit is refused, unless it is 0: some users mean bytes, others mebibytes.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_size(text: &str) -> Result<u64, Malformed> {
    let trimmed = text.trim();
    let unit_at = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let (number, unit) = (trimmed[..unit_at].trim(), trimmed[unit_at..].to_ascii_lowercase());
    let malformed = || Malformed::new(format!("`{text}` is not a size"), "write for instance `256MiB` or `1.5GB`");
    let amount: f64 =
        number.parse().ok().filter(|amount| *amount >= 0.0 && f64::is_finite(*amount)).ok_or_else(malformed)?;
    if unit.is_empty() {
        return if amount == 0.0 { Ok(0) } else { Err(size_without_unit(trimmed)) };
    }
    let (_, bytes_per_unit) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?;
    let bytes = amount * bytes_per_unit as f64;
    if bytes >= (1u64 << 60) as f64 { Err(malformed()) } else { Ok(bytes.round() as u64) }
}

pub(crate) fn size_without_unit(number: impl fmt::Display) -> Malformed {
    Malformed::new(format!("the size `{number}` has no unit"), format!("write a unit, for instance `{number}MiB`"))
}

/// Reads a size in mebibytes. It is rounded up, so that a task never gets less than it requests.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_memory_mib(text: &str) -> Result<u32, Malformed> {
    let mib = parse_size(text)?.div_ceil(1 << 20);
    u32::try_from(mib).map_err(|_| Malformed::new(format!("`{text}` is more memory than any node has"), "write less"))
}

/// Reads a number of cores, in thousandths: `2`, `0.5` or `500m`.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_cpu_millis(text: &str) -> Result<u32, Malformed> {
    let trimmed = text.trim();
    let (number, millis_per_unit) = match trimmed.strip_suffix('m') {
        Some(number) => (number, 1.0),
        None => (trimmed, 1000.0),
    };
    let wrong =
        |problem: &str| Malformed::new(format!("`{text}` is {problem}"), "write for instance `2`, `0.5` or `500m`");
    let millis = number.trim().parse().map_or(f64::NAN, |amount: f64| amount * millis_per_unit);
    let whole = millis.round();
    match millis {
        _ if !millis.is_finite() || millis < 0.0 => Err(wrong("not a number of CPUs")),
        _ if whole > f64::from(u32::MAX) => Err(wrong("more CPUs than any node has")),
        // Ignore the rounding error of the decimal notation.
        _ if (millis - whole).abs() > 1e-6 * whole.max(1.0) => Err(wrong("finer than a thousandth of a CPU")),
        _ => Ok(whole as u32),
    }
}

/// Refuses tasks without any resources: nothing would be booked for them, and all tasks of an array would start at
/// once.
pub(crate) fn check_needs(needs: &ResourceSpec) -> Result<(), Malformed> {
    if needs.basic.is_zero() && needs.custom.iter().all(|(_, amount)| *amount == 0) {
        let problem = "the tasks request no resources, so that any number of them would fit on a node";
        return Err(Malformed::new(problem, "request a small amount, such as `cpu=0.001`, or memory"));
    }
    Ok(())
}

/// Reads a number of GPUs, in thousandths: `2`, `0.25` or `250m`. A task has whole GPUs, or a part of one that it
/// shares.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_gpu_millis(text: &str) -> Result<u32, Malformed> {
    let trimmed = text.trim();
    let (number, millis_per_unit) = match trimmed.strip_suffix('m') {
        Some(number) => (number, 1.0),
        None => (trimmed, f64::from(WHOLE_GPU)),
    };
    let wrong = |problem: &str| {
        Malformed::new(format!("`gpu={trimmed}` is {problem}"), "write for instance `1`, `2` or `0.25`")
    };
    let millis = number.trim().parse().map_or(f64::NAN, |amount: f64| amount * millis_per_unit);
    let whole = millis.round();
    match millis {
        _ if !millis.is_finite() || millis < 0.0 => Err(wrong("not a number of GPUs")),
        _ if whole > f64::from(u32::MAX) => Err(wrong("more than any node has")),
        // Ignore the rounding error of the decimal notation.
        _ if (millis - whole).abs() > 1e-6 * whole.max(1.0) => Err(wrong("finer than a thousandth of a GPU")),
        _ if !is_gpu_amount(whole as u32) => {
            Err(wrong("neither whole nor less than one: a task has whole GPUs, or shares one"))
        }
        _ => Ok(whole as u32),
    }
}

/// Reads a number of devices, each used by one task at a time, or a rate in MB/s, or GPUs in thousandths.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_devices(kind: &str, text: &str) -> Result<u32, Malformed> {
    let trimmed = text.trim();
    if kind == BUILT_IN[GPU] {
        return parse_gpu_millis(text);
    }
    let wrong = |problem: String, remedy: &str| Err(Malformed::new(problem, remedy));
    let counted = match BUILT_IN[2..GPU].contains(&kind) {
        true => "its unit is MB/s".to_owned(),
        false => format!("each {kind} is used by one task at a time"),
    };
    match (trimmed.parse::<u32>(), trimmed.parse::<f64>()) {
        (Ok(count), _) => Ok(count),
        (_, Ok(amount)) if amount.is_finite() && amount > 0.0 && amount.fract() != 0.0 => {
            wrong(format!("`{kind}={trimmed}` is not a whole number: {counted}"), "write a whole number")
        }
        (_, Ok(amount)) if amount >= f64::from(u32::MAX) => {
            wrong(format!("`{kind}={trimmed}` is more than any node has"), "request less")
        }
        _ => wrong(format!("`{kind}={trimmed}` is not a resource with its count"), "write for instance `fpga=1`"),
    }
}

/// Reads the CPUs of a node, which must be more than 0.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_node_cpu_millis(text: &str) -> Result<u32, Malformed> {
    match parse_cpu_millis(text)? {
        0 => Err(Malformed::new("a node without CPUs can run no tasks", "write for instance `2`, `0.5` or `500m`")),
        millis => Ok(millis),
    }
}

/// Reads the maximum run time of a task.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_timeout(text: &str) -> Result<Duration, Malformed> {
    let remedy = "write for instance `90s`, `5m`, `1h30m`, `250ms` or `00:01:30`";
    match Duration::parse(text) {
        Ok(Duration::ZERO) => {
            Err(Malformed::new("a timeout of zero would stop every task at once", "leave it out for no timeout"))
        }
        Ok(timeout) => Ok(timeout),
        Err(_) => Err(Malformed::new(format!("`{text}` is not a duration"), remedy)),
    }
}

/// Reads the name of a job.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_job_name(text: &str) -> Result<String, Malformed> {
    check_name(Named::Job, text)?;
    Ok(text.to_owned())
}

/// Reads the name of a node.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_node_name(text: &str) -> Result<String, Malformed> {
    check_name(Named::Node, text)?;
    Ok(text.to_owned())
}

pub(crate) fn check_name(named: Named, name: &str) -> Result<(), Malformed> {
    named.check(name).map_err(|BadName { problem, remedy }| Malformed::new(problem, remedy))
}

/// Reads `name=count`, for a resource that is not built in.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_named_count(text: &str) -> Result<(String, u32), Malformed> {
    let malformed =
        || Malformed::new(format!("`{text}` is not a resource with its count"), "write for instance `fpga=1`");
    let (name, count) = text.split_once('=').ok_or_else(malformed)?;
    check_resource_name(name.trim())?;
    let count = parse_devices(name.trim(), count)?;
    Ok((name.trim().to_owned(), count))
}

/// Checks the name of a resource. Every name may be that of a custom resource, so that only likely typos are refused.
pub(crate) fn check_resource_name(name: &str) -> Result<(), Malformed> {
    let slip = match name {
        "cpus" | "cores" | "core" => Some("cpu"),
        "mem" | "ram" | "memory-mb" => Some("memory"),
        "gpus" => Some("gpu"),
        _ => closest(name, BUILT_IN.into_iter().filter(|known| known.len() > 3)).filter(|near| *near != name),
    };
    if let Some(known) = slip {
        return Err(Malformed::new(format!("unknown resource `{name}`"), format!("did you mean `{known}`?")));
    }
    check_name(Named::Resource, name)
}

/// Reads `NAME=VALUE`.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_variable(text: &OsStr) -> Result<(ByteString, ByteString), Malformed> {
    let bytes = text.as_bytes();
    let end = bytes
        .iter()
        .position(|byte| *byte == b'=')
        .ok_or_else(|| Malformed::new(format!("`{}` is not a variable", shown(bytes)), "write `NAME=VALUE`"))?;
    let (name, value) = (&bytes[..end], &bytes[end + 1..]);
    check_variable(name, value)?;
    Ok((name.into(), value.into()))
}

/// The prefix of the variables that Amalgam sets for tasks. Users cannot set variables with it.
const OWN_VARIABLES: &[u8] = b"AMALGAM_";

pub(crate) fn check_variable(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    let shown = shown(name);
    if name.is_empty() || name.iter().any(|byte| b"=\0".contains(byte)) {
        return Err(Malformed::new(
            format!("`{shown}` is not a valid name of a variable"),
            "use letters, digits and underscores",
        ));
    }
    if name.starts_with(OWN_VARIABLES) {
        let problem = format!("`{shown}` cannot be set: variables that start with AMALGAM_ are reserved");
        return Err(Malformed::new(problem, "use another name"));
    }
    check_text(&format!("the value of `{shown}`"), value)
}

/// A NUL cannot be passed to a process.
pub(crate) fn check_text(what: &str, text: &[u8]) -> Result<(), Malformed> {
    if text.contains(&b'\0') {
        return Err(Malformed::new(format!("{what} contains a NUL character"), "remove it: no process can receive it"));
    }
    Ok(())
}

/// Indexes of an array, and the maximum number of its tasks that run at once, if given.
pub type LimitedArray = (Vec<IndexRange>, Option<u32>);

/// Reads array indexes with the maximum number of tasks that run at once: `0-199%10`.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_limited_array(text: &str) -> Result<LimitedArray, Malformed> {
    match text.split_once('%') {
        None => Ok((parse_array(text)?, None)),
        Some((indexes, limit)) => Ok((parse_array(indexes)?, Some(parse_at_once(limit)?))),
    }
}

/// Reads the maximum number of tasks of a stage that run at once.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_at_once(text: &str) -> Result<u32, Malformed> {
    match text.trim().parse() {
        Ok(0) => Err(Malformed::new(NONE_AT_ONCE, "write at least 1, or hold the job")),
        Ok(limit) => Ok(limit),
        Err(_) => {
            let problem = format!("`{}` is not a number of tasks that run at once", text.trim());
            Err(Malformed::new(problem, "write for instance `10`, or `0-199%10` with the indexes"))
        }
    }
}

/// Reads the name of a taint, as the constraint that tolerates it.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_taint(text: &str) -> Result<Constraint, Malformed> {
    let constraint = Constraint::tolerating(text);
    match Named::Attribute.check(&constraint.attribute) {
        Ok(()) if !text.is_empty() => Ok(constraint),
        _ => Err(Malformed::new(
            format!("`{text}` is not the name of a taint"),
            "use up to 58 letters, digits, dots, dashes and underscores",
        )),
    }
}

pub(crate) const NONE_AT_ONCE: &str = "no task could run: the maximum that run at once is 0";

/// Reads array indexes: `0-199`, `7`, `0-9,20-100:10`, in ascending order.
///
/// # Errors
/// The problem and the remedy.
pub fn parse_array(text: &str) -> Result<Vec<IndexRange>, Malformed> {
    let mut ranges: Vec<IndexRange> = Vec::new();
    for part in text.split(',') {
        let range = parse_range(part.trim()).ok_or_else(|| {
            Malformed::new(
                format!("`{}` is not a range of indexes", part.trim()),
                "write for instance `0-199`, `7` or `0-100:10`",
            )
        })?;
        if let Some(before) = ranges.last()
            && range.first <= before.last
        {
            let problem = format!("the index {} is not greater than {}", range.first, before.last);
            return Err(Malformed::new(problem, "write the ranges in ascending order without overlaps"));
        }
        ranges.push(range);
    }
    Ok(ranges)
}

fn parse_range(text: &str) -> Option<IndexRange> {
    let (bounds, step) = match text.split_once(':') {
        Some((bounds, step)) => (bounds, step.trim().parse().ok().filter(|step| *step > 0)?),
        None => (text, 1),
    };
    let (first, last) = match bounds.split_once('-') {
        Some((first, last)) => (first.trim().parse().ok()?, last.trim().parse().ok()?),
        None => {
            let only = bounds.trim().parse().ok()?;
            (only, only)
        }
    };
    (first <= last && last < u64::MAX).then_some(IndexRange { first, last, step })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_require_a_unit() {
        for (text, bytes) in
            [("256MiB", 256 << 20), ("1GB", 1_000_000_000), ("1.5G", 1_500_000_000), ("2 Ki", 2048), ("0", 0)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "512", "x", "5 parsecs", "-1GB", "1e30GB", "nanMB", "infGB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(parse_size("512").unwrap_err().remedy, "write a unit, for instance `512MiB`");
    }

    #[test]
    fn cpus_are_read_in_thousandths_and_finer_amounts_are_refused() {
        for (text, millis) in [("1", 1000), ("0.5", 500), ("500m", 500), ("0", 0), ("0.001", 1), ("1.1", 1100)] {
            assert_eq!(parse_cpu_millis(text), Ok(millis), "{text}");
        }
        for text in ["", "m", "two", "-1", "1e12", "1e19", "nan", "inf", "0.0004", "1.0005", "0.5m"] {
            assert!(parse_cpu_millis(text).is_err(), "{text}");
        }
        assert_eq!(parse_cpu_millis("0.0004").unwrap_err().problem, "`0.0004` is finer than a thousandth of a CPU");
    }

    #[test]
    fn parts_of_devices_and_empty_requests_are_refused() {
        for (text, millis) in [("2", 2_000), ("0.25", 250), ("250m", 250), ("0", 0), ("0.001", 1), ("1e0", 1_000)] {
            assert_eq!(parse_named_count(&format!("gpu={text}")), Ok(("gpu".to_owned(), millis)));
        }
        let problem = |text: &str| parse_named_count(text).unwrap_err().problem;
        assert!(problem("fpga=0.25").contains("is not a whole number"), "{}", problem("fpga=0.25"));
        assert!(problem("gpu=1.5").contains("neither whole nor less than one"), "{}", problem("gpu=1.5"));
        assert!(problem("gpu=0.0001").contains("finer than a thousandth"), "{}", problem("gpu=0.0001"));
        assert_eq!(problem("gpu=1e19"), "`gpu=1e19` is more than any node has");
        assert!(problem("disk-read=0.5").contains("MB/s"));
        for text in ["gpu=-1", "gpu=nan", "gpu=x", "gpu="] {
            assert!(problem(text).contains("is not a number of GPUs"), "{}", problem(text));
        }
        for text in ["fpga=-1", "fpga=nan", "fpga=x", "fpga="] {
            assert!(problem(text).contains("is not a resource with its count"), "{}", problem(text));
        }
        let mut needs = ResourceSpec::default();
        assert!(check_needs(&needs).is_err());
        needs.custom.push(("fpga".to_owned(), 1));
        assert_eq!(check_needs(&needs), Ok(()));
    }

    #[test]
    fn arrays_may_limit_the_tasks_that_run_at_once() {
        let range = vec![IndexRange { first: 0, last: 99, step: 1 }];
        assert_eq!(parse_limited_array("0-99%10"), Ok((range.clone(), Some(10))));
        assert_eq!(parse_limited_array("0-99 % 1"), Ok((range.clone(), Some(1))));
        assert_eq!(parse_limited_array("0-99"), Ok((range, None)));
        for text in ["0-99%", "0-99%0", "0-99%x", "0-99%-1", "%5", "0-99%5%5", "0-99%1.5"] {
            assert!(parse_limited_array(text).is_err(), "{text}");
        }
    }

    #[test]
    fn array_indexes_must_ascend() {
        let range = |first, last, step| IndexRange { first, last, step };
        assert_eq!(parse_array("0-3, 10-30:10,40"), Ok(vec![range(0, 3, 1), range(10, 30, 10), range(40, 40, 1)]));
        for text in ["", "a", "3-1", "0-9:0", "0-5,5-7", "1--2", "0-18446744073709551615", "-"] {
            assert!(parse_array(text).is_err(), "{text}");
        }
    }
}
