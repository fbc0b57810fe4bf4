//! The configuration of a pseries machine, and QEMU's command line for it.

use crate::qemu::raw::Boot;
use hotmem::Bytes;
use std::{path::PathBuf, process::Command, time::Duration};

pub(super) const PROGRAM: &str = "qemu-system-ppc64";

/// Switches off the features that the emulated processor lacks, and selects QEMU's small built-in
/// firmware, which starts a kernel at once.
const MACHINE: &str = "pseries,x-vof=on,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken,\
     cap-ccf-assist=off";

/// The largest number of DIMMs of a machine.
pub const SLOTS: u32 = 32;

/// A pseries machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The kernel's initial file system, if it has one.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line, word by word.
    pub append: Vec<String>,
    /// Memory at boot, in equal parts if there are nodes.
    pub boot_memory: Bytes,
    /// The maximum memory.
    pub max_memory: Bytes,
    /// The number of NUMA nodes; 0 and 1 both mean a single one.
    pub nodes: u32,
    /// DIMMs that are plugged from the start.
    pub dimms: Vec<Dimm>,
    /// Further arguments.
    pub more: Vec<String>,
    /// One instruction takes one nanosecond of the guest's time. Waiting takes time, too.
    pub icount: bool,
    /// As `icount`, and [`Vm::instructions`](super::Vm::instructions) counts instructions without
    /// the time in which the guest waits. Only for guests that wait for interrupts: one that polls
    /// makes hardly any progress.
    pub record: bool,
    /// Whether the machine waits for [`Vm::go_on`](super::Vm::go_on) before its first instruction.
    pub stopped: bool,
    /// The time to wait for an event before the guest counts as hung.
    pub patience: Duration,
}

/// A DIMM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dimm {
    /// Its name.
    pub id: String,
    /// Its size, a multiple of 256 MiB.
    pub size: Bytes,
    /// Its node.
    pub node: u32,
    /// Its address, a multiple of 256 MiB, which QEMU does not check; `None` for the lowest free
    /// address.
    pub address: Option<u64>,
}

impl Dimm {
    /// Returns a DIMM of node 0 at the lowest free address.
    #[must_use]
    pub fn new(id: impl Into<String>, size: Bytes) -> Dimm {
        Dimm { id: id.into(), size, node: 0, address: None }
    }

    /// Returns QEMU's options for its memory backend and its device.
    pub(super) fn options(&self) -> [String; 2] {
        let Dimm { id, size, node, address } = self;
        let address = address.map(|address| format!(",addr={address}")).unwrap_or_default();
        [
            format!("memory-backend-ram,id=mem-{id},size={}B,reserve=off", size.0),
            format!("pc-dimm,id={id},memdev=mem-{id},node={node}{address}"),
        ]
    }
}

impl Config {
    /// Returns a machine with 1 GiB of boot memory, which can grow to `max_memory`.
    #[must_use]
    pub fn new(kernel: PathBuf, max_memory: Bytes) -> Config {
        Config {
            kernel,
            initrd: None,
            append: Vec::new(),
            boot_memory: Bytes::gib(1),
            max_memory,
            nodes: 0,
            dimms: Vec::new(),
            more: Vec::new(),
            icount: false,
            record: false,
            stopped: false,
            patience: Duration::from_secs(120),
        }
    }

    /// Adds the key `hotmem.KEY` to the guest's command line.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl std::fmt::Display) -> Config {
        self.append.push(format!("hotmem.{key}={value}"));
        self
    }

    /// Returns QEMU with all its arguments. Its standard input is the monitor and must be a socket;
    /// its standard output is the guest's console and must be a pipe.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        let mut pair = |option: &str, value: String| {
            command.arg(option).arg(value);
        };
        pair("-machine", MACHINE.into());
        pair("-accel", "tcg,thread=single".into());
        pair("-cpu", "power9".into());
        if self.record {
            // The recording is never replayed.
            pair("-icount", "shift=0,rr=record,rrfile=/dev/null".into());
        } else if self.icount {
            pair("-icount", "shift=0,sleep=on".into());
        }
        let (boot, most) = (self.boot_memory.0, self.max_memory.0);
        pair("-m", format!("{boot}B,slots={SLOTS},maxmem={most}B"));
        if self.nodes > 1 {
            for node in 0..self.nodes {
                let size = boot / u64::from(self.nodes);
                pair("-object", format!("memory-backend-ram,id=boot{node},size={size}B"));
                let cpus = if node == 0 { ",cpus=0" } else { "" };
                pair("-numa", format!("node,nodeid={node},memdev=boot{node}{cpus}"));
            }
        }
        for dimm in &self.dimms {
            let [behind, device] = dimm.options();
            pair("-object", behind);
            pair("-device", device);
        }
        command.args(&self.more);
        if self.stopped {
            command.arg("-S");
        }
        let Config { kernel, append, .. } = self;
        Boot { kernel, initrd: self.initrd.as_deref(), append }.add_to(&mut command);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_every_setting_of_the_config() {
        let config = Config::new("guest".into(), Bytes::gib(33)).with("pin", 2);
        let dimm = Dimm { node: 1, address: Some(1 << 32), ..Dimm::new("a", Bytes::mib(256)) };
        let config = Config { nodes: 2, dimms: vec![dimm], stopped: true, ..config };
        let command = config.command();
        let line: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        let line = line.join(" ");
        for part in [
            "-m 1073741824B,slots=32,maxmem=35433480192B",
            "-numa node,nodeid=1,memdev=boot1",
            "-device pc-dimm,id=a,memdev=mem-a,node=1,addr=4294967296",
            "-append hotmem.pin=2",
            " -S ",
        ] {
            assert!(line.contains(part), "no `{part}` in `{line}`");
        }
        assert!(!line.contains("-icount"), "{line}");
    }
}
