//! `cargo xtask embed`, which builds and boots the kernels of docs/embedding.md and prints their
//! sizes.

use crate::{step::root, steps::Steps};
use hotmem_time_limit::scaled;
use object::{
    Endianness,
    elf::{FileHeader64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_NOBITS},
    read::elf::{FileHeader, SectionHeader},
};
use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

const IMAGES: &str = "target/x86_64-unknown-none/release/examples";
/// The sizes of the RAM of the machines that each step boots on: less than the boot code maps, more,
/// and so much that some lies above 4 GiB. The first steps need 192 MiB.
const RAM_SIZES: [&str; 3] = ["256M", "1500M", "6G"];
/// A size of RAM for the steps that add no memory between 128 and 192 MiB.
const LITTLE_RAM: &str = "64M";
/// QEMU's arguments for all steps, after the size of the RAM: a DIMM at 16 GiB, a virtio-mem
/// device whose requested size is 1 GiB, and a balloon.
const MACHINE: &str = "-machine q35 -cpu max -nodefaults -no-user-config \
     -display none -no-reboot -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=4 \
     -object memory-backend-ram,id=dimm,size=1G,reserve=off \
     -device pc-dimm,memdev=dimm,addr=0x400000000 \
     -object memory-backend-ram,id=vmem,size=2G,reserve=off \
     -device virtio-mem-pci,id=vmem0,memdev=vmem,requested-size=1G \
     -device virtio-balloon-pci,free-page-reporting=on,deflate-on-oom=on";
/// QEMU's exit status after a kernel has reported success.
const SUCCESS_STATUS: i32 = 0x10 << 1 | 1;
/// The time limit of a kernel on an idle host.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The text that a kernel prints before a command for QEMU's monitor.
const PROMPT: &str = "(qemu) ";

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

/// Builds the kernels, and boots them if QEMU is installed.
pub(crate) fn check(steps: &mut Steps) {
    steps.run_group("embed");
    if !steps.needs("target") || !steps.needs("qemu") {
        return;
    }
    let names = step_names().unwrap_or_default();
    if names.is_empty() {
        steps.fail("there are no examples in embedding/".to_owned());
    }
    for name in names {
        let maps_memory = *name >= *"step_4";
        for ram in RAM_SIZES.into_iter().chain(maps_memory.then_some(LITTLE_RAM)) {
            println!("-- {name}, {ram} of RAM");
            if let Err(error) = boot(&name, ram) {
                steps.fail(format!("{name} with {ram} of RAM: {error}"));
            }
        }
    }
}

/// Returns the names of the steps, in order.
fn step_names() -> io::Result<Vec<String>> {
    let entries = root().join("embedding/examples").read_dir()?;
    let stem = |path: PathBuf| Some(path.file_stem()?.to_string_lossy().into_owned());
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| stem(entry.path())).collect();
    names.sort_unstable();
    Ok(names)
}

/// Boots a kernel and shows its output. Sends the commands that the kernel prints after [`PROMPT`]
/// to QEMU's monitor.
fn boot(name: &str, ram: &str) -> io::Result<()> {
    let monitor = std::env::temp_dir().join(format!("hotmem-{}-{name}", std::process::id()));
    let seconds = scaled(TIME_LIMIT).as_secs().to_string();
    let mut qemu = Command::new("timeout");
    qemu.args(["--kill-after=5", &seconds, "qemu-system-x86_64"]).args(MACHINE.split_whitespace());
    qemu.args(["-m", &format!("{ram},slots=2,maxmem=32G")]);
    qemu.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor.display()));
    qemu.arg("-kernel").arg(root().join(IMAGES).join(name));
    let mut qemu = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut commands = Ok(());
    let lines = qemu.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    for line in lines.map_while(Result::ok) {
        println!("   {}", line.trim_end());
        if let Some(command) = line.trim_end().strip_prefix(PROMPT) {
            commands = commands.and_then(|()| send_to_monitor(&monitor, command));
        }
    }
    let status = qemu.wait()?;
    // QEMU leaves the socket behind only if it was killed.
    let _ = fs::remove_file(&monitor);
    commands?;
    if status.code() == Some(SUCCESS_STATUS) {
        return Ok(());
    }
    Err(io::Error::other(format!("the kernel did not report success: {status}")))
}

fn send_to_monitor(monitor: &Path, command: &str) -> io::Result<()> {
    let mut monitor = UnixStream::connect(monitor)?;
    writeln!(monitor, "{command}")?;
    // The monitor prints a prompt before and after a command, so the second prompt means that the
    // command has ended.
    let mut prompts = BufReader::new(monitor).split(b')');
    prompts.by_ref().take(2).try_for_each(|prompt| prompt.map(|_| ()))
}

/// Returns a table of each image's text, constants, data and zeroed data in KiB.
fn size_table() -> io::Result<String> {
    let mut table = format!(
        "{:24}{:>10}{:>10}{:>10}{:>10}\n",
        "KiB of each image", "text", "constants", "data", "zeroes"
    );
    for name in step_names()? {
        let image = fs::read(root().join(IMAGES).join(&name))?;
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
    fn the_page_names_every_step() {
        let page = fs::read_to_string(root().join("docs/embedding.md")).unwrap();
        let names = step_names().unwrap();
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
