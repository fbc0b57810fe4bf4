//! The reference kernel for page tables under Xen: a PV kernel, booted as dom0, that measures the
//! cost of changing them and shows which bits are lost.
//!
//! Built for `x86_64-unknown-none` it is an ELF image with Xen's notes: `qemu-system-x86_64
//! -kernel xen -initrd 'hotmem-guest-xen mode=test'`. For other targets there is only a program
//! that says so.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod kernel;

#[cfg(not(target_os = "none"))]
fn main() -> std::process::ExitCode {
    eprintln!("hotmem-guest-xen is a kernel: build it with --target x86_64-unknown-none");
    std::process::ExitCode::FAILURE
}
