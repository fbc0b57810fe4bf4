//! The reference kernel on QEMU's pseries machine: memory that the host adds and removes by RTAS.
//!
//! Built for `powerpc64le-unknown-linux-gnu` it is an ELF image without an operating system:
//! `qemu-system-ppc64 -M pseries,x-vof=on -kernel hotmem-guest-pseries`. For other targets there is
//! only a program that says so.
#![cfg_attr(target_arch = "powerpc64", no_std, no_main)]
// This crate has the functions that the compiler makes calls of out of loops such as theirs.
#![cfg_attr(target_arch = "powerpc64", no_builtins)]

#[cfg(target_arch = "powerpc64")]
mod kernel;

#[cfg(not(target_arch = "powerpc64"))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "hotmem-guest-pseries is a kernel: build it with --target powerpc64le-unknown-linux-gnu"
    );
    std::process::ExitCode::FAILURE
}
