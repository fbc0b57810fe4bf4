//! Passes ArceOS's linker script to the linker. The build of ArceOS's crate `axhal` has written the
//! script.

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it for build scripts");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-T{out}/../../../linker_x86-pc.lds");
    println!("cargo::rustc-link-arg=-no-pie");
    println!("cargo::rustc-link-arg=-znostart-stop-gc");
}
