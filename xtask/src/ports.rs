//! `cargo xtask ports arceos`: builds other kernels with Hotmem as their frame allocator, and boots
//! them.

use crate::{
    c_kernel, setup,
    step::{Step, Steps, root},
};
use std::{fs, io, path::Path, process::ExitCode};

/// A kernel and the command that builds it.
struct Image {
    name: &'static str,
    about: &'static str,
    build: &'static str,
    cpus: u32,
}

const ARCEOS: Image = Image {
    name: "ArceOS",
    about: "builds ArceOS from its registry crates, with Hotmem as its frame allocator",
    build: "build --release --manifest-path ports/arceos/Cargo.toml \
            --target x86_64-unknown-none --target-dir target/ports/a",
    cpus: 1,
};
const MORE: [Image; 3] = [
    Image {
        name: "ArceOS with page tables",
        about: "the same, where ArceOS maps memory itself, with threads and interrupts",
        build: "build --release --manifest-path ports/arceos/Cargo.toml \
                --features paging --target x86_64-unknown-none --target-dir target/ports/b",
        cpus: 1,
    },
    Image {
        name: "ArceOS with four CPUs",
        about: "the same, with four CPUs that allocate",
        build: "build --release --manifest-path ports/arceos/Cargo.toml \
                --features smp --target x86_64-unknown-none --target-dir target/ports/smp",
        cpus: 4,
    },
    Image {
        name: "ArceOS as it is",
        about: "builds ArceOS with its own allocator, to compare with",
        build: "build --release --manifest-path ports/arceos/stock/Cargo.toml \
                --target x86_64-unknown-none --target-dir target/ports/stock",
        cpus: 1,
    },
];

const CONFIG: &str = "ports/arceos/axconfig.toml";
const ONE_CPU: &str = "max-cpu-num = 1";

/// Builds the kernels of a port, and runs their tests.
pub(crate) fn run(port: &str) -> Option<ExitCode> {
    if port == "c-kernel" {
        return Some(c_kernel::run());
    }
    (port == "arceos").then(|| {
        let mut steps = Steps::default();
        check_all(&mut steps);
        steps.conclude_tests()
    })
}

/// Builds the first kernel of each port, and runs its tests.
pub(crate) fn check(steps: &mut Steps) {
    check_images(steps, &[&ARCEOS], "test -p hotmem-lab --test ports -- --nocapture first::");
    c_kernel::check(steps);
}

/// Builds all kernels, and runs all their tests.
pub(crate) fn check_all(steps: &mut Steps) {
    let images: Vec<_> = [&ARCEOS].into_iter().chain(&MORE).collect();
    check_images(
        steps,
        &images,
        "test -p hotmem-lab --no-fail-fast --test ports -- --nocapture arceos",
    );
    c_kernel::check(steps);
}

fn check_images(steps: &mut Steps, images: &[&Image], tests: &str) {
    if !setup::target() {
        steps.missing(setup::TARGET_WANTED);
        return;
    }
    for image in images {
        match config(image.cpus) {
            Ok(config) => {
                let build = arceos(image.name, image.build, &config);
                steps.run(&build.about(image.about));
            }
            Err(error) => steps.fail(format!("{CONFIG}: {error}")),
        }
    }
    if setup::qemu() {
        let tests = Step::cargo("ports under QEMU", tests);
        steps.run(&tests.about("boots them, and has the host change their memory"));
    } else {
        steps.missing(setup::QEMU_WANTED);
    }
}

/// Checks Hotmem's own code in the ports.
pub(crate) fn lint(steps: &mut Steps) {
    for manifest in ["ports/arceos/Cargo.toml", "ports/arceos/stock/Cargo.toml"] {
        let format = format!("fmt --manifest-path {manifest} --check");
        steps.run(&Step::cargo(&format!("formatting, {manifest}"), &format));
    }
    if !setup::target() {
        steps.missing(setup::TARGET_WANTED);
        return;
    }
    match config(1) {
        Ok(config) => {
            let clippy = "clippy --quiet --manifest-path ports/arceos/Cargo.toml \
                          -p hotmem-arceos -p axalloc --features paging \
                          --target x86_64-unknown-none --target-dir target/ports/lint \
                          -- -D warnings";
            steps.run(&arceos("clippy, ports/arceos", clippy, &config));
        }
        Err(error) => steps.fail(format!("{CONFIG}: {error}")),
    }
}

/// Makes a step that builds ArceOS, whose crates use unstable features.
fn arceos<'a>(name: &'a str, args: &'a str, config: &Path) -> Step<'a> {
    let config = config.display().to_string();
    Step::cargo(name, args)
        .env("AX_CONFIG_PATH", config)
        .env("AX_LOG", "warn")
        .env("RUSTC_BOOTSTRAP", "1")
}

/// Writes ArceOS's configuration for this many CPUs, and returns its path.
fn config(cpus: u32) -> io::Result<std::path::PathBuf> {
    let path = root().join(CONFIG);
    if cpus == 1 {
        return Ok(path);
    }
    let one = fs::read_to_string(path)?;
    let several = one.replace(ONE_CPU, &format!("max-cpu-num = {cpus}"));
    if several == one {
        return Err(io::Error::other(format!("it does not say `{ONE_CPU}`")));
    }
    let path = root().join(format!("target/ports/cpus-{cpus}.toml"));
    fs::create_dir_all(root().join("target/ports"))?;
    fs::write(&path, several)?;
    Ok(path)
}
