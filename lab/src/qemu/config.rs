//! The configuration of a virtual machine, and QEMU's command line.

use super::boot::{Boot, Launch};
use super::emulator::{Architecture, Emulator};
use super::kvm_cpu::kvm_cpu;
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use std::{fs::File, ops::Add, path::PathBuf, process::Command, sync::Arc, time::Duration};

/// QEMU's exit status if the guest's verdict is PASS. The guest then writes 0x10 to QEMU's device
/// `isa-debug-exit`, and QEMU exits with 2 × 0x10 + 1.
const PASS_STATUS: i32 = 33;

/// The accelerator, which executes the guest's instructions.
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
    /// Virtio-mmio, as on the machine `microvm`. Devices can plug and unplug there, but QEMU does
    /// not map their memory, so the guest must not access it.
    Mmio,
}

/// The features of a balloon device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Balloon {
    /// There is no balloon device.
    #[default]
    None,
    /// The balloon can be inflated and deflated.
    Plain,
    /// The balloon can be inflated and deflated, and the device has free page reporting.
    Reports,
    /// The balloon can be inflated and deflated, and the device has free page reporting and free
    /// page hints. The guest may deflate the balloon when no memory is free.
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

/// The configuration of a machine with virtio-mem devices, which boots a kernel by PVH, or on aarch64 and
/// riscv64 as Linux is booted.
#[derive(Clone, Debug)]
pub struct Config {
    /// The QEMU that runs the machine.
    pub emulator: Emulator,
    /// The architecture of the machine.
    pub architecture: Architecture,
    /// QEMU's machine type, with its options.
    pub machine: &'static str,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The kernel's initial file system, if there is one.
    pub initrd: Option<PathBuf>,
    /// The words of the kernel's command line.
    pub append: Vec<String>,
    /// Memory at boot.
    pub boot_memory: Bytes,
    /// The boot memory of each NUMA node. If this is not empty, the sum must be `boot_memory`. All
    /// CPUs are on node 0.
    pub nodes: Vec<Bytes>,
    /// The largest size that the first virtio-mem device can plug. If this is zero, there is no
    /// such device.
    pub device_memory: Bytes,
    /// The first device's node.
    pub device_node: Option<u16>,
    /// The address of the first device's region. If this is `None`, QEMU chooses the address.
    pub device_address: Option<Bytes>,
    /// Further virtio-mem devices: the largest size that each can plug, and its node.
    pub more_memory_devices: Vec<(Bytes, u16)>,
    /// The sizes of NVDIMMs. [`Config::touched_memory`] includes the bytes of NVDIMMs to which the
    /// guest writes.
    pub nvdimms: Vec<Bytes>,
    /// Additional ACPI tables: the signature of each, and a file with its contents after the
    /// header.
    pub acpi_tables: Vec<(&'static str, PathBuf)>,
    /// Names and contents of files in QEMU's fw_cfg device. A kernel that cannot read its command
    /// line can read such a file instead.
    pub firmware_files: Vec<(&'static str, String)>,
    /// The bus of the virtio-mem devices.
    pub transport: Transport,
    /// The balloon device, if there is one.
    pub balloon: Balloon,
    /// The file into which QEMU's command `migrate` wrote the state of a machine with the same
    /// configuration. The new machine starts from this state.
    pub incoming_state: Option<PathBuf>,
    /// The file `cgroup.procs` of the cgroup in which QEMU runs, open for writing.
    pub cgroup: Option<Arc<File>>,
    /// Objects of the host, such as memory for other devices, as values of QEMU's option `-object`.
    pub other_objects: Vec<&'static str>,
    /// Devices of other kinds, as values of QEMU's option `-device`.
    pub other_device_options: Vec<&'static str>,
    /// The number of empty root ports, `spare0` and so on, for devices that are added while the
    /// machine runs. If there are any, all ports use native PCI Express hotplug. QEMU's default is
    /// ACPI hotplug.
    pub empty_ports: usize,
    /// Memory that the machine has from the start and that the guest tells its engine of after boot.
    pub late_memory: Bytes,
    /// The number of memory slots, each of which can get a DIMM while the machine runs.
    pub memory_slots: u32,
    /// QEMU's `maxmem`. If this is `None`, it is computed from the devices.
    pub max_memory: Option<Bytes>,
    /// The requested size of each virtio-mem device at the start of the machine.
    pub requested_at_start: Bytes,
    /// The block size of the virtio-mem devices.
    pub block_size: Bytes,
    /// The accelerator.
    pub accel: Accel,
    /// QEMU's CPU model with its options. If this is `None`, the CPU has all features that the
    /// accelerator supports.
    pub cpu: Option<&'static str>,
    /// Whether one instruction takes one nanosecond of the guest's time (TCG only). The guest's
    /// time also passes while the guest waits.
    pub icount: bool,
    /// The number of CPUs.
    pub cpus: u32,
    /// Whether TCG runs all CPUs in turn on one thread (TCG only). TCG of QEMU 7.2 and 10.0 with a
    /// thread for each CPU may lose the last writes to a page in a live migration.
    pub single_thread: bool,
    /// The largest amount of plugged memory to which the guest writes. The host must have as much
    /// memory available.
    pub touched_memory: Bytes,
    /// The time limit of a wait for an event. After it, the guest counts as hung.
    pub patience: Duration,
}

impl Config {
    /// Returns a machine with one CPU and 128 MiB of boot memory, into which `device_memory` can be
    /// plugged.
    #[must_use]
    pub fn new(kernel: PathBuf, device_memory: Bytes) -> Config {
        Config {
            emulator: Emulator::from_env(),
            architecture: Architecture::X86_64,
            machine: "q35",
            kernel,
            initrd: None,
            append: Vec::new(),
            boot_memory: Bytes::mib(128),
            nodes: Vec::new(),
            device_memory,
            device_node: None,
            device_address: None,
            more_memory_devices: Vec::new(),
            nvdimms: Vec::new(),
            acpi_tables: Vec::new(),
            firmware_files: Vec::new(),
            transport: Transport::Pci,
            balloon: Balloon::None,
            incoming_state: None,
            cgroup: None,
            other_objects: Vec::new(),
            other_device_options: Vec::new(),
            empty_ports: 0,
            late_memory: Bytes::ZERO,
            memory_slots: 10,
            max_memory: None,
            requested_at_start: Bytes::ZERO,
            block_size: Bytes::mib(2),
            accel: Accel::Tcg,
            cpu: None,
            icount: false,
            cpus: 1,
            single_thread: false,
            touched_memory: Bytes::ZERO,
            // This is longer than the guest's own watchdog (60 s), which names the operation that
            // hangs.
            patience: scaled(Duration::from_secs(75)),
        }
    }

    /// Returns a machine `virt` of aarch64 with one CPU and 128 MiB of boot memory, into which
    /// `device_memory` can be plugged.
    #[must_use]
    pub fn aarch64(kernel: PathBuf, device_memory: Bytes) -> Config {
        Config {
            architecture: Architecture::Aarch64,
            machine: "virt,gic-version=3",
            // Without ACPI, QEMU's machine has no slots for DIMMs.
            memory_slots: 0,
            ..Config::new(kernel, device_memory)
        }
    }

    /// Returns a machine `virt` of riscv64 with one CPU and 128 MiB of boot memory. QEMU has no virtio-mem
    /// device there, so the machine has `late_memory` from the start, and the guest tells its engine of it
    /// after boot.
    #[must_use]
    pub fn riscv64(kernel: PathBuf, late_memory: Bytes) -> Config {
        let config = Config::new(kernel, Bytes::ZERO);
        let config = Config {
            architecture: Architecture::Riscv64,
            machine: "virt",
            memory_slots: 0,
            late_memory,
            ..config
        };
        if late_memory == Bytes::ZERO {
            config
        } else {
            config.with_guest_option("late", late_memory.0)
        }
    }

    /// Makes the guest write to up to `size` of its plugged memory.
    #[must_use]
    pub fn with_touched_memory(mut self, size: Bytes) -> Config {
        self.touched_memory = size;
        // On an idle host the guest takes about 1.5 s for each GiB.
        self.patience += scaled(Duration::from_secs(size.0 >> 30) * 10);
        self.with_guest_option("touch", size.0)
    }

    /// Adds the key `hotmem.KEY` to the guest's command line.
    #[must_use]
    pub fn with_guest_option(mut self, key: &str, value: impl std::fmt::Display) -> Config {
        self.append.push(format!("hotmem.{key}={value}"));
        self
    }

    /// Returns the memory that the host must have available.
    #[must_use]
    pub fn host_memory(&self) -> Bytes {
        // QEMU itself was measured to use 49 MiB, and 0.094 MiB for each GiB of device memory.
        let qemu = Bytes(Bytes::mib(49).0 + self.all_device_memory().0 / 10_000);
        self.boot_memory + self.touched_memory + qemu
    }

    fn all_device_memory(&self) -> Bytes {
        let more = self.more_memory_devices.iter().map(|&(memory, _)| memory);
        more.chain(self.nvdimms.iter().copied()).fold(self.device_memory, Add::add)
    }

    /// Returns QEMU's command with all arguments. Its standard input, which is QEMU's monitor, must be
    /// a socket, and its standard output, which is the guest's serial console, a pipe.
    #[must_use]
    pub fn command(&self) -> Command {
        // A device's region starts at a multiple of 1 GiB or at `device_address`, so `maxmem` must
        // be larger than the sum of boot memory and device memory.
        let gap = self.device_address.unwrap_or(Bytes::gib(16));
        let boot_memory = self.boot_memory + self.late_memory;
        let sufficient = boot_memory + self.all_device_memory() + gap;
        let max_memory = self.max_memory.unwrap_or(sufficient);
        let (accel, cpu) = match self.accel {
            Accel::Tcg if self.architecture == Architecture::Aarch64 => {
                let one_thread = self.icount || self.single_thread;
                (if one_thread { "tcg,thread=single" } else { "tcg" }, "cortex-a72")
            }
            Accel::Tcg if self.architecture == Architecture::Riscv64 => {
                let one_thread = self.icount || self.single_thread;
                (if one_thread { "tcg,thread=single" } else { "tcg" }, "rv64")
            }
            Accel::Kvm if self.architecture != Architecture::X86_64 => ("kvm", "host"),
            // `max` alone has 40 physical address bits, with which less than 1 TiB can be plugged.
            // With `erms` Linux clears memory by `rep stosb`, which is four times slower under TCG.
            Accel::Tcg if self.icount || self.single_thread => {
                ("tcg,thread=single", "max,phys-bits=46,-erms")
            }
            Accel::Tcg => ("tcg", "max,phys-bits=46,-erms"),
            Accel::Kvm => ("kvm", self.cpu.unwrap_or_else(|| kvm_cpu(&self.emulator))),
        };
        let mut command = self.emulator.command(self.architecture);
        let mut add_option = |option: &str, value: String| {
            command.arg(option).arg(value);
        };
        let nvdimm = if self.nvdimms.is_empty() { "" } else { ",nvdimm=on" };
        add_option("-machine", format!("{}{nvdimm}", self.machine));
        add_option("-accel", accel.into());
        add_option("-cpu", self.cpu.unwrap_or(cpu).into());
        if self.icount {
            add_option("-icount", "shift=0,sleep=on".into());
        }
        add_option("-smp", self.cpus.to_string());
        add_option(
            "-m",
            match self.architecture {
                // The machine has no place for more memory.
                Architecture::Riscv64 => format!("{}B", boot_memory.0),
                _ => format!(
                    "{}B,slots={},maxmem={}B",
                    boot_memory.0, self.memory_slots, max_memory.0
                ),
            },
        );
        if self.architecture == Architecture::X86_64 {
            add_option("-device", "isa-debug-exit,iobase=0xf4,iosize=0x4".into());
        }
        for (node, memory) in self.nodes.iter().enumerate() {
            let mut numa = format!("node,nodeid={node}");
            if *memory != Bytes::ZERO {
                add_option(
                    "-object",
                    format!("memory-backend-ram,id=boot{node},size={}B", memory.0),
                );
                numa += &format!(",memdev=boot{node}");
            }
            if node == 0 {
                numa += &format!(",cpus=0-{}", self.cpus.saturating_sub(1));
            }
            add_option("-numa", numa);
        }
        let first =
            (self.device_memory != Bytes::ZERO).then_some((self.device_memory, self.device_node));
        let more = self.more_memory_devices.iter().map(|&(memory, node)| (memory, Some(node)));
        let mut slots = 1..;
        for (n, (memory, node)) in first.into_iter().chain(more).enumerate() {
            let size = memory.0;
            add_option(
                "-object",
                format!("memory-backend-ram,id=plug{n},size={size}B,reserve=off"),
            );
            let kind = match self.transport {
                Transport::Pci => {
                    add_option("-device", root_port(&format!("port{n}"), slots.next()));
                    format!("virtio-mem-pci,bus=port{n}")
                }
                // QEMU does not choose an address for a device on this bus. These addresses overlap
                // neither RAM nor each other.
                Transport::Mmio => format!("virtio-mem,memaddr={}", (n + 1) << 40),
            };
            let node = node.map(|node| format!(",node={node}")).unwrap_or_default();
            let address = self.device_address.filter(|_| n == 0);
            let address =
                address.map(|address| format!(",memaddr={}", address.0)).unwrap_or_default();
            add_option(
                "-device",
                format!(
                    "{kind},id=vmem{n},memdev=plug{n},block-size={}B,requested-size={}B{node}{address}",
                    self.block_size.0, self.requested_at_start.0
                ),
            );
        }
        for (n, size) in self.nvdimms.iter().enumerate() {
            let size = size.0;
            add_option(
                "-object",
                format!("memory-backend-ram,id=persist{n},size={size}B,reserve=off"),
            );
            add_option("-device", format!("nvdimm,id=nvdimm{n},memdev=persist{n}"));
        }
        for (name, file) in &self.acpi_tables {
            add_option("-acpitable", format!("sig={name},data={}", file.display()));
        }
        for (name, contents) in &self.firmware_files {
            add_option("-fw_cfg", format!("name={name},string={contents}"));
        }
        if self.transport == Transport::Mmio {
            // By default QEMU's virtio-mmio devices have the interface from before virtio 1.0.
            add_option("-global", "virtio-mmio.force-legacy=false".into());
        }
        if self.balloon == Balloon::Everything {
            add_option("-object", "iothread,id=hints".into());
        }
        if let Some(options) = self.balloon.options() {
            add_option("-device", format!("virtio-balloon-pci,id=balloon0{options}"));
        }
        for &object in &self.other_objects {
            add_option("-object", object.into());
        }
        for &device in &self.other_device_options {
            add_option("-device", device.into());
        }
        if self.empty_ports > 0 {
            add_option("-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off".into());
        }
        for n in 0..self.empty_ports {
            add_option("-device", root_port(&format!("spare{n}"), slots.next()));
        }
        if let Some(file) = &self.incoming_state {
            add_option("-incoming", format!("exec:cat \"{}\"", file.display()));
        }
        let Config { kernel, append, .. } = self;
        Boot { kernel, initrd: self.initrd.as_deref(), append }.add_to(&mut command);
        command
    }
}

impl From<&Config> for Launch {
    fn from(config: &Config) -> Launch {
        Launch {
            host_memory: config.host_memory(),
            pass_status: match config.architecture {
                Architecture::X86_64 => PASS_STATUS,
                // QEMU ends with status 0 when the guest switches the machine off.
                Architecture::Aarch64 | Architecture::Riscv64 => 0,
            },
            is_line_cut: config.incoming_state.is_some(),
            cgroup: config.cgroup.clone(),
            ..Launch::new(config.command(), config.patience)
        }
    }
}

fn root_port(id: &str, slot: Option<u32>) -> String {
    format!("pcie-root-port,id={id},bus=pcie.0,slot={}", slot.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_memory_append_and_device_settings() {
        let config = Config::new("guest".into(), Bytes::gib(64)).with_touched_memory(Bytes::gib(1));
        let command = config.with_guest_option("exit", "resizes:3").command();
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
    fn maxmem_includes_a_device_at_the_configured_address() {
        let address = Some(Bytes::gib(32));
        let config =
            Config { device_address: address, ..Config::new("guest".into(), Bytes::gib(64)) };
        let line: Vec<_> =
            config.command().get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let line = line.join(" ");
        let max_memory = Bytes::gib(96) + config.boot_memory;
        assert!(line.contains("requested-size=0B,memaddr=34359738368"), "{line}");
        assert!(line.contains(&format!("maxmem={}B", max_memory.0)), "{line}");
    }

    #[test]
    fn icount_runs_all_cpus_on_one_thread() {
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
