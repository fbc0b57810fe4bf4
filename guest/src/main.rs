//! The bootable reference kernel: Hotmem on a virtual machine.
//!
//! Built for `x86_64-unknown-none`, the kernel is an ELF image that any PVH loader can start, for
//! example `qemu-system-x86_64 -M q35 -kernel hotmem-guest -append 'hotmem.exit=boot'`. Built for
//! another target, it is a program that prints this advice.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
extern crate alloc;

#[cfg(target_os = "none")]
mod arch;
#[cfg(target_os = "none")]
mod kernel;

#[cfg(not(target_os = "none"))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "hotmem-guest is a kernel: build it with --target x86_64-unknown-none and boot it by PVH"
    );
    std::process::ExitCode::FAILURE
}
