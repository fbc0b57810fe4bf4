//! The reference kernel for QEMU's pseries machine, whose host adds and removes memory by RTAS.
//!
//! Built for `powerpc64le-unknown-linux-gnu`, the kernel is an ELF image that needs no operating
//! system: `qemu-system-ppc64 -M pseries,x-vof=on -kernel hotmem-guest-pseries`. Built for another
//! target, it is a program that prints this advice.
#![cfg_attr(target_arch = "powerpc64", no_std, no_main)]
// This crate defines memory functions such as `memcpy`. The compiler must not replace their loops
// by calls of these same functions.
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
