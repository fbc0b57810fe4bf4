//! Passes the linker script of the kernels' architecture to the linker.

fn main() {
    let variable = |name| std::env::var(name).expect("cargo sets it for build scripts");
    let script = format!("src/{}/link.ld", variable("CARGO_CFG_TARGET_ARCH"));
    println!("cargo::rerun-if-changed={script}");
    println!("cargo::rustc-link-arg-examples=-T{}/{script}", variable("CARGO_MANIFEST_DIR"));
    println!("cargo::rustc-link-arg-examples=--no-pie");
}
