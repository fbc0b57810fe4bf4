//! Passes the kernels' linker script to the linker.

fn main() {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rustc-link-arg-examples=-T{root}/link.ld");
    println!("cargo::rustc-link-arg-examples=--no-pie");
}
