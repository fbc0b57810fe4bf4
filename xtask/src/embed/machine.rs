//! The machines that boot the kernels of docs/embedding.md.

use crate::step::root;
use hotmem_time_limit::scaled;
use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// A machine of QEMU.
pub(super) struct Machine {
    pub(super) architecture: &'static str,
    /// The compiler's target.
    target: &'static str,
    program: &'static str,
    arguments: &'static str,
    /// The part of QEMU's option `-m` about slots for DIMMs.
    slots: &'static str,
    /// The sizes of the RAM on which every step boots: less than the boot code maps, more, and so much
    /// that some lies above 4 GiB. The first steps need 192 MiB.
    ram_sizes: &'static [&'static str],
    /// The sizes for the steps with a DIMM, if they differ.
    ram_sizes_with_dimm: Option<&'static [&'static str]>,
}

/// A PC with a DIMM at 16 GiB.
pub(super) const PC: Machine = Machine {
    architecture: "x86-64",
    target: "x86_64-unknown-none",
    program: "qemu-system-x86_64",
    arguments: "-machine q35 -cpu max -device isa-debug-exit,iobase=0xf4,iosize=4 \
         -object memory-backend-ram,id=dimm,size=1G,reserve=off \
         -device pc-dimm,memdev=dimm,addr=0x400000000",
    slots: "slots=2,",
    ram_sizes: &["256M", "1500M", "6G"],
    ram_sizes_with_dimm: None,
};

/// QEMU's machine for aarch64. It has no slots without ACPI: the last GiB of RAM stands for a DIMM, if the
/// boot code has not mapped it.
pub(super) const AARCH64: Machine = Machine {
    architecture: "aarch64",
    target: "aarch64-unknown-none-softfloat",
    program: "qemu-system-aarch64",
    arguments: "-machine virt -cpu cortex-a72 -semihosting-config enable=on,target=native",
    slots: "",
    ram_sizes: &["256M", "1500M", "6G"],
    ram_sizes_with_dimm: Some(&["2G", "6G"]),
};

/// The arguments of all machines: a virtio-mem device whose requested size is 1 GiB, and a balloon.
const ALL_MACHINES: &str = "-nodefaults -no-user-config -display none -no-reboot -serial stdio \
     -object memory-backend-ram,id=vmem,size=2G,reserve=off \
     -device virtio-mem-pci,id=vmem0,memdev=vmem,requested-size=1G \
     -device virtio-balloon-pci,free-page-reporting=on,deflate-on-oom=on";
/// The steps that add the machine's DIMM.
const STEPS_WITH_DIMM: [&str; 2] = ["step_4_mapping", "step_7_zero_pages"];
/// A size of RAM for the steps that add no memory between 128 and 192 MiB.
const LITTLE_RAM: &str = "64M";
/// QEMU's exit status after a kernel has reported success.
const SUCCESS_STATUS: i32 = 0x10 << 1 | 1;
/// QEMU's exit status after a kernel has reported an error.
const FAILURE_STATUS: i32 = 0x11 << 1 | 1;
/// A kernel that fails, and what it must print.
const FAILING: (&str, &str) = ("stack_overflow", "the stack has overflowed at ");
/// The time limit of a kernel on an idle host.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The text that a kernel prints before a command for QEMU's monitor.
const PROMPT: &str = "(qemu) ";

impl Machine {
    /// Returns the path of a step's image.
    pub(super) fn image(&self, name: &str) -> PathBuf {
        root().join("target").join(self.target).join("release/examples").join(name)
    }

    /// Returns the sizes of the RAM on which a step boots.
    pub(super) fn ram_sizes(&self, name: &str) -> impl Iterator<Item = &'static str> {
        let with_dimm = self.ram_sizes_with_dimm.filter(|_| STEPS_WITH_DIMM.contains(&name));
        let maps_memory = *name >= *"step_4" && with_dimm.is_none();
        let sizes = with_dimm.unwrap_or(self.ram_sizes).iter().copied();
        sizes.chain(maps_memory.then_some(LITTLE_RAM))
    }

    /// Boots a kernel, shows its output, and checks that it succeeds, or fails as [`FAILING`] says. Sends the
    /// commands that the kernel prints after [`PROMPT`] to QEMU's monitor.
    pub(super) fn boot(&self, name: &str, ram: &str) -> io::Result<()> {
        let monitor = std::env::temp_dir().join(format!("hotmem-{}-{name}", std::process::id()));
        let seconds = scaled(TIME_LIMIT).as_secs().to_string();
        let mut qemu = Command::new("timeout");
        qemu.args(["--kill-after=5", &seconds, self.program]);
        qemu.args(self.arguments.split_whitespace()).args(ALL_MACHINES.split_whitespace());
        qemu.args(["-m", &format!("{ram},{}maxmem=32G", self.slots)]);
        qemu.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor.display()));
        qemu.arg("-kernel").arg(self.image(name));
        let mut qemu = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let (expected_status, text) =
            if name == FAILING.0 { (FAILURE_STATUS, FAILING.1) } else { (SUCCESS_STATUS, "") };
        let mut text_was_printed = text.is_empty();
        let mut commands = Ok(());
        let lines = qemu.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        for line in lines.map_while(Result::ok) {
            println!("   {}", line.trim_end());
            text_was_printed |= line.contains(text);
            if let Some(command) = line.trim_end().strip_prefix(PROMPT) {
                commands = commands.and_then(|()| send_to_monitor(&monitor, command));
            }
        }
        let status = qemu.wait()?;
        // QEMU leaves the socket behind only if it was killed.
        let _ = fs::remove_file(&monitor);
        commands?;
        if !text_was_printed {
            return Err(io::Error::other(format!("the kernel did not print \"{text}\"")));
        }
        if status.code() == Some(expected_status) {
            return Ok(());
        }
        Err(io::Error::other(format!("the kernel ended with {status}, not {expected_status}")))
    }
}

fn send_to_monitor(monitor: &Path, command: &str) -> io::Result<()> {
    let mut monitor = UnixStream::connect(monitor)?;
    writeln!(monitor, "{command}")?;
    // The monitor prints a prompt before and after a command, so the second prompt means that the
    // command has ended.
    let mut prompts = BufReader::new(monitor).split(b')');
    prompts.by_ref().take(2).try_for_each(|prompt| prompt.map(|_| ()))
}
