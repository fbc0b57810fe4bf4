//! Passes the linker script of the kernel's architecture to the linker.

fn main() {
    let variable = |name| std::env::var(name).expect("cargo sets it for build scripts");
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    let is_flat = arch != "x86_64";
    let directory = if is_flat { "flat_image" } else { &arch };
    let script = format!("src/arch/{directory}/link.ld");
    println!("cargo::rerun-if-changed={script}");
    if variable("CARGO_CFG_TARGET_OS") == "none" {
        println!("cargo::rustc-link-arg-bins=-T{}/{script}", variable("CARGO_MANIFEST_DIR"));
        // The target's default is a position-independent executable, which would have to relocate
        // itself; the kernel is linked for the addresses at which it runs.
        println!("cargo::rustc-link-arg-bins=--no-pie");
        if is_flat {
            // QEMU passes the device tree of aarch64 only to a flat image.
            println!("cargo::rustc-link-arg-bins=--oformat=binary");
        }
    }
}
