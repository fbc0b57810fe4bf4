//! Passes the kernels' linker script to the linker.

use std::path::Path;

fn main() {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
    let script = Path::new(&root).join("kernel.ld");
    let script = if script.exists() { script } else { Path::new(&root).join("../kernel.ld") };
    println!("cargo::rerun-if-changed={}", script.display());
    println!("cargo::rustc-link-arg-bins=-T{}", script.display());
    println!("cargo::rustc-link-arg-bins=--no-pie");
    println!("cargo::rustc-link-arg-bins=--eh-frame-hdr");
}
