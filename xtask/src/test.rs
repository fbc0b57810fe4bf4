//! `cargo xtask test` and `cargo xtask deep`.

use crate::{
    backport, embed, ports, setup,
    step::{HOST, Step, Steps, root, runs, tests},
};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

const LOOM: &str = "--cfg loom";
const COUNTED: &str = "--cfg hotmem_atomics=\"counted\"";
const SMALL: &str = "--cfg hotmem_geometry=\"small\" --cfg hotmem_stores=\"ordinary\"";

/// Runs every test that a change must pass.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::timed("cargo xtask test");
    // Without valgrind, tests that count instructions are skipped.
    if !setup::valgrind() {
        steps.skip(setup::VALGRIND_WANTED);
    }
    let host = format!("test --no-fail-fast {HOST}");
    let host = Step::cargo("host tests", &host);
    steps.run(
        &host.about("every crate in this process: units, properties, examples, documentation"),
    );
    pseries(&mut steps, "pseries", |step| step);
    aarch64(&mut steps, "streams on AArch64", "-p hotmem-stream --lib --tests");
    narrow(&mut steps);
    bare_metal(&mut steps);
    embed::check(&mut steps);
    header(&mut steps);
    ports::check(&mut steps);
    small(&mut steps, "small machines", |step| step);
    lines(&mut steps);
    loom(&mut steps, "model checks", |step| step);
    miri(&mut steps);
    steps.conclude_tests()
}

/// Runs longer model checks and random tests, and fuzzing. Tests read `HOTMEM_DEEP`.
pub(crate) fn run_deep() -> ExitCode {
    let mut steps = Steps::timed("cargo xtask deep");
    // A new seed makes other random tests in each run. `.cargo/config.toml` sets a fixed one.
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    println!("PROPTEST_RNG_SEED={seed}");
    let deep: &dyn Fn(Step<'_>) -> Step<'_> = &|step| {
        step.env("HOTMEM_DEEP", "1").env("PROPTEST_RNG_SEED", seed.to_string()).seconds(3600)
    };
    steps.run(&deep(Step::cargo(
        "host tests, deep",
        "test --release --no-fail-fast --all-features",
    )));
    if setup::target() {
        guest(&mut steps, "guest under QEMU, deep", deep);
        if setup::qemu() {
            on_backport(&mut steps, "guest under a second QEMU, deep", ALL, deep);
        }
    } else {
        steps.missing(setup::TARGET_WANTED);
    }
    ports::check_all(&mut steps);
    pseries(&mut steps, "pseries, deep", deep);
    aarch64(&mut steps, "engine on AArch64", "-p hotmem -p hotmem-memmap --lib");
    small(&mut steps, "small machines, deep", deep);
    loom(&mut steps, "model checks, deep", deep);
    fuzz(&mut steps);
    steps.conclude_tests()
}

/// Tests the C interface's header with the compilers that are installed.
fn header(steps: &mut Steps) {
    if setup::cc() {
        let tests = tests("header", "");
        let tests = Step::cargo("header", &tests);
        steps.run(&tests.about("hotmem.h as C11 and C++17, its sizes and offsets as in Rust"));
    } else {
        steps.missing(setup::CC_WANTED);
    }
}

/// Tests with the device trees of QEMU's pseries machine, and with the guest that runs there.
fn pseries(steps: &mut Steps, name: &'static str, more: impl Fn(Step<'_>) -> Step<'_>) {
    if !setup::pseries() {
        steps.skip(setup::PSERIES_WANTED);
        return;
    }
    let mut only = "";
    if setup::pseries_target() {
        let guest =
            "build --release -p hotmem-guest-pseries --target powerpc64le-unknown-linux-gnu";
        let guest = Step::cargo("guest for pseries", guest);
        steps.run(&guest.about("builds the reference kernel for pseries"));
    } else {
        steps.skip(setup::PSERIES_TARGET_WANTED);
        only = "--skip guest::";
    }
    let tests = tests("pseries", only);
    let step = Step::cargo(name, &tests);
    steps
        .run(&more(step.about("QEMU's pseries machine, its firmware's LMBs, and the guest there")));
}

