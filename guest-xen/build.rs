//! Passes the kernel's linker script to the linker.

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
        println!("cargo::rustc-link-arg-bins=-T{root}/link.ld");
        // Xen loads a PV kernel at fixed addresses.
        println!("cargo::rustc-link-arg-bins=--no-pie");
    }
}
