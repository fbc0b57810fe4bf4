//! The configuration of a pseries machine, and QEMU's command line for it.

use crate::qemu::{Boot, Launch};
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use std::{path::PathBuf, process::Command, time::Duration};

pub(super) const PROGRAM: &str = "qemu-system-ppc64";

/// The machine type and its options. Features that the emulated processor lacks are switched off.
/// The firmware is QEMU's small VOF, which starts a kernel without delay.
const MACHINE: &str = "pseries,x-vof=on,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken,\
     cap-ccf-assist=off";

/// The memory that QEMU uses in addition to the guest's boot memory.
const OVERHEAD: Bytes = Bytes::mib(256);

/// The largest number of DIMMs of a machine.
pub const SLOTS: u32 = 32;

/// The configuration of a pseries machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The kernel's initial file system, if there is one.
    pub initrd: Option<PathBuf>,
    /// The words of the kernel's command line.
    pub append: Vec<String>,
    /// Boot memory, which is divided equally among the nodes.
    pub boot_memory: Bytes,
    /// QEMU's `maxmem`: the largest sum of boot memory and DIMMs.
    pub max_memory: Bytes,
    /// The number of NUMA nodes. Both 0 and 1 mean one node.
    pub nodes: u32,
    /// DIMMs that are plugged at the start.
    pub dimms: Vec<Dimm>,
    /// Further arguments of QEMU.
    pub more_args: Vec<String>,
    /// Whether one instruction takes one nanosecond of the guest's time. The guest's time also
    /// passes while the guest waits.
    pub icount: bool,
    /// Whether QEMU records the run, so that [`Vm::instructions`](super::Vm::instructions) can
    /// return the number of executed instructions. One instruction takes one nanosecond of the
    /// guest's time, as with `icount`. A guest that polls instead of waiting for interrupts makes
    /// hardly any progress.
    pub counts_instructions: bool,
    /// Whether the machine waits for [`Vm::start_cpus`](super::Vm::start_cpus) before its first
    /// instruction.
    pub starts_stopped: bool,
    /// The time limit of a wait for an event. After it, the guest counts as hung.
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
    /// Its address, which must be a multiple of 256 MiB (QEMU does not check this), or `None` for
    /// the lowest free address.
    pub address: Option<u64>,
}

impl Dimm {
    /// Returns a DIMM on node 0 at the lowest free address.
    #[must_use]
    pub fn new(id: impl Into<String>, size: Bytes) -> Dimm {
        Dimm { id: id.into(), size, node: 0, address: None }
    }

    /// Returns the values of QEMU's options for the DIMM's memory backend and for its device.
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
    /// Returns a machine with 1 GiB of boot memory and without DIMMs.
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
            more_args: Vec::new(),
            icount: false,
            counts_instructions: false,
            starts_stopped: false,
            patience: scaled(Duration::from_secs(120)),
        }
    }

    /// Adds the key `hotmem.KEY` to the guest's command line.
    #[must_use]
    pub fn with_guest_option(mut self, key: &str, value: impl std::fmt::Display) -> Config {
        self.append.push(format!("hotmem.{key}={value}"));
        self
    }

    /// Returns QEMU's command with all arguments. Its standard input, which is QEMU's monitor, must be
    /// a socket, and its standard output, which is the guest's console, a pipe.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        let mut add_option = |option: &str, value: String| {
            command.arg(option).arg(value);
        };
        add_option("-machine", MACHINE.into());
        add_option("-accel", "tcg,thread=single".into());
        add_option("-cpu", "power9".into());
        if self.counts_instructions {
            // The recording is never replayed.
            add_option("-icount", "shift=0,rr=record,rrfile=/dev/null".into());
        } else if self.icount {
            add_option("-icount", "shift=0,sleep=on".into());
        }
        let (boot, max) = (self.boot_memory.0, self.max_memory.0);
        add_option("-m", format!("{boot}B,slots={SLOTS},maxmem={max}B"));
        if self.nodes > 1 {
            for node in 0..self.nodes {
                let size = boot / u64::from(self.nodes);
                add_option("-object", format!("memory-backend-ram,id=boot{node},size={size}B"));
                let cpus = if node == 0 { ",cpus=0" } else { "" };
                add_option("-numa", format!("node,nodeid={node},memdev=boot{node}{cpus}"));
            }
        }
        for dimm in &self.dimms {
            let [backend, device] = dimm.options();
            add_option("-object", backend);
            add_option("-device", device);
        }
        command.args(&self.more_args);
        if self.starts_stopped {
            command.arg("-S");
        }
        let Config { kernel, append, .. } = self;
        Boot { kernel, initrd: self.initrd.as_deref(), append }.add_to(&mut command);
        command
    }
}

impl From<&Config> for Launch {
    fn from(config: &Config) -> Launch {
        let host_memory = config.boot_memory + OVERHEAD;
        Launch { host_memory, ..Launch::new(config.command(), config.patience) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_memory_node_dimm_and_append_settings() {
        let config = Config::new("guest".into(), Bytes::gib(33)).with_guest_option("pin", 2);
        let dimm = Dimm { node: 1, address: Some(1 << 32), ..Dimm::new("a", Bytes::mib(256)) };
        let config = Config { nodes: 2, dimms: vec![dimm], starts_stopped: true, ..config };
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
