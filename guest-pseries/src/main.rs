//! The reference kernel on QEMU's pseries machine: memory that the host adds and removes by RTAS.
//!
//! Built for `powerpc64le-unknown-linux-gnu` it is an ELF image without an operating system:
//! `qemu-system-ppc64 -M pseries,x-vof=on -kernel hotmem-guest-pseries`. For other targets it is a
//! program that prints this advice.
#![cfg_attr(target_arch = "powerpc64", no_std, no_main)]
// This crate defines memory functions. The compiler must not turn their loops into calls of
// themselves.
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
