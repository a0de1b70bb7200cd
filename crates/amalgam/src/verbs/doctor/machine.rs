//! Limits, control groups and the name of this machine.

use super::{Check, Patient, Role};
use amalgam_daemon::executor::containers::Runtime;
use amalgam_daemon::executor::host::Host;
use amalgam_daemon::executor::offered::offered;
use rustix::process::{Resource, geteuid, getrlimit};
use std::ffi::OsStr;
use std::net::{IpAddr, ToSocketAddrs};
use std::{env, fs};

/// Fewer open files are a warning, because each agent, client or task needs some.
const ENOUGH_FILES: u64 = 16_384;
const FEW_FILES: u64 = 1_024;
const ENOUGH_PROCESSES: u64 = 4_096;

pub fn checks(patient: &Patient) -> Vec<Check> {
    let mut checks = vec![host_name(patient)];
    if patient.is(Role::Server) || patient.is(Role::Agent) {
        checks.push(open_files(getrlimit(Resource::Nofile).maximum));
    }
    if patient.is(Role::Agent) {
        checks.extend(control_groups());
        let ranges = ["/etc/subuid", "/etc/subgid"].map(|file| fs::read_to_string(file).unwrap_or_default());
        checks.push(containers(&env::var_os("PATH").unwrap_or_default(), geteuid().is_root(), &ranges));
    }
    checks
}

/// Join strings and certificates contain the name of the server's host, and nodes have the names of theirs.
fn host_name(patient: &Patient) -> Check {
    const CHECK: &str = "host name";
    let name = Host::inspect().hostname;
    let found: Vec<IpAddr> =
        (name.as_str(), 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip().to_canonical()).collect();
    let serves_others =
        patient.is(Role::Server) && !patient.config.agents().into_iter().all(amalgam_daemon::config::is_loopback);
    let remedy = format!(
        "add `{name}` to DNS or to /etc/hosts of the nodes, or use `amalgam token join --address HOST:PORT` and \
         `listen_names` of the configuration"
    );
    match found.first() {
        None if serves_others => {
            Check::problem(CHECK, format!("{name} has no address, and join strings name it"), remedy)
        }
        None => Check::warning(CHECK, format!("{name} has no address"), remedy),
        Some(_) if serves_others && found.iter().all(IpAddr::is_loopback) => {
            Check::warning(CHECK, format!("{name} is a loopback address here; do the nodes find it?"), remedy)
        }
        Some(address) => Check::ok(CHECK, format!("{name} is {address}")),
    }
}

fn open_files(most: Option<u64>) -> Check {
    const CHECK: &str = "open files";
    let remedy = format!(
        "raise the hard limit to at least {ENOUGH_FILES}: `LimitNOFILE=` of the unit, or `nofile` in /etc/security/limits.conf"
    );
    match most {
        None => Check::ok(CHECK, "no limit"),
        Some(most) if most >= ENOUGH_FILES => Check::ok(CHECK, format!("at most {most}")),
        Some(most) if most < FEW_FILES => Check::problem(CHECK, format!("at most {most}"), remedy),
        Some(most) => Check::warning(CHECK, format!("at most {most}"), remedy),
    }
}

fn control_groups() -> Vec<Check> {
    const CHECK: &str = "cgroups";
    let polling = "without cgroups, CPU is not limited and memory is only measured; run the agent as root, or as a service with \
                   Delegate=yes, as the packaged unit is";
    let Some(found) = offered() else {
        return vec![Check::warning(CHECK, "none are mounted", polling), processes(None)];
    };
    let place = format!("version {} at {}", found.version, found.group.display());
    let check = if !found.missing.is_empty() {
        let missing = found.missing.join(" and ");
        Check::warning(CHECK, format!("{place} without the controllers {missing}"), polling)
    } else if !found.is_writable {
        Check::warning(CHECK, format!("{place}, where you may not create groups"), polling)
    } else {
        Check::ok(CHECK, format!("{place}, with cpu and memory"))
    };
    vec![check, processes(found.processes)]
}

