//! Access to devices: a task can use the files of the node's declared devices only if the device was assigned to it.
//! Files that belong to no declared device are not restricted.

use super::sys::bpf;
use amalgam_core::vocabulary::{ByteString, Devices, LaunchOrder, Named};
use rustix::fs::{major, minor};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

const GPU: &str = "gpu";
/// The variable with the GPUs that a program may use. The driver numbers those that are accessible from 0 on.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Files of NVIDIA's driver that belong to no GPU.
const OF_ALL_GPUS: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

/// A device of a node and its files, written like `gpu:0=/dev/nvidia0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFiles {
    pub kind: String,
    pub index: u32,
    pub files: Vec<PathBuf>,
}

impl FromStr for DeviceFiles {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceFiles, String> {
        let wrong = || format!("`{text}` is not a device with its files; write for instance `gpu:0=/dev/nvidia0`");
        let (device, files) = text.split_once('=').ok_or_else(wrong)?;
        let (kind, index) = device.split_once(':').ok_or_else(wrong)?;
        if kind != GPU {
            Named::Resource.check(kind).map_err(|wrong| wrong.to_string())?;
        }
        let files: Vec<PathBuf> = files.split(',').map(PathBuf::from).collect();
        if let Some(file) = files.iter().find(|file| !file.is_absolute()) {
            return Err(format!("the device file `{}` in `{text}` is not an absolute path", file.display()));
        }
        Ok(DeviceFiles { kind: kind.to_owned(), index: index.parse().map_err(|_| wrong())?, files })
    }
}

impl fmt::Display for DeviceFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        write!(f, "{}:{}={}", self.kind, self.index, files.join(","))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeviceKind {
    Block,
    Character,
}

/// By which the kernel knows a device; a device can have many files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceNumber {
    pub kind: DeviceKind,
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    fn of(file: &Path) -> Option<DeviceNumber> {
        let found = fs::metadata(file).ok()?;
        let kind = match found.file_type() {
            kind if kind.is_char_device() => DeviceKind::Character,
            kind if kind.is_block_device() => DeviceKind::Block,
            _ => return None,
        };
        Some(DeviceNumber { kind, major: major(found.rdev()), minor: minor(found.rdev()) })
    }
}

/// A line of the files of version 1: all kinds of access to one device.
impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == DeviceKind::Block { 'b' } else { 'c' };
        write!(f, "{kind} {}:{} rwm", self.major, self.minor)
    }
}

/// The declared devices of a node.
#[derive(Debug, Default)]
pub struct KnownDevices {
    devices: Vec<DeviceFiles>,
    /// Whether the driver of GPUs sees only those that are assigned.
    hides_gpus: bool,
}

impl KnownDevices {
    /// The declared devices, and the NVIDIA GPUs of this machine if no GPUs are declared.
    pub fn new(declared: &[DeviceFiles]) -> KnownDevices {
        let mut devices = declared.to_vec();
        let hides_gpus = !devices.iter().any(|device| device.kind == GPU);
        if hides_gpus {
            devices.extend(nvidia_gpus(Path::new("/dev")));
        }
        KnownDevices { devices, hides_gpus }
    }

    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// What users are told about access to devices; `error` is why it cannot be restricted. Empty without devices.
    pub fn notes(&self, error: Option<&str>) -> Vec<String> {
        if self.is_empty() {
            return Vec::new();
        }
        if let Some(error) = error {
            return vec![format!("devices are not enforced, a task can use those of others: {error}")];
        }
        let names = self.devices.iter().map(|device| format!("{} {}", device.kind, device.index));
        let mut notes = vec![format!("devices are enforced: {}", names.collect::<Vec<_>>().join(", "))];
        for device in &self.devices {
            for file in device.files.iter().filter(|file| DeviceNumber::of(file).is_none()) {
                let DeviceFiles { kind, index, .. } = device;
                notes.push(format!(
                    "{} of {kind} {index} is no device file, so no task is kept from it",
                    file.display()
                ));
            }
        }
        notes
    }

    /// One or more numbers, to try whether they can be denied.
    pub fn any(&self) -> Vec<DeviceNumber> {
        let none = DeviceNumber { kind: DeviceKind::Character, major: 0, minor: 0 };
        let all = self.withheld(&Vec::new());
        if all.is_empty() { vec![none] } else { all }
    }

