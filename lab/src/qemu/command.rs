//! QEMU's command line for a configuration.

use super::boot::{Boot, Launch};
use super::config::{Accel, Balloon, Config, Transport};
use super::cxl::Cxl;
use super::emulator::Architecture;
use super::jump;
use super::kvm_cpu::kvm_cpu;
use hotmem::Bytes;
use std::process::Command;

/// QEMU's exit status if the guest's verdict is PASS. The guest then writes 0x10 to QEMU's device
/// `isa-debug-exit`, and QEMU exits with 2 × 0x10 + 1.
const PASS_STATUS: i32 = 33;

impl Config {
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
        let cxl = self.cxl.as_ref().map(Cxl::machine_options).unwrap_or_default();
        // The host need not have as much memory as the guest that adds it late may use.
        let backend = if self.late_memory == Bytes::ZERO { "" } else { ",memory-backend=ram" };
        add_option("-machine", format!("{}{nvdimm}{cxl}{backend}", self.machine));
        if !backend.is_empty() {
            let size = boot_memory.0;
            add_option("-object", format!("memory-backend-ram,id=ram,size={size}B,reserve=off"));
        }
        if let Some(firmware) = self.firmware {
            add_option("-bios", firmware.into());
        }
        if self.architecture == Architecture::Aarch64 && self.memory_slots != 0 {
            jump::options(&self.kernel)
                .into_iter()
                .for_each(|(name, value)| add_option(name, value));
        }
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
        if let Some(cxl) = &self.cxl {
            cxl.add_options(&mut add_option);
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
        // The first serial port is the console.
        if let Some(socket) = &self.commands {
            command.args(["-chardev", &socket.chardev(), "-serial", "chardev:commands"]);
        }
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
            commands: config.commands.clone(),
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
