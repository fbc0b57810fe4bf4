//! The port to OSTD. OSTD's crates use unstable features of a compiler that is newer than the
//! workspace's.

use super::port::{Image, Missing, Port};
use crate::{setup, step::Step, steps::Steps};

pub(super) const PORT: Port = Port {
    name: "ostd",
    images: &IMAGES,
    smoke_tests: "--nocapture first::ostd",
    all_tests: "--nocapture ostd",
    prepare,
    build: |image| Ok(vec![cargo(image.name, image.build)]),
    lint,
};

const IMAGES: [Image; 3] = [
    Image {
        name: "OSTD",
        description: "builds OSTD from its registry crates, with Hotmem as its frame allocator",
        build: "+1.99.0 --config ports/ostd/.cargo/config.toml \
                build --release --manifest-path ports/ostd/Cargo.toml -p hotmem-ostd \
                --target x86_64-unknown-none --target-dir target/ports/ostd",
        guest_cpus: 1,
    },
    Image {
        name: "OSTD's allocator and Hotmem",
        description: "builds OSTD with its own allocator and with Hotmem, for benches",
        build: "+1.99.0 --config ports/ostd/.cargo/config.toml \
                build --release --manifest-path ports/ostd/Cargo.toml -p hotmem-ostd-bench \
                --target x86_64-unknown-none --target-dir target/ports/ostd",
        guest_cpus: 1,
    },
    // Some of the tests expect a panic, so the core library is built with support for unwinding.
    Image {
        name: "OSTD's own tests",
        description: "builds OSTD with the tests of its package",
        build: "+1.99.0 --config ports/ostd/ktest/config.toml \
                build --release -Zbuild-std=core,alloc --manifest-path ports/ostd/Cargo.toml \
                -p hotmem-ostd-ktest \
                --target x86_64-unknown-none --target-dir target/ports/ostd-ktest",
        guest_cpus: 1,
    },
];

const TOOLCHAIN: &str = "1.99.0";

fn prepare() -> Result<(), Missing> {
    if setup::toolchain(TOOLCHAIN) {
        return Ok(());
    }
    let install = format!("rustup toolchain install {TOOLCHAIN} {}", setup::TOOLCHAIN_OPTIONS);
    Err(Missing::Optional(format!("OSTD: {install}")))
}

fn cargo(name: &'static str, args: &'static str) -> Step {
    Step::cargo(name, args).env("RUSTC_BOOTSTRAP", "1")
}

fn lint(steps: &mut Steps) {
    let format = "+1.99.0 fmt --manifest-path ports/ostd/Cargo.toml --all --check";
    steps.run(&cargo("formatting, ports/ostd", format));
    let clippy = "+1.99.0 --config ports/ostd/.cargo/config.toml \
                  clippy --quiet --manifest-path ports/ostd/Cargo.toml \
                  -p hotmem-ostd -p hotmem-ostd-allocator -p hotmem-ostd-bench \
                  --target x86_64-unknown-none --target-dir target/ports/ostd-lint -- -D warnings";
    steps.run(&cargo("clippy, ports/ostd", clippy));
}
