//! The configuration of a machine, and QEMU's command line for it.

use super::boot::Boot;
use super::emulator::Emulator;
use hotmem::Bytes;
use std::{fs::File, ops::Add, path::PathBuf, process::Command, sync::Arc, time::Duration};

/// Returns the virtio-mem device `vmem{n}`, as its QOM path.
pub(super) fn device_path(n: usize) -> String {
    format!("/machine/peripheral/vmem{n}")
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Accel {
    /// TCG: works everywhere
    #[default]
    Tcg,
    /// The host's processor
    Kvm,
}

/// The bus of virtio-mem devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// PCI Express, with a root port for each device.
    #[default]
    Pci,
    /// Virtio-mmio, as on the machine `microvm`. QEMU lets devices plug and unplug there, but does
    /// not map their memory, so the guest must not use it.
    Mmio,
}

/// The features of a balloon device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Balloon {
    /// There is no balloon device.
    #[default]
    None,
    /// It grows and shrinks.
    Plain,
    /// It grows, shrinks and takes reports of free memory.
    Reports,
    /// It grows, shrinks, and takes reports and hints. The guest may deflate it when memory runs
    /// out.
    Everything,
}

impl Balloon {
    fn options(self) -> Option<&'static str> {
        match self {
            Balloon::None => None,
            Balloon::Plain => Some(""),
            Balloon::Reports => Some(",free-page-reporting=on"),
            Balloon::Everything => {
                Some(",free-page-reporting=on,free-page-hint=on,iothread=hints,deflate-on-oom=on")
            }
        }
    }
}

