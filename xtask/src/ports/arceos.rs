//! The port to ArceOS. The builds set `RUSTC_BOOTSTRAP`, because ArceOS's crates use unstable
//! features.

use super::port::{Image, Port, target};
use crate::{
    step::{Step, root},
    steps::Steps,
};
use std::{fs, io, path::PathBuf};

pub(super) const PORT: Port = Port {
    name: "arceos",
    images: &IMAGES,
    smoke_tests: "--nocapture first::arceos",
    all_tests: "--nocapture arceos",
    prepare: target,
    build,
    lint,
};

const IMAGES: [Image; 4] = [
    Image {
        name: "ArceOS",
        description: "builds ArceOS from its registry crates, with Hotmem as its frame allocator",
        build: "build --release --manifest-path ports/arceos/Cargo.toml \
                --target x86_64-unknown-none --target-dir target/ports/boot-tables",
        guest_cpus: 1,
    },
    Image {
        name: "ArceOS with page tables",
        description: "the same, with page tables of ArceOS, threads and interrupts",
        build: "build --release --manifest-path ports/arceos/Cargo.toml \
                --features paging --target x86_64-unknown-none --target-dir target/ports/paging",
        guest_cpus: 1,
    },
    Image {
        name: "ArceOS with four CPUs",
        description: "the same, with four CPUs that allocate",
        build: "build --release --manifest-path ports/arceos/Cargo.toml \
                --features smp --target x86_64-unknown-none --target-dir target/ports/smp",
        guest_cpus: 4,
    },
    Image {
        name: "ArceOS without Hotmem",
        description: "builds unmodified ArceOS with its own allocator, as the peer",
        build: "build --release --manifest-path ports/arceos/stock/Cargo.toml \
                --target x86_64-unknown-none --target-dir target/ports/stock",
        guest_cpus: 1,
    },
];

const CONFIG: &str = "ports/arceos/axconfig.toml";
const ONE_CPU: &str = "max-cpu-num = 1";

fn build(image: &'static Image) -> Result<Vec<Step>, String> {
    Ok(vec![cargo(image.name, image.build, image.guest_cpus)?])
}

fn cargo(name: &'static str, args: &'static str, cpus: u32) -> Result<Step, String> {
    let config = config(cpus).map_err(|error| format!("{CONFIG}: {error}"))?;
    Ok(Step::cargo(name, args)
        .env("AX_CONFIG_PATH", config.display().to_string())
        .env("AX_LOG", "warn")
        .env("RUSTC_BOOTSTRAP", "1"))
}

fn lint(steps: &mut Steps) {
    for manifest in ["ports/arceos/Cargo.toml", "ports/arceos/stock/Cargo.toml"] {
        let format = format!("fmt --manifest-path {manifest} --check");
        steps.run(&Step::cargo(format!("formatting, {manifest}"), &format));
    }
    let clippy = "clippy --quiet --manifest-path ports/arceos/Cargo.toml \
                  -p hotmem-arceos -p axalloc --features paging \
                  --target x86_64-unknown-none --target-dir target/ports/lint -- -D warnings";
    match cargo("clippy, ports/arceos", clippy, 1) {
        Ok(clippy) => steps.run(&clippy),
        Err(error) => steps.fail(error),
    }
}

/// Writes ArceOS's configuration for this number of CPUs. Returns the file's path.
fn config(cpus: u32) -> io::Result<PathBuf> {
    let path = root().join(CONFIG);
    if cpus == 1 {
        return Ok(path);
    }
    let one_cpu = fs::read_to_string(path)?;
    let several = one_cpu.replace(ONE_CPU, &format!("max-cpu-num = {cpus}"));
    if several == one_cpu {
        return Err(io::Error::other(format!("the file does not contain `{ONE_CPU}`")));
    }
    let path = root().join(format!("target/ports/cpus-{cpus}.toml"));
    fs::create_dir_all(root().join("target/ports"))?;
    fs::write(&path, several)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of lines of code in these files, without comments and blank lines.
    fn lines_of_code(files: &[&str]) -> usize {
        let text =
            |file: &&str| fs::read_to_string(root().join("ports/arceos").join(file)).unwrap();
        let texts: Vec<_> = files.iter().map(text).collect();
        let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
    }

    #[test]
    fn the_port_has_at_most_the_allowed_lines_of_code() {
        for (files, max) in [
            (&["axalloc/src/lib.rs", "axalloc/src/engine.rs"][..], 150),
            (&["src/virtio_mem.rs", "src/pci.rs"], 60),
            (&["src/reporting.rs"], 60),
        ] {
            let lines = lines_of_code(files);
            assert!(lines > 20 && lines <= max, "{files:?}: {lines} lines");
        }
    }
}