    /// The devices that a task must not use: those that were not assigned to it, except for those that have a file in
    /// common with one that was. The files are inspected each time, because drivers create them late.
    pub fn withheld(&self, assigned: &Devices) -> Vec<DeviceNumber> {
        let is_assigned = |device: &&DeviceFiles| {
            assigned.iter().any(|(kind, indexes)| *kind == device.kind && indexes.contains(&device.index))
        };
        let numbers = |devices: Vec<&DeviceFiles>| -> BTreeSet<DeviceNumber> {
            devices.into_iter().flat_map(|device| &device.files).filter_map(|file| DeviceNumber::of(file)).collect()
        };
        let (given, others) = self.devices.iter().partition(is_assigned);
        let given = numbers(given);
        numbers(others).into_iter().filter(|number| !given.contains(number)).collect()
    }

    /// The files of these devices, and those that all GPUs of NVIDIA need.
    pub fn files(&self, assigned: &Devices) -> Vec<PathBuf> {
        let is_assigned = |device: &&DeviceFiles| {
            assigned.iter().any(|(kind, indexes)| *kind == device.kind && indexes.contains(&device.index))
        };
        let mut files: Vec<PathBuf> =
            self.devices.iter().filter(is_assigned).flat_map(|device| device.files.iter().cloned()).collect();
        if files.iter().any(|file| file.as_os_str().as_bytes().starts_with(b"/dev/nvidia")) {
            files.extend(OF_ALL_GPUS.map(PathBuf::from));
        }
        files
    }

    /// Numbers the GPUs in the task's environment as the driver does, unless the job has set the variable itself.
    pub fn renumber(&self, order: &LaunchOrder, environment: &mut [CString]) {
        let is_set = |(name, _): &(ByteString, ByteString)| name.as_bytes() == VISIBLE.as_bytes();
        if !order.template.program.env.iter().any(is_set) {
            self.renumber_assigned(&order.devices, environment);
        }
    }

    fn renumber_assigned(&self, assigned: &Devices, environment: &mut [CString]) {
        let Some((_, indexes)) = assigned.iter().find(|(kind, _)| kind == GPU) else { return };
        let is_known = |index: &u32| self.devices.iter().any(|device| device.kind == GPU && device.index == *index);
        // A GPU without a file on this machine keeps its index.
        if !self.hides_gpus || indexes.is_empty() || !indexes.iter().all(is_known) {
            return;
        }
        let prefix = format!("{VISIBLE}=");
        let entry = environment.iter_mut().find(|entry| entry.as_bytes().starts_with(prefix.as_bytes()));
        let numbers: Vec<String> = (0..indexes.len()).map(|number| number.to_string()).collect();
        if let (Some(entry), Ok(changed)) = (entry, CString::new(prefix + &numbers.join(","))) {
            *entry = changed;
        }
    }
}

/// `/dev/nvidia0` and so on, with indexes in the order of their numbers.
fn nvidia_gpus(directory: &Path) -> Vec<DeviceFiles> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let number = |name: std::ffi::OsString| {
        let digits = name.to_str()?.strip_prefix("nvidia")?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u32>().ok())?
    };
    let numbers: BTreeSet<u32> = names.filter_map(number).collect();
    let gpu = |(index, number): (usize, u32)| DeviceFiles {
        kind: GPU.to_owned(),
        index: index as u32,
        files: vec![directory.join(format!("nvidia{number}"))],
    };
    numbers.into_iter().enumerate().map(gpu).collect()
}

/// Restricts access to devices in one group.
#[derive(Debug)]
pub struct DeviceGate {
    control: Control,
    denied: Vec<DeviceNumber>,
}

#[derive(Debug)]
enum Control {
    /// The group's directory in the tree of the devices controller.
    V1(PathBuf),
    V2 {
        group: OwnedFd,
        program: Option<OwnedFd>,
    },
}

impl DeviceGate {
    pub fn v1(group: PathBuf) -> DeviceGate {
        DeviceGate { control: Control::V1(group), denied: Vec::new() }
    }

    pub fn v2(group: &Path) -> io::Result<DeviceGate> {
        let control = Control::V2 { group: File::open(group)?.into(), program: None };
        Ok(DeviceGate { control, denied: Vec::new() })
    }

