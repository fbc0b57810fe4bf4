//! `cargo xtask text`, which prints the size that Hotmem adds to a kernel's image. It compares
//! images that differ only in their parts of Hotmem.

use crate::{embed, level_table, step::root, steps::Steps, table};
use std::{fs, io, process::ExitCode};

const IMAGES: &str = "target/text/images";
/// The parts of Hotmem in the images, with the number in the image's name. Image 0 has none.
const PARTS: [(usize, &str); 2] = [(1, "frames and hotplug"), (2, "with virtio-mem")];
/// Builds the images at both optimisation levels and prints the table.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    if steps.needs("target") && steps.needs("cc") {
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
    let images = table::steps("text", &[("level", level)]);
    images.iter().for_each(|step| steps.run(step));
    let sizes = |number: usize| -> io::Result<[u64; 4]> {
        let image = fs::read(root().join(format!("{IMAGES}/{level}-{number}")))?;
        Ok(embed::sections(&image).ok_or(io::ErrorKind::InvalidData)?)
    };
    let empty = sizes(0)?;
    let mut lines = String::new();
    for (number, name) in PARTS {
        let sizes = sizes(number)?;
        let kib = |part: usize| (sizes[part] - empty[part]) as f64 / 1024.0;
        let name = format!("opt-level {level}, {name}");
        lines += &format!("{name:32}{:>10.1}{:>12.1}{:>18.1}\n", kib(0), kib(1), kib(2) + kib(3));
    }
    Ok(lines)
}
