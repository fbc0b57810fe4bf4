//! QEMU's command line for a configuration.

use super::boot::{Boot, Launch};
use super::config::{Accel, Balloon, Config, Transport};
use super::cxl::Cxl;
use super::emulator::Architecture;
use super::jump;
use super::kvm_cpu::kvm_cpu;
use hotmem::Bytes;
use std::{ffi::OsStr, process::Command};

/// QEMU's exit status if the guest's verdict is PASS. The guest then writes 0x10 to QEMU's device
/// `isa-debug-exit`, and QEMU exits with 2 × 0x10 + 1.
const PASS_STATUS: i32 = 33;

/// A command of QEMU that is being composed.
struct Line {
    command: Command,
    /// The number of the next root port, which must differ from all others.
    next_slot: u32,
}

impl Line {
    fn add(&mut self, option: &str, value: impl AsRef<OsStr>) {
        self.command.arg(option).arg(value);
    }

    /// Adds memory whose pages the host need not have until the guest uses them.
    fn add_backend(&mut self, id: &str, size: Bytes) {
        self.add("-object", format!("memory-backend-ram,id={id},size={}B,reserve=off", size.0));
    }

    fn add_root_port(&mut self, id: &str) {
        let slot = self.next_slot;
        self.next_slot += 1;
        self.add("-device", format!("pcie-root-port,id={id},bus=pcie.0,slot={slot}"));
    }
}

impl Config {
    /// Returns QEMU's command with all arguments. Its standard input, which is QEMU's monitor, must be
    /// a socket, and its standard output, which is the guest's serial console, a pipe.
    #[must_use]
    pub fn command(&self) -> Command {
        let command = self.emulator.command(self.architecture);
        let mut line = Line { command, next_slot: 1 };
        self.add_machine(&mut line);
        self.add_cpus(&mut line);
        self.add_memory(&mut line);
        self.add_nodes(&mut line);
        self.add_memory_devices(&mut line);
        self.add_nvdimms(&mut line);
        if let Some(cxl) = &self.cxl {
            cxl.add_options(|option, value| line.add(option, value));
        }
        self.add_firmware_files(&mut line);
        self.add_other_devices(&mut line);
        if let Some(file) = &self.incoming_state {
            line.add("-incoming", format!("exec:cat \"{}\"", file.display()));
        }
        let mut command = line.command;
        let Config { kernel, append, .. } = self;
        Boot { kernel, initrd: self.initrd.as_deref(), append }.add_to(&mut command);
        // The first serial port is the console.
        if let Some(socket) = &self.commands {
            command.args(["-chardev", &socket.chardev(), "-serial", "chardev:commands"]);
        }
        command
    }

    fn add_machine(&self, line: &mut Line) {
        let nvdimm = if self.nvdimms.is_empty() { "" } else { ",nvdimm=on" };
        let cxl = self.cxl.as_ref().map(Cxl::machine_options).unwrap_or_default();
        // The host need not have as much memory as the guest that adds it late may use.
        let has_late_memory = self.late_memory != Bytes::ZERO;
        let backend = if has_late_memory { ",memory-backend=ram" } else { "" };
        line.add("-machine", format!("{}{nvdimm}{cxl}{backend}", self.machine));
        if has_late_memory {
            line.add_backend("ram", self.boot_memory + self.late_memory);
        }
        if let Some(firmware) = self.firmware {
            line.add("-bios", firmware);
        }
        if self.architecture == Architecture::Aarch64 && self.memory_slots != 0 {
            jump::options(&self.kernel).iter().for_each(|(option, value)| line.add(option, value));
        }
    }

    fn add_cpus(&self, line: &mut Line) {
        let one_thread = self.icount || self.single_thread;
        let tcg = if one_thread { "tcg,thread=single" } else { "tcg" };
        let (accel, cpu) = match (self.accel, self.architecture) {
            // `max` alone has 40 physical address bits, with which less than 1 TiB can be plugged.
            // With `erms` Linux clears memory by `rep stosb`, which is four times slower under TCG.
            (Accel::Tcg, Architecture::X86_64) => (tcg, "max,phys-bits=46,-erms"),
            (Accel::Tcg, Architecture::Aarch64) => (tcg, "cortex-a72"),
            (Accel::Tcg, Architecture::Riscv64) => (tcg, "rv64"),
            (Accel::Kvm, Architecture::X86_64) => {
                ("kvm", self.cpu.unwrap_or_else(|| kvm_cpu(&self.emulator)))
            }
            (Accel::Kvm, Architecture::Aarch64 | Architecture::Riscv64) => ("kvm", "host"),
        };
        line.add("-accel", accel);
        line.add("-cpu", self.cpu.unwrap_or(cpu));
        if self.icount {
            line.add("-icount", "shift=0,sleep=on");
        }
        line.add("-smp", self.cpus.to_string());
    }