/// A machine with virtio-mem devices, which boots a kernel by PVH.
#[derive(Clone, Debug)]
pub struct Config {
    /// The QEMU that runs it.
    pub emulator: Emulator,
    /// QEMU's machine type, with its options.
    pub machine: &'static str,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The kernel's initial file system, if it has one.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line, key by key.
    pub append: Vec<String>,
    /// Memory at boot.
    pub boot_memory: Bytes,
    /// The boot memory of each NUMA node; if this is not empty, the sum is all boot memory. The
    /// CPUs are on node 0.
    pub nodes: Vec<Bytes>,
    /// The largest size that the device can plug. If it is zero, there is no device.
    pub device_memory: Bytes,
    /// The device's node.
    pub device_node: Option<u16>,
    /// The address of the device's region; by default QEMU chooses it.
    pub device_address: Option<Bytes>,
    /// Further such devices: the largest size that each can plug, and its node.
    pub more_devices: Vec<(Bytes, u16)>,
    /// The sizes of NVDIMMs. [`Config::touched`] includes the part of them that the guest writes
    /// to.
    pub nvdimms: Vec<Bytes>,
    /// Additional ACPI tables: the signature of each, and a file with its contents after the
    /// header.
    pub acpi_tables: Vec<(&'static str, PathBuf)>,
    /// Names and contents of files that QEMU passes to the kernel by its fw_cfg device, for kernels
    /// that do not keep their command line.
    pub firmware_files: Vec<(&'static str, String)>,
    /// The bus of these devices.
    pub transport: Transport,
    /// The balloon device, if there is one.
    pub balloon: Balloon,
    /// The file into which QEMU's `migrate` wrote the state of an equal machine. This machine
    /// continues from it.
    pub incoming: Option<PathBuf>,
    /// The control group in which QEMU starts, as its file `cgroup.procs`, open for writing.
    pub group: Option<Arc<File>>,
    /// Devices of other kinds, as QEMU's option `-device` has them.
    pub other_devices: Vec<&'static str>,
    /// The number of free root ports, named `spare0` and so on, for devices that are added while
    /// the machine runs. They use native PCI Express hotplug, whereas QEMU's default is ACPI.
    pub empty_ports: usize,
    /// The largest address space for memory, if it is not the size that the devices need.
    pub max_memory: Option<Bytes>,
    /// The requested size before the guest runs.
    pub requested: Bytes,
    /// The device's block size.
    pub block_size: Bytes,
    /// What runs the guest's instructions.
    pub accel: Accel,
    /// QEMU's CPU model with its options; by default all that the accelerator supports.
    pub cpu: Option<&'static str>,
    /// One instruction takes one nanosecond of the guest's time (TCG only).
    pub icount: bool,
    /// As `icount`, and [`Vm::instructions`](super::Vm::instructions) counts instructions without
    /// the time in which the guest waits (TCG only).
    pub recorded: bool,
    /// The number of CPUs.
    pub cpus: u32,
    /// Whether TCG runs all CPUs on one thread, in turn (TCG only). With a thread for each CPU, a
    /// migration may miss the last writes to a page: TCG of QEMU 7.2 and 10.0 loses them.
    pub single_thread: bool,
    /// The largest part of the plugged memory to which the guest writes. The host must have that
    /// much memory.
    pub touched: Bytes,
    /// The time to wait for an event before the guest counts as hung.
    pub patience: Duration,
}

impl Config {
    /// Returns a machine with one CPU and 128 MiB of boot memory, into which `device_memory` can be
    /// plugged.
    #[must_use]
    pub fn new(kernel: PathBuf, device_memory: Bytes) -> Config {
        Config {
            emulator: Emulator::from_env(),
            machine: "q35",
            kernel,
            initrd: None,
            append: Vec::new(),
            boot_memory: Bytes::mib(128),
            nodes: Vec::new(),
            device_memory,
            device_node: None,
            device_address: None,
            more_devices: Vec::new(),
            nvdimms: Vec::new(),
            acpi_tables: Vec::new(),
            firmware_files: Vec::new(),
            transport: Transport::Pci,
            balloon: Balloon::None,
            incoming: None,
            group: None,
            other_devices: Vec::new(),
            empty_ports: 0,
            max_memory: None,
            requested: Bytes::ZERO,
            block_size: Bytes::mib(2),
            accel: Accel::Tcg,
            cpu: None,
            icount: false,
            recorded: false,
            cpus: 1,
            single_thread: false,
            touched: Bytes::ZERO,
            // Longer than the guest's own watchdog (60 s), which reports the operation that hangs.
            patience: Duration::from_secs(75),
        }
    }

    /// Makes the guest write to up to `size` of its plugged memory.
    #[must_use]
    pub fn touching(mut self, size: Bytes) -> Config {
        self.touched = size;
        // About 1.5 s for each GiB on an idle machine.
        self.patience += Duration::from_secs(size.0 >> 30) * 10;
        self.with("touch", size.0)
    }

    /// Adds the key `hotmem.KEY` to the guest's command line.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl std::fmt::Display) -> Config {
        self.append.push(format!("hotmem.{key}={value}"));
        self
    }

    /// Returns the memory that the host must have available.
    #[must_use]
    pub fn host_memory(&self) -> Bytes {
        // QEMU itself: 49 MiB and 0.094 MiB for each GiB of the backend, measured.
        let qemu = Bytes(Bytes::mib(49).0 + self.all_device_memory().0 / 10_000);
        self.boot_memory + self.touched + qemu
    }

    fn all_device_memory(&self) -> Bytes {
        let more = self.more_devices.iter().map(|&(memory, _)| memory);
        more.chain(self.nvdimms.iter().copied()).fold(self.device_memory, Add::add)
    }

    /// Returns QEMU with all its arguments. Its standard input is the monitor and must be a socket;
    /// its standard output is the guest's serial console and must be a pipe.
    #[must_use]
    pub fn command(&self) -> Command {
        // A device's region starts at a multiple of 1 GiB above the boot memory, so the address
        // space must be larger than the sum of both.
        let room = self.device_address.unwrap_or(Bytes::gib(16));
        let needed = self.boot_memory + self.all_device_memory() + room;
        let max_memory = self.max_memory.unwrap_or(needed);
        let (accel, cpu) = match self.accel {
            // `max` alone has 40 physical address bits: less than 1 TiB can be plugged. With `erms`
            // Linux clears memory by `rep stosb`, which TCG runs four times slower.
            Accel::Tcg if self.icount || self.recorded || self.single_thread => {
                ("tcg,thread=single", "max,phys-bits=46,-erms")
            }
            Accel::Tcg => ("tcg", "max,phys-bits=46,-erms"),
            Accel::Kvm => ("kvm", "host"),
        };
        let mut command = self.emulator.command();
        let mut pair = |option: &str, value: String| {
            command.arg(option).arg(value);
        };
        let nvdimm = if self.nvdimms.is_empty() { "" } else { ",nvdimm=on" };
        pair("-machine", format!("{}{nvdimm}", self.machine));
        pair("-accel", accel.into());
        pair("-cpu", self.cpu.unwrap_or(cpu).into());
        if self.recorded {
            // Only in this mode does QEMU report the number of executed instructions.
            pair("-icount", "shift=0,rr=record,rrfile=/dev/null".into());
        } else if self.icount {
            pair("-icount", "shift=0,sleep=on".into());
        }
        pair("-smp", self.cpus.to_string());
        pair("-m", format!("{}B,slots=10,maxmem={}B", self.boot_memory.0, max_memory.0));
        pair("-device", "isa-debug-exit,iobase=0xf4,iosize=0x4".into());
        for (node, memory) in self.nodes.iter().enumerate() {
            let mut numa = format!("node,nodeid={node}");
            if *memory != Bytes::ZERO {
                pair("-object", format!("memory-backend-ram,id=boot{node},size={}B", memory.0));
                numa += &format!(",memdev=boot{node}");
            }
            if node == 0 {
                numa += &format!(",cpus=0-{}", self.cpus.saturating_sub(1));
            }
            pair("-numa", numa);
        }
        let first =
            (self.device_memory != Bytes::ZERO).then_some((self.device_memory, self.device_node));
        let more = self.more_devices.iter().map(|&(memory, node)| (memory, Some(node)));
        let mut slots = 1..;
        for (n, (memory, node)) in first.into_iter().chain(more).enumerate() {
            let size = memory.0;
            pair("-object", format!("memory-backend-ram,id=plug{n},size={size}B,reserve=off"));
            let kind = match self.transport {
                Transport::Pci => {
                    pair("-device", root_port(&format!("port{n}"), slots.next()));
                    format!("virtio-mem-pci,bus=port{n}")
                }
                // QEMU does not choose these addresses: they lie far from all RAM and from each
                // other.
                Transport::Mmio => format!("virtio-mem,memaddr={}", (n + 1) << 40),
            };
            let node = node.map(|node| format!(",node={node}")).unwrap_or_default();
            let address = self.device_address.filter(|_| n == 0);
            let address = address.map(|at| format!(",memaddr={}", at.0)).unwrap_or_default();
            pair(
                "-device",
                format!(
                    "{kind},id=vmem{n},memdev=plug{n},block-size={}B,requested-size={}B{node}{address}",
                    self.block_size.0, self.requested.0
                ),
            );
        }
        for (n, size) in self.nvdimms.iter().enumerate() {
            let size = size.0;
            pair("-object", format!("memory-backend-ram,id=persist{n},size={size}B,reserve=off"));
            pair("-device", format!("nvdimm,id=nvdimm{n},memdev=persist{n}"));
        }
        for (name, file) in &self.acpi_tables {
            pair("-acpitable", format!("sig={name},data={}", file.display()));
        }
        for (name, contents) in &self.firmware_files {
            pair("-fw_cfg", format!("name={name},string={contents}"));
        }
        if self.transport == Transport::Mmio {
            // QEMU's default is the legacy interface of devices before virtio 1.0.
            pair("-global", "virtio-mmio.force-legacy=false".into());
        }
        if self.balloon == Balloon::Everything {
            pair("-object", "iothread,id=hints".into());
        }
        if let Some(options) = self.balloon.options() {
            pair("-device", format!("virtio-balloon-pci,id=balloon0{options}"));
        }
        for &device in &self.other_devices {
            pair("-device", device.into());
        }
        if self.empty_ports > 0 {
            pair("-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off".into());
        }
        for n in 0..self.empty_ports {
            pair("-device", root_port(&format!("spare{n}"), slots.next()));
        }
        if let Some(file) = &self.incoming {
            pair("-incoming", format!("exec:cat \"{}\"", file.display()));
        }
        let Config { kernel, append, .. } = self;
        Boot { kernel, initrd: self.initrd.as_deref(), append }.add_to(&mut command);
        command
    }
}

fn root_port(id: &str, slot: Option<u32>) -> String {
    format!("pcie-root-port,id={id},bus=pcie.0,slot={}", slot.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_every_setting_of_the_config() {
        let config = Config::new("guest".into(), Bytes::gib(64)).touching(Bytes::gib(1));
        let command = config.with("exit", "resizes:3").command();
        let line: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        let line = line.join(" ");
        for part in [
            "-m 134217728B,slots=10,maxmem=86033563648B",
            "-append hotmem.touch=1073741824 hotmem.exit=resizes:3",
            "memdev=plug0,block-size=2097152B,requested-size=0B",
        ] {
            assert!(line.contains(part), "no `{part}` in `{line}`");
        }
        assert!(!line.contains("-icount") && !line.contains("-initrd"), "{line}");
    }

    #[test]
    fn a_device_lies_at_the_configured_address_within_the_address_space() {
        let address = Some(Bytes::gib(32));
        let config =
            Config { device_address: address, ..Config::new("guest".into(), Bytes::gib(64)) };
        let line: Vec<_> =
            config.command().get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let line = line.join(" ");
        let most = Bytes::gib(96) + config.boot_memory;
        assert!(line.contains("requested-size=0B,memaddr=34359738368"), "{line}");
        assert!(line.contains(&format!("maxmem={}B", most.0)), "{line}");
    }

    #[test]
    fn instructions_are_counted_by_a_single_thread() {
        let config = Config::new("vmlinuz".into(), Bytes::gib(64));
        let command = Config { icount: true, initrd: Some("cpio".into()), ..config }.command();
        let line: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        let line = line.join(" ");
        for part in
            ["-accel tcg,thread=single", "-icount shift=0,sleep=on", ",-erms", "-initrd cpio"]
        {
            assert!(line.contains(part), "no `{part}` in `{line}`");
        }
    }
}
