//! `cargo xtask text`, which prints the size that Hotmem adds to a kernel's image. It compares
//! images that differ only in their parts of Hotmem.

use crate::{embed, level_table, step::root, steps::Steps, table};
use std::{fs, io, process::ExitCode};

const IMAGES: &str = "target/text/images";
/// The parts of Hotmem in the images, with the number in the image's name, and the most KiB of text
/// that a part may add at opt-level s. Image 0 has none.
const PARTS: [(usize, &str, f64); 3] =
    [(1, "frames", 90.0), (2, "frames and hotplug", 131.0), (3, "with virtio-mem", 161.0)];

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

/// Builds the images at opt-level s. Fails if a part of Hotmem adds too much text. The images have no
/// `hotmem_panic`, so that they cannot be linked if anything in Hotmem can panic.
pub(crate) fn check(steps: &mut Steps) {
    if steps.needs("target") && steps.needs("cc") {
        let Ok(parts) = added_kib(steps, "s") else {
            return steps.fail("the images cannot be read".into());
        };
        for ((_, name, max), [text, ..]) in PARTS.into_iter().zip(parts) {
            if text > max {
                steps.fail(format!("{name}: {text:.1} KiB of text, more than {max}"));
            }
        }
    }
}

/// Builds the images at an optimisation level. Returns their lines of the table.
fn size_lines(steps: &mut Steps, level: &str) -> io::Result<String> {
    let parts = added_kib(steps, level)?;
    let lines = PARTS.into_iter().zip(parts).map(|((_, name, _), [text, constants, data])| {
        let name = format!("opt-level {level}, {name}");
        format!("{name:32}{text:>10.1}{constants:>12.1}{data:>18.1}\n")
    });
    Ok(lines.collect())
}

/// Builds the images at an optimisation level. Returns for each part how many KiB of text, of
/// constants, and of data that changes it adds.
fn added_kib(steps: &mut Steps, level: &str) -> io::Result<Vec<[f64; 3]>> {
    let images = table::steps("text", &[("level", level)]);
    images.iter().for_each(|step| steps.run(step));
    let sizes = |number: usize| -> io::Result<[u64; 4]> {
        let image = fs::read(root().join(format!("{IMAGES}/{level}-{number}")))?;
        Ok(embed::sections(&image).ok_or(io::ErrorKind::InvalidData)?)
    };
    let empty = sizes(0)?;
    let added = PARTS.map(|(number, ..)| -> io::Result<[f64; 3]> {
        let sizes = sizes(number)?;
        let kib = |part: usize| (sizes[part] - empty[part]) as f64 / 1024.0;
        Ok([kib(0), kib(1), kib(2) + kib(3)])
    });
    added.into_iter().collect()
}
