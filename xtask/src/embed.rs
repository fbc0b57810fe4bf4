//! `cargo xtask embed`, which builds and boots the kernels of docs/embedding.md and prints their
//! sizes.

mod machine;

use crate::{step::root, steps::Steps};
use machine::Machine;
use object::{
    Endianness,
    elf::{FileHeader64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_NOBITS},
    read::elf::{FileHeader, SectionHeader},
};
use std::{fs, io, path::PathBuf, process::ExitCode};

/// Builds and boots the kernels, and prints a table of their sizes.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    check(&mut steps);
    match size_table() {
        Ok(table) => println!("\n{table}"),
        Err(error) => steps.fail(format!("the images cannot be read: {error}")),
    }
    steps.conclude()
}

/// Builds the kernels for each architecture, and boots them if its QEMU is installed.
pub(crate) fn check(steps: &mut Steps) {
    steps.run_group("embed");
    let names = kernel_names().unwrap_or_default();
    if names.is_empty() {
        steps.fail("there are no examples in embedding/".to_owned());
    }
    if steps.needs("target") && steps.needs("qemu") {
        boot_all(steps, &machine::PC, &names);
    }
    if steps.wants("aarch64-machines") {
        boot_all(steps, &machine::AARCH64, &names);
    }
}

/// Boots the kernels on each size of a machine.
fn boot_all(steps: &mut Steps, machine: &Machine, names: &[String]) {
    for name in names {
        for ram in machine.ram_sizes(name) {
            println!("-- {name} on {}, {ram} of RAM", machine.architecture);
            if let Err(error) = machine.boot(name, ram) {
                let architecture = machine.architecture;
                steps.fail(format!("{name} on {architecture} with {ram} of RAM: {error}"));
            }
        }
    }
}

/// Returns the names of the kernels, in order.
fn kernel_names() -> io::Result<Vec<String>> {
    let entries = root().join("embedding/examples").read_dir()?;
    let stem = |path: PathBuf| Some(path.file_stem()?.to_string_lossy().into_owned());
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| stem(entry.path())).collect();
    names.sort_unstable();
    Ok(names)
}

/// Returns a table of the text, constants, data and zeroed data of each step's image for a PC in KiB.
fn size_table() -> io::Result<String> {
    let mut table = format!(
        "{:24}{:>10}{:>10}{:>10}{:>10}\n",
        "KiB of images for x86-64", "text", "constants", "data", "zeroes"
    );
    for name in kernel_names()?.into_iter().filter(|name| name.starts_with("step_")) {
        let image = fs::read(machine::PC.image(&name))?;
        let sizes = sections(&image).ok_or(io::ErrorKind::InvalidData)?;
        let kib = sizes.map(|bytes| format!("{:>10.1}", bytes as f64 / 1024.0)).concat();
        table += &format!("{name:24}{kib}\n");
    }
    Ok(table)
}

/// Returns the bytes of text, constants, data and zeroed data of a 64-bit ELF image in memory.
pub(crate) fn sections(image: &[u8]) -> Option<[u64; 4]> {
    let header = FileHeader64::<Endianness>::parse(image).ok()?;
    let endian = header.endian().ok()?;
    let mut sums = [0; 4];
    for section in header.section_headers(endian, image).ok()? {
        let has = |flag| section.sh_flags(endian) & u64::from(flag) != 0;
        let index = match (has(SHF_EXECINSTR), has(SHF_WRITE), section.sh_type(endian)) {
            _ if !has(SHF_ALLOC) => continue,
            (true, ..) => 0,
            (_, false, _) => 1,
            (.., SHT_NOBITS) => 3,
            _ => 2,
        };
        sums[index] += section.sh_size(endian);
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_kernel() {
        let page = fs::read_to_string(root().join("docs/embedding.md")).unwrap();
        let names = kernel_names().unwrap();
        assert!(names.len() > 3, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("`embedding/examples/{name}")), "{name}");
        }
    }

    #[test]
    fn sections_are_summed_by_kind() {
        let mut image = vec![0; 0x40 + 64 * 4];
        // 64 bits, little-endian, version 1
        image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        image[0x28] = 0x40;
        (image[0x3a], image[0x3c]) = (64, 4);
        for (section, kind, flags, bytes) in
            [(0, 1, 6, 7), (1, 1, 2, 5), (2, 8, 3, 9), (3, 1, 0, 4)]
        {
            let header = 0x40 + 64 * section;
            (image[header + 4], image[header + 8], image[header + 32]) = (kind, flags, bytes);
        }
        assert_eq!(sections(&image), Some([7, 5, 0, 9]));
        assert_eq!(sections(&image[..0x100]), None);
        assert_eq!(sections(b"no image"), None);
    }
}
