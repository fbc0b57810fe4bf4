//! Hands the kernel's linker script to the linker.

fn main() {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
    println!("cargo::rerun-if-changed=kernel.ld");
    println!("cargo::rustc-link-arg-bins=-T{root}/kernel.ld");
    println!("cargo::rustc-link-arg-bins=--no-pie");
    println!("cargo::rustc-link-arg-bins=--eh-frame-hdr");
}
