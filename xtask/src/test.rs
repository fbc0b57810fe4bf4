//! `cargo xtask test` and `cargo xtask deep`: run the tests.

use crate::{
    backport, embed,
    load::Load,
    packages, ports, setup, stack,
    step::{GUEST, HOST, Step, root, runs, tests},
    steps::Steps,
};
use std::{
    num::NonZero,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

/// The compiler's flags for model checks.
const LOOM_FLAGS: &str = "--cfg loom";
/// The compiler's flags for atomics that count cache line transfers.
const COUNTING_FLAGS: &str = "--cfg hotmem_atomics=\"counted\"";
/// The compiler's flags for an engine whose states tests can try one after another.
const SMALL_GEOMETRY_FLAGS: &str =
    "--cfg hotmem_geometry=\"small\" --cfg hotmem_stores=\"ordinary\"";

/// Cargo's arguments for the tests that Miri runs.
const MIRI_ENGINE: &str = "+nightly miri test --target-dir target/miri -p hotmem --lib";
const MIRI_OTHER_CRATES: &str = "+nightly miri test --target-dir target/miri -p hotmem-addr \
    -p hotmem-heap -p hotmem-memmap -p hotmem-port -p hotmem-stream --lib --test identity";

/// Runs all tests that a change must pass.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::timed("cargo xtask test");
    // Without valgrind, tests that count instructions are skipped.
    if !setup::valgrind() {
        steps.skip(setup::VALGRIND_WANTED);
    }
    // Each of these steps has its own build directory. The other steps leave CPUs idle while they wait
    // for machines, and cargo then runs one test program after another.
    let mut beside = Vec::new();
    if setup::miri() {
        beside.extend(miri());
    } else {
        steps.skip(setup::MIRI_WANTED);
    }
    beside.extend([
        loom("model checks"),
        small_geometry("small machines", "--lib --tests"),
        cache_line_transfers(),
    ]);
    steps.run_beside(&beside, |steps| {
        let host = format!("test --no-fail-fast {HOST}");
        let host = Step::cargo("host tests", &host);
        steps.run(&host.description(
            "runs unit tests, property tests, examples and documentation tests of every crate",
        ));
        pseries(steps, "pseries", |step| step);
        aarch64(steps, "streams on AArch64", "-p hotmem-stream --lib --tests");
        on_32_bits(steps);
        bare_metal(steps);
        embed::check(steps);
        header(steps);
        ports::check(steps);
        stack::check(steps);
    });
    steps.conclude_tests()
}

/// Runs longer model checks and random tests, and fuzzing. Sets `HOTMEM_DEEP`, so that tests
/// run longer.
pub(crate) fn run_deep() -> ExitCode {
    let mut steps = Steps::timed("cargo xtask deep");
    // `.cargo/config.toml` sets a fixed seed. Here each run has another seed, so that random tests
    // make other choices.
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    println!("PROPTEST_RNG_SEED={seed}");
    let deep: &dyn Fn(Step) -> Step = &|step| {
        step.env("HOTMEM_DEEP", "1").env("PROPTEST_RNG_SEED", seed.to_string()).time_limit_s(3600)
    };
    steps.run(&deep(Step::cargo(
        "host tests, deep",
        "test --release --no-fail-fast --all-features",
    )));
    if setup::target() {
        guest(&mut steps, "guest under QEMU, deep", deep);
        if setup::qemu() {
            on_backport(&mut steps, "guest under a second QEMU, deep", ALL_TESTS, deep);
        }
    } else {
        steps.missing(setup::TARGET_WANTED);
    }
    ports::check_all(&mut steps);
    pseries(&mut steps, "pseries, deep", deep);
    aarch64(&mut steps, "engine on AArch64", "-p hotmem -p hotmem-memmap --lib");
    steps.run(&deep(small_geometry("small machines, deep", "--lib --tests")));
    if setup::target_32_bit() {
        let model =
            "test -p hotmem --release --no-fail-fast --test model --target-dir target/small";
        let model = format!("{model} --target {}", setup::TARGET_32_BIT);
        let model = Step::cargo("small machines on 32 bits, deep", &model);
        let model =
            model.env("RUSTFLAGS", SMALL_GEOMETRY_FLAGS).env("HOTMEM_OPERATIONS", "2000000");
        let model = model.env("HOTMEM_SEED", seed.to_string());
        steps.run(&deep(model.env("CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld")));
    } else {
        steps.skip(setup::TARGET_32_BIT_WANTED);
    }
    steps.run(&deep(loom("model checks, deep")));
    stress_under_miri(&mut steps);
    packages::test(&mut steps);
    fuzz(&mut steps);
    on_a_busy_host(&mut steps);
    steps.conclude_tests()
}

