//! `cargo xtask text`, which prints the size that Hotmem adds to a kernel's image. It compares
//! images that differ only in their parts of Hotmem.

use crate::{
    embed, level_table, setup,
    step::{Step, root},
    steps::Steps,
};
use std::{fs, io, process::ExitCode};

const LIBRARY: &str = "build --release --manifest-path crates/hotmem-c/staticlib/Cargo.toml \
                       --target x86_64-unknown-none --target-dir target/text";
const IMAGES: &str = "target/text/images";
/// The arguments of the C compiler, which also links the image.
const CC_ARGS: &str = "-std=c11 -Os -Wall -Wextra -Werror -ffreestanding -fno-pic -mno-red-zone \
    -fno-stack-protector -fno-asynchronous-unwind-tables -mgeneral-regs-only \
    -Icrates/hotmem-c/include -nostdlib -static -no-pie -Wl,--gc-sections -Wl,--build-id=none \
    -Wl,-e,start ports/c-kernel/size/image.c";
/// The contents of the images, in the order of the number `HOTMEM_PARTS`.
const PARTS: [&str; 3] = ["nothing", "frames and hotplug", "with virtio-mem"];

/// Builds the images at both optimisation levels and prints the table.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    if !setup::target() {
        steps.missing(setup::TARGET_WANTED);
    } else if !setup::cc() {
        steps.missing(setup::CC_WANTED);
    } else {
        let header = format!(
            "{:32}{:>10}{:>12}{:>18}",
            "KiB more than without Hotmem", "text", "constants", "data that changes"
        );
        level_table::print(&mut steps, &header, size_lines);
    }
    steps.conclude()
}

/// Builds the images at an optimisation level. Returns their lines of the table.
fn size_lines(steps: &mut Steps, level: &str) -> io::Result<String> {
    fs::create_dir_all(root().join(IMAGES))?;
    let library = Step::cargo("libhotmem.a", LIBRARY).env("CARGO_PROFILE_RELEASE_OPT_LEVEL", level);
    steps.run(&library.description("builds the engine and its drivers for kernels in C"));
    let mut empty = None;
    let mut lines = String::new();
    for (number, name) in PARTS.into_iter().enumerate() {
        let image = format!("{IMAGES}/{level}-{number}");
        let args = format!(
            "{CC_ARGS} -DHOTMEM_PARTS={number} target/text/x86_64-unknown-none/release/libhotmem.a -o {image}"
        );
        steps.run(&Step::program(name, "cc", &args));
        let image = fs::read(root().join(image))?;
        let sizes = embed::sections(&image).ok_or(io::ErrorKind::InvalidData)?;
        let Some(empty) = empty else {
            empty = Some(sizes);
            continue;
        };
        let kib = |part: usize| (sizes[part] - empty[part]) as f64 / 1024.0;
        let name = format!("opt-level {level}, {name}");
        lines += &format!("{name:32}{:>10.1}{:>12.1}{:>18.1}\n", kib(0), kib(1), kib(2) + kib(3));
    }
    Ok(lines)
}
