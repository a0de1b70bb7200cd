//! Programs of the kernel's virtual machine that deny access to devices, for groups of cgroup version 2.
//!
//! Version 2 has no file with a list of devices. It asks programs that are attached to a group about each access.

use crate::executor::devices::{DeviceKind, DeviceNumber};
use std::ffi::{CStr, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// The numbers of linux/bpf.h.
const LOAD: c_int = 5;
const ATTACH: c_int = 8;
const DETACH: c_int = 9;
const PROGRAM_OF_DEVICES: u32 = 15;
const ACCESS_TO_DEVICE: u32 = 6;
/// Programs of groups above and below are asked too, and each may deny.
const ALLOW_MULTI: u32 = 1 << 1;
const LICENSE: &CStr = c"Apache-2.0";

/// One instruction.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Instruction {
    code: u8,
    /// The destination in the low half, the source in the high half.
    registers: u8,
    offset: i16,
    value: i32,
}

/// The first fields of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct LoadRequest {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
}

/// The first fields of `union bpf_attr` for `BPF_PROG_ATTACH` and `BPF_PROG_DETACH`.
#[repr(C)]
struct AttachRequest {
    group: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// The program: with the type, the major and the minor number of the device in registers 2 to 4, it returns 0 for the
/// devices in the list, and 1, which allows the access, for others.
fn instructions(denied: &[DeviceNumber]) -> Vec<Instruction> {
    let load = |to: u8, offset| Instruction { code: 0x61, registers: to | 1 << 4, offset, value: 0 };
    let skip_unless = |register, value: u32, offset| {
        let value = value.cast_signed();
        Instruction { code: 0x55, registers: register, offset, value }
    };
    let returns = |value| {
        let set = Instruction { code: 0xb7, registers: 0, offset: 0, value };
        [set, Instruction { code: 0x95, registers: 0, offset: 0, value: 0 }]
    };
    // The type is in the low 16 bits of the first field, the kind of access in the others.
    let mask = Instruction { code: 0x54, registers: 2, offset: 0, value: 0xffff };
    let mut all = vec![load(2, 0), mask, load(3, 4), load(4, 8)];
    for number in denied {
        let kind = match number.kind {
            DeviceKind::Block => 1,
            DeviceKind::Character => 2,
        };
        all.extend([skip_unless(2, kind, 4), skip_unless(3, number.major, 3), skip_unless(4, number.minor, 2)]);
        all.extend(returns(0));
    }
    all.extend(returns(1));
    all
}

/// Loads a program that denies access to these devices.
pub fn load(denied: &[DeviceNumber]) -> io::Result<OwnedFd> {
    let instructions = instructions(denied);
    let request = LoadRequest {
        kind: PROGRAM_OF_DEVICES,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
    };
    // SAFETY: the request and what it points to live until the call returns, and the kernel only reads them.
    let descriptor = unsafe { call(LOAD, &request)? };
    // SAFETY: the kernel has just made this descriptor, which is close-on-exec, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as c_int) })
}

pub fn attach(program: &OwnedFd, group: BorrowedFd<'_>) -> io::Result<()> {
    on_group(ATTACH, program, group, ALLOW_MULTI)
}

pub fn detach(program: &OwnedFd, group: BorrowedFd<'_>) -> io::Result<()> {
    on_group(DETACH, program, group, 0)
}

fn on_group(command: c_int, program: &OwnedFd, group: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    let (group, program) = (group.as_raw_fd().cast_unsigned(), program.as_raw_fd().cast_unsigned());
    let request = AttachRequest { group, program, kind: ACCESS_TO_DEVICE, flags };
    // SAFETY: the request has no pointers, and lives until the call returns.
    unsafe { call(command, &request) }.map(drop)
}

/// # Safety
/// `request` must be the fields that the command reads; what it points to must be valid.
unsafe fn call<T>(command: c_int, request: &T) -> io::Result<c_long> {
    // SAFETY: see above; the kernel takes fields after the given size as zero.
    match unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(request), size_of::<T>()) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the instructions that [`instructions`] uses.
    fn allows(program: &[Instruction], access: [u32; 3]) -> bool {
        let mut registers = [0_i64; 5];
        let mut next = 0;
        loop {
            let Instruction { code, registers: used, offset, value } = program[next];
            let to = usize::from(used & 15);
            next += 1;
            match code {
                0x61 => registers[to] = i64::from(access[offset as usize / 4]),
                0x54 => registers[to] &= i64::from(value),
                0x55 if registers[to] != i64::from(value) => next += offset as usize,
                0x55 => {}
                0xb7 => registers[to] = i64::from(value),
                0x95 => return registers[0] == 1,
                _ => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn only_listed_devices_are_denied() {
        let device = |kind, major, minor| DeviceNumber { kind, major, minor };
        let denied = [device(DeviceKind::Character, 195, 0), device(DeviceKind::Block, 8, 1)];
        let program = instructions(&denied);
        // The kind of access is in the upper half.
        for access in [1 << 16, 2 << 16, 6 << 16] {
            assert!(!allows(&program, [access | 2, 195, 0]) && !allows(&program, [access | 1, 8, 1]));
            for other in [[access | 1, 195, 0], [access | 2, 195, 1], [access | 2, 8, 0], [access | 2, 8, 1]] {
                assert!(allows(&program, other), "{other:?}");
            }
        }
        assert!(allows(&instructions(&[]), [2, 195, 0]));
    }
}
