//! Describes the machine on which figures were measured.

use serde::{Deserialize, Serialize};
use std::{fs, num::NonZero, process::Command, thread};

/// A machine, and the programs that the benches start there.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    /// The processor's name.
    pub(super) cpu: String,
    /// The number of CPUs that this process may use.
    pub(super) cpus: usize,
    /// Memory, in whole GiB.
    pub(super) memory_gib: u64,
    /// Whether the machine is itself a virtual machine.
    pub(super) is_virtual: bool,
    pub(super) kernel: String,
    /// The first line of `qemu-system-x86_64 --version`, if it is installed.
    pub(super) qemu: Option<String>,
    pub(super) valgrind: Option<String>,
}

impl Machine {
    /// Describes this machine.
    pub(super) fn of_this_host() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            cpu: cpu(&cpuinfo).unwrap_or("unknown").to_owned(),
            cpus: thread::available_parallelism().map_or(1, NonZero::get),
            memory_gib: memory_gib(&meminfo).unwrap_or(0),
            is_virtual: is_virtual(&cpuinfo),
            kernel: kernel.trim().to_owned(),
            qemu: version("qemu-system-x86_64"),
            valgrind: version("valgrind"),
        }
    }

    /// Returns whether figures of both machines may be compared. Their kernels and programs may
    /// differ.
    pub(super) fn is_like(&self, other: &Machine) -> bool {
        let hardware = |m: &Machine| (m.cpu.clone(), m.cpus, m.memory_gib, m.is_virtual);
        hardware(self) == hardware(other)
    }

    /// Describes the hardware in a few words.
    pub(super) fn hardware(&self) -> String {
        let Machine { cpu, cpus, memory_gib, .. } = self;
        let kind = if self.is_virtual { ", a virtual machine" } else { "" };
        format!("{cpus} CPUs of {cpu}, {memory_gib} GiB{kind}")
    }

    /// Describes the kernel and the programs in a few words.
    pub(super) fn programs(&self) -> String {
        let linux = format!("Linux {}", self.kernel);
        let programs = [Some(&linux), self.qemu.as_ref(), self.valgrind.as_ref()];
        programs.into_iter().flatten().cloned().collect::<Vec<_>>().join("; ")
    }
}

fn cpu(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

fn is_virtual(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// Returns the memory rounded up to whole GiB, because `MemTotal` lacks what the kernel has reserved.
fn memory_gib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kib.div_ceil(1 << 20))
}

fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().filter(|_| output.status.success())?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_and_the_memory_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu hypervisor\n";
        assert_eq!((cpu(cpuinfo), is_virtual(cpuinfo)), (Some("Some CPU @ 2 GHz"), true));
        assert!(!is_virtual("flags : fpu\n"));
        assert_eq!(memory_gib("MemTotal:       24654096 kB\n"), Some(24));
        assert_eq!((cpu(""), memory_gib("MemTotal: much")), (None, None));
    }

    #[test]
    fn machines_with_different_kernels_are_alike() {
        let this_host = Machine::of_this_host();
        assert!(this_host.is_like(&Machine {
            kernel: "7.0".into(),
            qemu: None,
            ..this_host.clone()
        }));
        assert!(!this_host.is_like(&Machine { cpus: this_host.cpus + 1, ..this_host.clone() }));
        assert!(this_host.hardware().contains(&this_host.cpu));
    }
}
