//! The kernel in C, which links `libhotmem.a`.

use super::port::{Image, Missing, Port, target};
use crate::{
    setup,
    step::{Step, root},
};
use std::fs;

pub(super) const PORT: Port = Port {
    name: "c-kernel",
    images: &IMAGES,
    smoke_tests: "--nocapture c_kernel::memory_of_4_gib",
    all_tests: "--nocapture c_kernel",
    prepare,
    build,
    // The build itself refuses warnings, by `-Werror`.
    lint: |_| {},
};

const IMAGES: [Image; 1] = [Image {
    name: "kernel in C",
    description: "compiles and links ports/c-kernel",
    build: CC_ARGS,
    guest_cpus: 1,
}];

pub(crate) const LIBRARY: &str = "build --release --manifest-path crates/hotmem-c/staticlib/Cargo.toml \
                       --target x86_64-unknown-none --target-dir target/c";
/// The arguments of the C compiler. It must assume no operating system. It must not use the vector
/// registers, which the kernel does not save. It must not add calls of library functions such as
/// `memset`.
const CC_ARGS: &str = "-std=c11 -O2 -Wall -Wextra -Werror -ffreestanding -fno-pic \
    -fno-stack-protector -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
    -fcf-protection=none -mno-red-zone -mgeneral-regs-only -Icrates/hotmem-c/include -nostdlib \
    -static -no-pie -Wl,-T,ports/c-kernel/link.ld -Wl,--gc-sections -Wl,--build-id=none \
    -Wl,-z,max-page-size=4096 -o target/ports/c/kernel ports/c-kernel/entry.S \
    ports/c-kernel/main.c ports/c-kernel/mapping.c ports/c-kernel/reporting.c \
    ports/c-kernel/serial.c ports/c-kernel/time.c ports/c-kernel/virtio.c ports/c-kernel/virtio_mem.c \
    target/c/x86_64-unknown-none/release/libhotmem.a";

fn prepare() -> Result<(), Missing> {
    target()?;
    if setup::cc() { Ok(()) } else { Err(Missing::Required(setup::CC_WANTED)) }
}

fn build(image: &'static Image) -> Result<Vec<Step>, String> {
    let directory = "target/ports/c";
    fs::create_dir_all(root().join(directory)).map_err(|error| format!("{directory}: {error}"))?;
    let library = Step::cargo("libhotmem.a", LIBRARY);
    Ok(vec![
        library.description("builds the engine and its drivers for kernels in C"),
        Step::program(image.name, "cc", image.build),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of lines of code in a C source, without comments and blank lines.
    fn lines_of_code(text: &str) -> usize {
        let (mut code, mut rest) = (String::new(), text);
        while let Some((before, comment)) = rest.split_once("/*") {
            code += before;
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        }
        code += rest;
        code.lines().filter(|line| !line.trim().is_empty()).count()
    }

    #[test]
    fn comments_and_blank_lines_are_not_counted() {
        assert_eq!(lines_of_code("/* a\n b */\n\nint c; /* d */\n  \n}\n"), 2);
    }

    #[test]
    fn the_kernel_has_at_most_680_lines_and_every_file_is_compiled() {
        let files = root().join("ports/c-kernel").read_dir().unwrap().flatten();
        let mut lines = 0;
        for file in files.map(|file| file.path()) {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".c") || name.ends_with(".h") {
                lines += lines_of_code(&fs::read_to_string(&file).unwrap());
            }
            if file.is_dir() {
                continue;
            }
            let is_compiled = CC_ARGS.contains(&format!("ports/c-kernel/{name}"));
            assert!(is_compiled || name.ends_with(".h"), "{name}");
        }
        assert!(lines > 100 && lines <= 680, "{lines} lines");
    }
}
