//! The bootable reference kernel: Hotmem on a virtual machine.
//!
//! Built for `x86_64-unknown-none`, the kernel is an ELF image that any loader for PVH or for Linux's 64-bit
//! boot protocol can start, for example
//! `qemu-system-x86_64 -M q35 -kernel hotmem-guest -append 'hotmem.exit=boot'`. Built for
//! `aarch64-unknown-none-softfloat`, it is a flat image that is started as Linux is, for example by
//! `qemu-system-aarch64 -M virt,gic-version=3 -cpu cortex-a72` with the same other arguments. So it is
//! for `riscv64imac-unknown-none-elf`, for example by `qemu-system-riscv64 -M virt`. Built for another
//! target, it is a program that prints this advice.
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
        "hotmem-guest is a kernel: build it with --target x86_64-unknown-none and boot it by PVH, or \
         with --target aarch64-unknown-none-softfloat or riscv64imac-unknown-none-elf and boot it as a flat \
         image"
    );
    std::process::ExitCode::FAILURE
}