    /// Denies access to these devices, and no longer to those that were denied before.
    pub fn deny(&mut self, denied: Vec<DeviceNumber>) -> io::Result<()> {
        if self.denied == denied {
            return Ok(());
        }
        match &mut self.control {
            Control::V1(group) => {
                for number in denied.iter().filter(|number| !self.denied.contains(number)) {
                    fs::write(group.join("devices.deny"), number.to_string())?;
                }
                for number in self.denied.iter().filter(|number| !denied.contains(number)) {
                    match fs::write(group.join("devices.allow"), number.to_string()) {
                        // A group above denies it too.
                        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                        result => result?,
                    }
                }
            }
            Control::V2 { group, program } => {
                let next = match denied.is_empty() {
                    true => None,
                    false => Some(bpf::load(&denied)?),
                };
                if let Some(next) = &next {
                    bpf::attach(next, group.as_fd())?;
                }
                if let Some(before) = std::mem::replace(program, next) {
                    bpf::detach(&before, group.as_fd())?;
                }
            }
        }
        self.denied = denied;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_written_with_their_files() {
        let parsed: DeviceFiles = "gpu:1=/dev/nvidia1,/dev/dri/renderD129".parse().unwrap();
        let files = vec!["/dev/nvidia1".into(), "/dev/dri/renderD129".into()];
        assert_eq!(parsed, DeviceFiles { kind: GPU.to_owned(), index: 1, files });
        assert_eq!(parsed.to_string().parse(), Ok(parsed));
        for wrong in
            ["gpu", "gpu=/dev/nvidia0", "gpu:x=/dev/nvidia0", "gpu:0", "gpu:0=", "gpu:0=nvidia0", "g/u:0=/dev/a"]
        {
            assert!(wrong.parse::<DeviceFiles>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nvidia_gpus_are_found_in_the_order_of_their_numbers() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let found: Vec<String> = nvidia_gpus(directory.path()).iter().map(ToString::to_string).collect();
        let shown = directory.path().display();
        assert_eq!(found, [format!("gpu:0={shown}/nvidia2"), format!("gpu:1={shown}/nvidia10")]);
    }

    #[test]
    fn devices_that_are_not_assigned_are_withheld_unless_a_file_is_shared() {
        let known = ["gpu:0=/dev/null,/dev/zero", "gpu:1=/dev/full,/dev/zero", "fpga:0=/dev/random,/no/such/file"];
        let devices = known.map(|text| text.parse().unwrap()).to_vec();
        let known = KnownDevices { devices, hides_gpus: false };
        let minors = |assigned: &[(&str, u32)]| -> Vec<u32> {
            let assigned = assigned.iter().map(|(kind, index)| ((*kind).to_owned(), vec![*index])).collect();
            known.withheld(&assigned).into_iter().map(|number| number.minor).collect()
        };
        assert_eq!(minors(&[]), [3, 5, 7, 8]);
        assert_eq!(minors(&[("gpu", 0)]), [7, 8]);
        assert_eq!(minors(&[("gpu", 1), ("fpga", 0)]), [3]);
        assert_eq!(minors(&[("fpga", 1)]), [3, 5, 7, 8]);
        let notes = known.notes(None);
        assert_eq!(notes[0], "devices are enforced: gpu 0, gpu 1, fpga 0");
        assert_eq!(notes[1..], ["/no/such/file of fpga 0 is no device file, so no task is kept from it"]);
        assert!(KnownDevices::default().notes(Some("why")).is_empty());
    }

    #[test]
    fn gpus_are_numbered_like_those_that_the_driver_can_open() {
        let devices: Vec<DeviceFiles> =
            ["gpu:0=/dev/nvidia0", "gpu:3=/dev/nvidia3"].map(|one| one.parse().unwrap()).into();
        let numbered = |hides_gpus, indexes: &[u32]| {
            let known = KnownDevices { devices: devices.clone(), hides_gpus };
            let before = indexes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let mut environment = [c"A=b".to_owned(), CString::new(format!("{VISIBLE}={before}")).unwrap()];
            known.renumber_assigned(&vec![(GPU.to_owned(), indexes.to_vec())], &mut environment);
            environment[1].to_str().unwrap().to_owned()
        };
        assert_eq!(numbered(true, &[3]), "CUDA_VISIBLE_DEVICES=0");
        assert_eq!(numbered(true, &[0, 3]), "CUDA_VISIBLE_DEVICES=0,1");
        assert_eq!(numbered(true, &[]), "CUDA_VISIBLE_DEVICES=");
        assert_eq!(numbered(true, &[3, 5]), "CUDA_VISIBLE_DEVICES=3,5");
        assert_eq!(numbered(false, &[3]), "CUDA_VISIBLE_DEVICES=3");
    }
}
