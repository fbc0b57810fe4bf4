//! Passes the kernel's linker script to the linker.

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("powerpc64") {
        let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
        println!("cargo::rustc-link-arg-bins=-T{root}/link.ld");
        // The machine loads the image at a fixed address.
        println!("cargo::rustc-link-arg-bins=--no-pie");
        // The target's prebuilt `core` refers to `rust_eh_personality`. No code unwinds, so any
        // address will do.
        println!("cargo::rustc-link-arg-bins=--defsym=rust_eh_personality=0");
    }
}
