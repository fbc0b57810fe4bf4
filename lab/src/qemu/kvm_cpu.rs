//! Chooses the CPU model of machines under KVM.

use super::emulator::{Architecture, Emulator};
use std::{
    io::Write,
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The model of the host's CPU.
const HOST: &str = "host";
/// A model with the features that every KVM supports.
const COMMON: &str = "kvm64,host-phys-bits=on";

/// Returns the model of the host's CPU if QEMU can make it, and otherwise a common model. If KVM
/// itself is emulated in software, it may refuse registers of the host's CPU; QEMU then aborts. Only
/// the first call in a process starts QEMU to find out.
pub(super) fn kvm_cpu(emulator: &Emulator) -> &'static str {
    static FOUND: OnceLock<&str> = OnceLock::new();
    FOUND.get_or_init(|| {
        if starts(emulator.command(Architecture::X86_64), HOST) { HOST } else { COMMON }
    })
}

/// Returns whether QEMU makes a machine with this CPU. The machine does not run.
fn starts(mut qemu: Command, cpu: &str) -> bool {
    qemu.args(["-accel", "kvm", "-cpu", cpu, "-S", "-nodefaults", "-display", "none"]);
    qemu.args(["-monitor", "stdio"]);
    let qemu = qemu.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(mut qemu) = qemu else { return false };
    // If QEMU has aborted, its exit status says so.
    let _ = qemu.stdin.take().map(|mut monitor| monitor.write_all(b"quit\n"));
    qemu.wait().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_makes_a_machine_with_the_chosen_cpu_wherever_it_makes_one_under_kvm() {
        let emulator = Emulator::default();
        if starts(emulator.command(Architecture::X86_64), COMMON)
            || starts(emulator.command(Architecture::X86_64), HOST)
        {
            assert!(starts(emulator.command(Architecture::X86_64), kvm_cpu(&emulator)));
        }
    }
}