/// Tests the header of the C interface with the installed C and C++ compilers.
fn header(steps: &mut Steps) {
    if setup::cc() {
        let tests = tests("header", "");
        let tests = Step::cargo("header", &tests);
        steps.run(&tests.description(
            "compiles hotmem.h as C11 and C++17 and compares sizes and offsets with Rust's",
        ));
    } else {
        steps.missing(setup::CC_WANTED);
    }
}

/// Runs the tests of QEMU's pseries machine, which read its device trees and boot the guest.
/// `adapt` changes the step.
fn pseries(steps: &mut Steps, name: &'static str, adapt: impl Fn(Step) -> Step) {
    if !setup::pseries() {
        steps.skip(setup::PSERIES_WANTED);
        return;
    }
    let mut filter = "";
    if setup::pseries_target() {
        let guest =
            "build --release -p hotmem-guest-pseries --target powerpc64le-unknown-linux-gnu";
        let guest = Step::cargo("guest for pseries", guest);
        steps.run(&guest.description("builds the reference kernel for pseries"));
    } else {
        steps.skip(setup::PSERIES_TARGET_WANTED);
        filter = "--skip guest::";
    }
    let tests = tests("pseries", filter);
    let step = Step::cargo(name, &tests);
    steps.run(&adapt(
        step.description("boots QEMU's pseries machine, and adds and removes LMBs of its firmware"),
    ));
}