    fn add_memory(&self, line: &mut Line) {
        let boot_memory = self.boot_memory + self.late_memory;
        let memory = match self.architecture {
            // The machine has no place for more memory.
            Architecture::Riscv64 => format!("{}B", boot_memory.0),
            Architecture::X86_64 | Architecture::Aarch64 => {
                // A device's region starts at a multiple of 1 GiB or at `device_address`, so `maxmem`
                // must be larger than the sum of boot memory and device memory.
                let gap = self.device_address.unwrap_or(Bytes::gib(16));
                let sufficient = boot_memory + self.all_device_memory() + gap;
                let max_memory = self.max_memory.unwrap_or(sufficient);
                let slots = self.memory_slots;
                format!("{}B,slots={slots},maxmem={}B", boot_memory.0, max_memory.0)
            }
        };
        line.add("-m", memory);
        if self.architecture == Architecture::X86_64 {
            line.add("-device", "isa-debug-exit,iobase=0xf4,iosize=0x4");
        }
    }

    fn add_nodes(&self, line: &mut Line) {
        for (node, memory) in self.nodes.iter().enumerate() {
            let mut numa = format!("node,nodeid={node}");
            if *memory != Bytes::ZERO {
                let size = memory.0;
                line.add("-object", format!("memory-backend-ram,id=boot{node},size={size}B"));
                numa += &format!(",memdev=boot{node}");
            }
            if node == 0 {
                numa += &format!(",cpus=0-{}", self.cpus.saturating_sub(1));
            }
            line.add("-numa", numa);
        }
    }

    /// Adds the virtio-mem devices.
    fn add_memory_devices(&self, line: &mut Line) {
        let first = (self.device_memory, self.device_node);
        let first = (self.device_memory != Bytes::ZERO).then_some(first);
        let more = self.more_memory_devices.iter().map(|&(memory, node)| (memory, Some(node)));
        for (n, (memory, node)) in first.into_iter().chain(more).enumerate() {
            line.add_backend(&format!("plug{n}"), memory);
            let kind = match self.transport {
                Transport::Pci => {
                    line.add_root_port(&format!("port{n}"));
                    format!("virtio-mem-pci,bus=port{n}")
                }
                // QEMU does not choose an address for a device on this bus. These addresses overlap
                // neither RAM nor each other.
                Transport::Mmio => format!("virtio-mem,memaddr={}", (n + 1) << 40),
            };
            let (block, requested) = (self.block_size.0, self.requested_at_start.0);
            let mut device = format!(
                "{kind},id=vmem{n},memdev=plug{n},block-size={block}B,requested-size={requested}B"
            );
            if let Some(node) = node {
                device += &format!(",node={node}");
            }
            if let Some(address) = self.device_address.filter(|_| n == 0) {
                device += &format!(",memaddr={}", address.0);
            }
            line.add("-device", device);
        }
    }

    fn add_nvdimms(&self, line: &mut Line) {
        for (n, &size) in self.nvdimms.iter().enumerate() {
            line.add_backend(&format!("persist{n}"), size);
            line.add("-device", format!("nvdimm,id=nvdimm{n},memdev=persist{n}"));
        }
    }

    /// Adds the ACPI tables and the files that the guest reads from the firmware.
    fn add_firmware_files(&self, line: &mut Line) {
        for (name, file) in &self.acpi_tables {
            line.add("-acpitable", format!("sig={name},data={}", file.display()));
        }
        for (name, contents) in &self.firmware_files {
            line.add("-fw_cfg", format!("name={name},string={contents}"));
        }
    }

    /// Adds the balloon, what tests add, and ports for devices that are added later.
    fn add_other_devices(&self, line: &mut Line) {
        if self.transport == Transport::Mmio {
            // By default QEMU's virtio-mmio devices have the interface from before virtio 1.0.
            line.add("-global", "virtio-mmio.force-legacy=false");
        }
        if self.balloon == Balloon::Everything {
            line.add("-object", "iothread,id=hints");
        }
        if let Some(options) = self.balloon.options() {
            line.add("-device", format!("virtio-balloon-pci,id=balloon0{options}"));
        }
        self.other_objects.iter().for_each(|object| line.add("-object", object));
        self.other_device_options.iter().for_each(|device| line.add("-device", device));
        if self.empty_ports > 0 {
            line.add("-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off");
        }
        for n in 0..self.empty_ports {
            line.add_root_port(&format!("spare{n}"));
        }
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
            commands: config.commands.clone(),
            ..Launch::new(config.command(), config.patience)
        }
    }
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
