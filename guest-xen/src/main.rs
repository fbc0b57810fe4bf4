//! The reference kernel for page tables under Xen. It is a PV kernel that boots as dom0. It
//! measures the cost of changing page tables, and counts the Dirty flags that are lost.
//!
//! Built for `x86_64-unknown-none`, the kernel is an ELF image with Xen's notes, which
//! `qemu-system-x86_64 -kernel xen -initrd 'hotmem-guest-xen mode=test'` boots. Built for another
//! target, it is a program that prints this advice.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod kernel;

#[cfg(not(target_os = "none"))]
fn main() -> std::process::ExitCode {
    eprintln!("hotmem-guest-xen is a kernel: build it with --target x86_64-unknown-none");
    std::process::ExitCode::FAILURE
}