/// Builds tests for AArch64 and runs them in QEMU's user mode.
fn aarch64(steps: &mut Steps, name: &str, options: &str) {
    if setup::aarch64() {
        let tests = format!("test {options} --no-fail-fast --target aarch64-unknown-linux-musl");
        let step =
            Step::cargo(name, &tests).description("runs programs for AArch64 in QEMU's user mode");
        let step = step.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld");
        steps.run(&step.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER", "qemu-aarch64"));
    } else {
        steps.skip(setup::AARCH64_WANTED);
    }
}

/// Tests the engine and the drivers on a target with 32-bit pointers, where they must refuse sizes
/// and addresses that do not fit.
fn on_32_bits(steps: &mut Steps) {
    if setup::target_32_bit() {
        let mut run = |name: &str, tests: &str| {
            let tests = format!("{tests} --target i686-unknown-linux-musl");
            let step = Step::cargo(name, &tests);
            steps.run(&step.env("CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld"));
        };
        run(
            "engine on 32 bits",
            "test -p hotmem -p hotmem-addr -p hotmem-memmap --no-fail-fast --lib --test narrow \
             --test model",
        );
        run("page tables on 32 bits", "test -p hotmem-pgtable --no-fail-fast --lib --tests");
        // Other tests of the drivers are not run, because they have devices above 4 GiB.
        run(
            "drivers on 32 bits",
            "test -p hotmem-virtio -p hotmem-dlpar --no-fail-fast --lib --test mem --test balloon \
             --test queue --test properties",
        );
    } else {
        steps.skip(setup::TARGET_32_BIT_WANTED);
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
    steps.run(&engine.description("builds the crates for a target without the standard library"));
    guest(steps, "guest under QEMU", |step| step);
    if setup::qemu() {
        on_backport(steps, "guest under a second QEMU", VERSION_TESTS, |step| step);
        if setup::xen() {
            let xen = tests("xen", "--test-threads 1");
            let xen = Step::cargo("guest under Xen", &xen);
            steps.run(
                &xen.description("boots Xen under QEMU, with the reference kernel as its dom0"),
            );
        } else {
            steps.skip(setup::XEN_WANTED);
        }
    }
}

/// Builds the guest and runs its tests.
fn guest(steps: &mut Steps, name: &'static str, adapt: impl Fn(Step) -> Step) {
    steps.run(&Step::cargo("guest", GUEST).description("builds the reference kernel"));
    if setup::qemu() {
        let tests = tests("qemu", &with_more_threads("--skip newer_qemu::"));
        let step = Step::cargo(name, &tests);
        steps.run(&adapt(
            step.description("boots the reference kernel on QEMU's virtio-mem, DIMMs and NVDIMMs"),
        ));
    } else {
        steps.missing(setup::QEMU_WANTED);
    }
}

/// Returns arguments of tests that boot machines. Machines wait for timers, for the host's reports and
/// for each other about half of the time, so that twice as many run at once as there are CPUs.
fn with_more_threads(filter: &str) -> String {
    let threads = 2 * thread::available_parallelism().map_or(1, NonZero::get);
    format!("--test-threads {threads} {filter}")
}

/// The filter for all tests of the guest.
const ALL_TESTS: &str = "";
/// The filter for the tests that depend most on the version of QEMU.
const VERSION_TESTS: &str = "newer_qemu:: boot:: interrupts:: hot_add:: live_migration::";

/// Runs tests of the guest on a QEMU that is newer than the installed one. The guest must be built.
fn on_backport(steps: &mut Steps, name: &'static str, filter: &str, adapt: impl Fn(Step) -> Step) {
    if backport::install_qemu() {
        let tests = tests("qemu", &with_more_threads(filter));
        let step = Step::cargo(name, &tests).description(
            "boots the reference kernel on a newer QEMU, whose devices differ in parts",
        );
        steps.run(&adapt(step.env("HOTMEM_QEMU", backport::dir().display().to_string())));
    } else {
        steps.skip(backport::NEWER_QEMU_WANTED);
    }
}

/// Runs the engine's tests with a small geometry, in which tests can try all states. Also runs the
/// tests of `hotmem-stream` with ordinary stores. `targets` are cargo's options for kinds of tests.
pub(crate) fn small_geometry(name: &str, targets: &str) -> Step {
    let tests = format!(
        "test -p hotmem -p hotmem-stream --release --no-fail-fast {targets} --target-dir target/small"
    );
    let tests = Step::cargo(name, &tests)
        .description("tests the engine on machines so small that tests try every state");
    tests.env("RUSTFLAGS", SMALL_GEOMETRY_FLAGS)
}

/// Counts cache line transfers between simulated CPUs.
fn cache_line_transfers() -> Step {
    let tests = "test -p hotmem --release --test lines --target-dir target/lines -- --nocapture";
    let tests = Step::cargo("cache line transfers", tests);
    let tests = tests.description(
        "counts writes to cache lines that another CPU wrote last, with 2 to 256 simulated CPUs",
    );
    tests.env("RUSTFLAGS", COUNTING_FLAGS)
}

/// Runs the model checks, in which loom tries every interleaving of lock-free operations.
fn loom(name: &'static str) -> Step {
    let tests = "test -p hotmem -p hotmem-pgtable --release --no-fail-fast --lib \
                 --target-dir target/loom loom_tests";
    let tests = Step::cargo(name, tests)
        .description("runs loom, which tries every interleaving of lock-free steps");
    tests.env("RUSTFLAGS", LOOM_FLAGS)
}

/// Runs tests under Miri, which uses one CPU for each program.
fn miri() -> [Step; 2] {
    [("Miri, engine", MIRI_ENGINE), ("Miri, other crates", MIRI_OTHER_CRATES)].map(
        |(name, tests)| {
            Step::cargo(name, tests)
                .description("runs unit tests in an interpreter that detects undefined behaviour")
        },
    )
}

/// Runs all tests of `cargo xtask test` while other processes use all CPUs, and on one CPU. No test
/// may depend on the speed or the load of the host.
fn on_a_busy_host(steps: &mut Steps) {
    // A time limit that is longer than that of all steps of `cargo xtask test` together.
    let limit_s = 6 * 3600;
    for name in ["first", "second", "third"].map(|nth| format!("tests on a busy host, {nth} run")) {
        let _load = Load::start();
        steps.run(&Step::cargo(&name, "xtask test").time_limit_s(limit_s));
    }
    let step = Step::program("tests on one CPU", "taskset", "-c 0 cargo xtask test");
    steps.run(&step.time_limit_s(limit_s));
}

/// Runs the stress test under Miri, whose loads return older values where the orderings permit it.
fn stress_under_miri(steps: &mut Steps) {
    if setup::miri() {
        let tests =
            "+nightly miri test -p hotmem --test stress --target-dir target/miri-small no_frame";
        let step = Step::cargo("stress under Miri", tests)
            .env("RUSTFLAGS", SMALL_GEOMETRY_FLAGS)
            .time_limit_s(3600);
        // With its records of each reference to the simulated memory, Miri did not end within ten
        // minutes. The unit tests run with these records.
        steps.run(&step.env("MIRIFLAGS", "-Zmiri-disable-stacked-borrows"));
    } else {
        steps.missing(setup::MIRI_WANTED);
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
            steps.run(&Step::cargo(format!("fuzzing {target}"), &run));
        }
    }
}

/// Returns the entries of a directory. A missing directory counts as empty.
fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path())
}