/// Tests for AArch64, run by QEMU's user mode.
fn aarch64(steps: &mut Steps, name: &str, which: &str) {
    if setup::aarch64() {
        let tests = format!("test {which} --no-fail-fast --target aarch64-unknown-linux-musl");
        let step = Step::cargo(name, &tests).about("on the instruction set of AArch64, by QEMU");
        let step = step.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld");
        steps.run(&step.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER", "qemu-aarch64"));
    } else {
        steps.skip(setup::AARCH64_WANTED);
    }
}

/// Tests of the engine and the drivers with 32-bit pointers: conversions, and sizes and addresses
/// that are refused.
fn narrow(steps: &mut Steps) {
    if setup::narrow() {
        let mut run = |name: &str, tests: &str| {
            let tests = format!("{tests} --target i686-unknown-linux-musl");
            let step = Step::cargo(name, &tests);
            steps.run(&step.env("CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld"));
        };
        run(
            "engine on 32 bits",
            "test -p hotmem -p hotmem-addr -p hotmem-memmap --no-fail-fast --lib --test narrow",
        );
        run("page tables on 32 bits", "test -p hotmem-pgtable --no-fail-fast --lib --tests");
        // The other tests are left out, because their devices lie above 4 GiB.
        run(
            "drivers on 32 bits",
            "test -p hotmem-virtio -p hotmem-dlpar --no-fail-fast --lib --test mem --test balloon \
             --test queue --test properties",
        );
    } else {
        steps.skip(setup::NARROW_WANTED);
    }
}

/// Builds the engine and the guests for targets without an operating system, and runs the guests.
fn bare_metal(steps: &mut Steps) {
    if !setup::target() {
        steps.missing(setup::TARGET_WANTED);
        return;
    }
    let engine = "build -p hotmem -p hotmem-dlpar -p hotmem-memmap -p hotmem-pgtable \
                  -p hotmem-virtio -p hotmem-xen --features hotmem-dlpar/fdt,hotmem-dlpar/log \
                  --target x86_64-unknown-none";
    let engine = Step::cargo("engine and drivers without an operating system", engine);
    steps.run(&engine.about("builds them for a machine without std"));
    guest(steps, "guest under QEMU", |step| step);
    if setup::qemu() {
        on_backport(steps, "guest under a second QEMU", FEW, |step| step);
        if setup::xen() {
            let xen = tests("xen", "--test-threads 1");
            let xen = Step::cargo("guest under Xen", &xen);
            steps.run(&xen.about("boots Xen under QEMU, with the reference kernel as its dom0"));
        } else {
            steps.skip(setup::XEN_WANTED);
        }
    }
}

/// Builds the guest and runs its tests.
fn guest(steps: &mut Steps, name: &'static str, more: impl Fn(Step<'_>) -> Step<'_>) {
    let guest = "build --release -p hotmem-guest -p hotmem-guest-xen --target x86_64-unknown-none";
    steps.run(&Step::cargo("guest", guest).about("builds the reference kernel"));
    if setup::qemu() {
        let tests = tests("qemu", "--skip newer::");
        let step = Step::cargo(name, &tests);
        steps.run(&more(
            step.about("boots the reference kernel on QEMU's virtio-mem, DIMMs, NVDIMMs"),
        ));
    } else {
        steps.missing(setup::QEMU_WANTED);
    }
}

/// All tests of the guest, and those that depend most on the version of QEMU.
const ALL: &str = "";
const FEW: &str = "newer:: boot:: interrupts:: hot_add:: live_migration::";

/// Runs tests of the guest on a QEMU that is newer than the installed one. The guest has been built
/// before.
fn on_backport(
    steps: &mut Steps,
    name: &'static str,
    only: &str,
    more: impl Fn(Step<'_>) -> Step<'_>,
) {
    if backport::qemu() {
        let tests = tests("qemu", only);
        let step =
            Step::cargo(name, &tests).about("the same on a newer QEMU, for what it does new");
        steps.run(&more(step.env("HOTMEM_QEMU", backport::dir().display().to_string())));
    } else {
        steps.skip(backport::WANTED);
    }
}

/// Runs the engine's tests with a geometry of a few words, in which tests can try all states; and
/// the tests of streams with ordinary stores, as built for tools that watch stores.
fn small(steps: &mut Steps, name: &'static str, more: impl Fn(Step<'_>) -> Step<'_>) {
    let tests = Step::cargo(
        name,
        "test -p hotmem -p hotmem-stream --release --no-fail-fast --lib --tests \
         --target-dir target/small",
    );
    let tests = tests.about("the engine on machines of a few words, where brute force sees all");
    steps.run(&more(tests.env("RUSTFLAGS", SMALL)));
}

/// Counts cache line transfers between simulated CPUs.
fn lines(steps: &mut Steps) {
    let tests = "test -p hotmem --release --test lines --target-dir target/lines -- --nocapture";
    let tests = Step::cargo("cache line transfers", tests);
    let tests =
        tests.about("writes to lines that another CPU wrote last, with 2 to 256 simulated CPUs");
    steps.run(&tests.env("RUSTFLAGS", COUNTED));
}

/// Runs the model checks, in which loom tries every interleaving of lock-free operations.
fn loom(steps: &mut Steps, name: &'static str, more: impl Fn(Step<'_>) -> Step<'_>) {
    let tests = "test -p hotmem -p hotmem-pgtable --release --no-fail-fast --lib \
                 --target-dir target/loom loom_tests";
    let tests = Step::cargo(name, tests).about("loom tries every interleaving of lock-free steps");
    steps.run(&more(tests.env("RUSTFLAGS", LOOM)));
}

/// Runs the engine's tests under Miri.
fn miri(steps: &mut Steps) {
    if setup::miri() {
        let tests = "+nightly miri test -p hotmem -p hotmem-addr -p hotmem-heap -p hotmem-memmap \
                     -p hotmem-stream --lib --test identity --target-dir target/miri";
        let step = Step::cargo("Miri", tests);
        steps.run(
            &step.about("the engine's unit tests by an interpreter that sees undefined behaviour"),
        );
    } else {
        steps.skip(setup::MIRI_WANTED);
    }
}

/// Runs each fuzz target for two minutes.
fn fuzz(steps: &mut Steps) {
    if !runs("cargo", &["+nightly", "fuzz", "--version"]) {
        steps.skip("fuzzing (cargo install cargo-fuzz, rustup toolchain install nightly)");
        return;
    }
    let crates = root().join("crates");
    let guests = ["guest", "guest-pseries"].map(|guest| root().join(guest));
    for dir in entries(&crates).chain(guests).map(|package| package.join("fuzz")) {
        for file in entries(&dir.join("fuzz_targets")) {
            let target = file.file_stem().unwrap_or_default().to_string_lossy();
            let dir = dir.strip_prefix(root()).unwrap_or(&dir).display();
            let run = format!("+nightly fuzz run --fuzz-dir {dir} {target} -- -max_total_time=120");
            steps.run(&Step::cargo(&format!("fuzzing {target}"), &run));
        }
    }
}

/// Returns the entries of a directory; nothing if the directory does not exist.
fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path())
}