/// `of_group` is the limit of this process's control group.
fn processes(of_group: Option<u64>) -> Check {
    const CHECK: &str = "processes";
    // The limit of a user does not apply to root.
    let of_user = getrlimit(Resource::Nproc).current.filter(|_| !geteuid().is_root());
    match of_user.into_iter().chain(of_group).min() {
        None => Check::ok(CHECK, "no limit"),
        Some(most) if most >= ENOUGH_PROCESSES => Check::ok(CHECK, format!("at most {most}")),
        Some(most) => {
            let remedy = format!(
                "raise it to at least {ENOUGH_PROCESSES}: `TasksMax=` of the unit, or `nproc` in /etc/security/limits.conf"
            );
            Check::warning(CHECK, format!("at most {most}, for all tasks together"), remedy)
        }
    }
}

/// Whether the node runs tasks in containers, with this search path. `ranges` are the ids that users may use in them.
fn containers(search: &OsStr, is_root: bool, ranges: &[String]) -> Check {
    const CHECK: &str = "containers";
    let Some((runtime, path)) = Runtime::find(search) else {
        return Check::ok(CHECK, "neither podman nor apptainer is in PATH, so the node runs no tasks with `container`");
    };
    let found = format!("by {}", path.display());
    let has_ranges = ranges.iter().all(|text| text.lines().any(|line| line.contains(':')));
    let helpers = ["newuidmap", "newgidmap"].iter();
    let missing = helpers.filter(|name| !env::split_paths(search).any(|place| place.join(name).is_file())).count();
    match runtime {
        // Root's podman serves root's jobs only: users have theirs, which needs both.
        Runtime::Podman if is_root && missing > 0 => {
            let found = format!("{found}, which users cannot run without newuidmap and newgidmap");
            Check::warning(CHECK, found, "install the package uidmap, unless the agent has `--run-as agent`")
        }
        Runtime::Podman if is_root && !has_ranges => {
            let found = format!("{found}, and no user has ids for it in /etc/subuid and /etc/subgid");
            let remedy =
                "give each user a range: `usermod --add-subuids 200000-265535 --add-subgids 200000-265535 USER`";
            Check::warning(CHECK, found, remedy)
        }
        _ => Check::ok(CHECK, found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_users_need_for_containers_is_found() {
        let place = tempfile::tempdir().unwrap();
        let search = place.path().as_os_str();
        let ranges = |text: &str| [text.to_owned(), text.to_owned()];
        let some = ranges("ada:100000:65536\n");
        let program = |name: &str| {
            fs::write(place.path().join(name), "").unwrap();
            fs::set_permissions(place.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        assert_eq!(containers(search, true, &some).result, Outcome::Ok, "none is no fault");
        program("podman");
        let check = containers(search, true, &some);
        assert!(check.result == Outcome::Warning && check.remedy.contains("uidmap"), "{check:?}");
        assert_eq!(containers(search, false, &some).result, Outcome::Ok);
        program("newuidmap");
        program("newgidmap");
        assert_eq!(containers(search, true, &some).result, Outcome::Ok);
        let check = containers(search, true, &ranges(""));
        assert!(check.result == Outcome::Warning && check.remedy.contains("--add-subuids"), "{check:?}");
    }

    #[test]
    fn low_limits_are_found() {
        for (most, result) in [
            (None, Outcome::Ok),
            (Some(1 << 20), Outcome::Ok),
            (Some(4_096), Outcome::Warning),
            (Some(256), Outcome::Problem),
        ] {
            let check = open_files(most);
            assert_eq!(
                (check.result, check.remedy.contains("LimitNOFILE")),
                (result, result != Outcome::Ok),
                "{most:?}"
            );
        }
        assert_eq!(processes(Some(100)).result, Outcome::Warning);
    }
}
