//! The configuration of a virtual machine.

use super::commands::CommandSocket;
use super::cxl::Cxl;
use super::emulator::{Architecture, Emulator};
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use std::{fs::File, ops::Add, path::PathBuf, sync::Arc, time::Duration};

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
    pub(super) fn options(self) -> Option<&'static str> {
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
    /// The firmware, which starts the kernel as an EFI application. If this is `None`, QEMU starts the
    /// kernel.
    pub firmware: Option<&'static str>,
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
    /// The CXL memory devices, if the machine has CXL. [`Config::touched_memory`] includes the bytes to
    /// which the guest writes.
    pub cxl: Option<Cxl>,
    /// The socket by which the guest takes commands, if it does.
    pub commands: Option<CommandSocket>,
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
    /// The number of memory slots, each of which can get a DIMM while the machine runs. If an aarch64
    /// machine has any, a small firmware starts the kernel, and [`firmware`](Self::firmware) must be `None`.
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
    /// Returns a machine of an architecture with one CPU and 128 MiB of boot memory. `memory` can be
    /// plugged into it, or is its [`late_memory`](Self::late_memory) if it has no virtio-mem device.
    #[must_use]
    pub fn of(architecture: Architecture, kernel: PathBuf, memory: Bytes) -> Config {
        match architecture {
            Architecture::X86_64 => Config::new(kernel, memory),
            Architecture::Aarch64 => Config::aarch64(kernel, memory),
            Architecture::Riscv64 => Config::riscv64(kernel, memory),
        }
    }

    /// Returns a machine with one CPU and 128 MiB of boot memory, into which `device_memory` can be
    /// plugged.
    #[must_use]
    pub fn new(kernel: PathBuf, device_memory: Bytes) -> Config {
        Config {
            emulator: Emulator::from_env(),
            architecture: Architecture::X86_64,
            machine: "q35",
            kernel,
            firmware: None,
            initrd: None,
            append: Vec::new(),
            boot_memory: Bytes::mib(128),
            nodes: Vec::new(),
            device_memory,
            device_node: None,
            device_address: None,
            more_memory_devices: Vec::new(),
            nvdimms: Vec::new(),
            cxl: None,
            commands: None,
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
            // With slots for DIMMs, a firmware starts the kernel.
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

    /// Makes the guest take commands. The command `end` ends it.
    #[must_use]
    pub fn with_commands(self) -> Config {
        let commands = Some(CommandSocket::unique());
        Config { commands, ..self.with_guest_option("exit", "command") }
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

    pub(super) fn all_device_memory(&self) -> Bytes {
        let more = self.more_memory_devices.iter().map(|&(memory, _)| memory);
        let cxl = self.cxl.iter().map(Cxl::size);
        more.chain(self.nvdimms.iter().copied()).chain(cxl).fold(self.device_memory, Add::add)
    }
}
