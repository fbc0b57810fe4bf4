//! Linux as the guest to compare with: Debian's cloud kernel, its own virtio-mem driver, and a
//! script that prints on the console the events that the reference guest would print.
//!
//! The initramfs is put together when it is needed: BusyBox, the kernel's modules, and `begin.sh`
//! followed by `init.sh`, `nvdimm.sh`, `dimms.sh` or `cxl.sh`. `cxl.sh` needs another kernel, and daxctl.

pub(crate) mod cpio;
mod distribution;
mod drivers;
mod error;
mod packages;

use crate::anonymous_file::anonymous_file;
use crate::qemu::{Architecture, Config};
use distribution::Distribution;
pub use drivers::Drivers;
pub use error::Error;
use hotmem::Bytes;
use packages::Packages;
use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

/// The directory below which `cargo xtask setup` unpacks packages.
const UNPACKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target");
/// The directory below which packages are installed.
const INSTALLED: &str = "/";

/// The script of the first process of a guest with a virtio-mem device.
const INIT: &str = concat!(include_str!("begin.sh"), include_str!("init.sh"));
/// The script of the first process of a guest with persistent memory.
const NVDIMM: &str = concat!(include_str!("begin.sh"), include_str!("nvdimm.sh"));
/// The script of the first process of a guest with CXL devices.
const CXL: &str = concat!(include_str!("begin.sh"), include_str!("cxl.sh"));
/// The script of the first process of a guest with memory slots.
const DIMMS: &str = concat!(include_str!("begin.sh"), include_str!("dimms.sh"));

/// The interval at which the guest polls its memory, and the most by which its reports are late.
pub const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

/// The size of Linux's descriptor of a frame, `struct page`.
pub const DESCRIPTOR: Bytes = Bytes(64);

/// The size of Linux's memory blocks on a machine that booted with less than 64 GiB.
pub const MEMORY_BLOCK: Bytes = Bytes::mib(128);

/// A Linux that is ready to boot.
pub struct Linux {
    architecture: Architecture,
    distribution: &'static Distribution,
    kernel: PathBuf,
    /// An anonymous file, which is removed when it is closed.
    initramfs: File,
}

impl Linux {
    /// Finds the packages for an architecture, and makes an initramfs from them with these drivers.
    ///
    /// # Errors
    /// [`Error`].
    pub fn find(architecture: Architecture, drivers: Drivers) -> Result<Linux, Error> {
        let distribution = Distribution::of(architecture, drivers)?;
        let init = match drivers {
            Drivers::Virtio => INIT,
            Drivers::Nvdimm => NVDIMM,
            Drivers::Cxl => CXL,
            Drivers::Dimms => DIMMS,
        };
        for root in [Path::new(UNPACKED).join(distribution.directory), INSTALLED.into()] {
            if let Some(packages) = Packages::below(&root, distribution, drivers)? {
                let archive = initramfs(&packages, init)?;
                let initramfs = anonymous_file(&archive).map_err(Error::Initramfs)?;
                return Ok(Linux {
                    architecture,
                    distribution,
                    kernel: packages.kernel,
                    initramfs,
                });
            }
        }
        Err(Error::NotInstalled(architecture, distribution.package))
    }

    /// Returns the configuration of a machine that boots this Linux and whose device can plug
    /// `memory`. It is usable only while `self` exists.
    #[must_use]
    pub fn config(&self, memory: Bytes) -> Config {
        let fd = self.initramfs.as_raw_fd();
        // QEMU opens the file by this name, and does not inherit it.
        let initrd = PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        let config = Config::of(self.architecture, self.kernel.clone(), memory);
        let config = config.with_guest_option("plug", memory.0);
        let console = format!("console={}", self.distribution.console);
        let append = [console, "quiet".to_owned()].into_iter().chain(config.append);
        Config { append: append.collect(), initrd: Some(initrd), ..config }
    }

    /// Returns a configuration as [`config`](Self::config) does, but for a guest that leaves
    /// plugged memory offline.
    ///
    /// Linux's driver adds at most 1 GiB, or two of its memory blocks, before these are online. So
    /// its memory blocks are half of `memory`, which must be a power of two up to 128 GiB.
    #[must_use]
    pub fn config_offline(&self, memory: Bytes) -> Config {
        self.config(memory).with_guest_option("block", memory.0 / 2)
    }

    /// Returns the smallest boot memory with which `memory` can be plugged. It contains the
    /// descriptors of all plugged frames.
    #[must_use]
    pub fn min_boot_memory(memory: Bytes) -> Bytes {
        Bytes::mib(256) + Bytes(memory.frames() * DESCRIPTOR.0)
    }
}

fn initramfs(packages: &Packages, init: &str) -> Result<Vec<u8>, Error> {
    let read = |path: &Path| fs::read(path).map_err(|error| Error::Read(path.into(), error));
    let too_large = |error| Error::Initramfs(io::Error::other(error));
    let mut archive = cpio::Archive::default();
    for directory in ["bin", "dev", "lib", "lib64", "modules", "proc", "sys", "touched"] {
        archive = archive.directory(directory);
    }
    archive = archive.file("init", init.as_bytes()).map_err(too_large)?;
    archive = archive.file("bin/busybox", &read(&packages.busybox)?).map_err(too_large)?;
    for (n, module) in packages.modules.iter().enumerate() {
        // The script loads them in the order of their names.
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive =
            archive.file(&format!("modules/{n:02}-{name}"), &read(module)?).map_err(too_large)?;
    }
    for program in &packages.programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let directory = match &*name {
            // The path that programs name.
            "ld-linux-x86-64.so.2" => "lib64",
            name if name.contains(".so.") => "lib",
            _ => "bin",
        };
        archive =
            archive.file(&format!("{directory}/{name}"), &read(program)?).map_err(too_large)?;
    }
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::{Event, GuestTime, Report};

    /// Returns the output of a script's `echo` lines with 7 for every variable.
    fn events_of(script: &str) -> Vec<Report> {
        let echoes = script.lines().filter_map(|line| line.trim().strip_prefix("echo \""));
        let quoted = echoes.filter_map(|rest| rest.strip_suffix('"'));
        let line = |text: &str| {
            let mut line = text.replace("\\\"", "\"");
            while let Some(start) = line.find('$') {
                let rest = &line[start + 1..];
                let end = if rest.starts_with("((") {
                    rest.find("))").unwrap() + 2
                } else {
                    let name = |c: char| c.is_ascii_alphanumeric() || c == '*';
                    rest.find(|c| !name(c)).unwrap_or(rest.len())
                };
                line.replace_range(start..=start + end, "7");
            }
            line
        };
        let reports = quoted.map(|text| Report::parse(&line(text)).unwrap());
        reports.filter(|report| *report != Report::Other).collect()
    }

    #[test]
    fn the_scripts_print_the_reference_guests_events() {
        let resized = Event::Resized {
            target: 7,
            plugged: 7,
            online: 7,
            free: 7,
            requests: 0,
            us: 7,
            device: 0,
            node: 0,
            node_online: 0,
            interrupted: false,
            zone: None,
        };
        let expected = [
            Report::BailOut("7".into()),
            Report::Event(resized),
            Report::Event(Event::Touched { bytes: 7, time: GuestTime::Us(7) }),
            Report::Event(Event::Heap { objects: 1, mapped: 7, moved: 7 }),
            Report::Event(Event::Boot { ms: 7, boot_memory: 7, cpus: 7, hot_pluggable: 0 }),
            Report::Event(Event::Freed { bytes: 7, us: 7 }),
        ];
        assert_eq!(events_of(INIT), expected);
        let bound = Event::Bound {
            device: 0,
            frames: 7,
            map: 0,
            saved: 0,
            written: 0,
            describe_us: 7,
            us: 7,
        };
        let expected = [
            Report::BailOut("7".into()),
            Report::Event(Event::Nvdimm { device: 0, addr: 7, size: 7 }),
            Report::Event(bound),
            Report::Event(Event::Unbound { device: 0, us: 7 }),
        ];
        assert_eq!(events_of(NVDIMM), expected);
        let mode = "7".into();
        let expected = [
            Report::BailOut("7".into()),
            Report::Event(Event::Reconfigured { device: 0, mode, online: 7, free: 7, us: 7 }),
        ];
        assert_eq!(events_of(CXL), expected);
        let expected = [
            Report::BailOut("7".into()),
            Report::Event(Event::Boot { ms: 0, boot_memory: 7, cpus: 1, hot_pluggable: 0 }),
            Report::Event(Event::DimmAdded {
                slot: 0,
                addr: 0,
                size: 7,
                node: 0,
                online: 7,
                us: 7,
            }),
            Report::Event(Event::DimmRemoved { slot: 0, size: 7, online: 7 }),
        ];
        assert_eq!(events_of(DIMMS), expected);
    }

    #[test]
    fn the_script_polls_at_the_documented_interval() {
        let pause = format!("read -r -t {} -u 3", POLL_INTERVAL.as_secs_f64());
        assert!(INIT.contains(&pause), "no `{pause}`");
    }

    #[test]
    fn names_of_modules_keep_their_order() {
        let script = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/linux/init.sh"));
        let busybox = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let (kernel, modules) = ("/nowhere".into(), vec![script, busybox.clone()]);
        let archive =
            initramfs(&Packages { kernel, busybox, modules, programs: Vec::new() }, INIT).unwrap();
        let text = String::from_utf8_lossy(&archive);
        let offsets = ["init\0", "modules/00-init.sh\0", "modules/01-Cargo.toml\0", "TRAILER!!!\0"]
            .map(|name| text.find(name));
        assert!(offsets.iter().all(Option::is_some) && offsets.is_sorted(), "{offsets:?}");
    }

    #[test]
    fn the_guest_boots_with_the_size_to_be_plugged() {
        let linux = Linux {
            architecture: Architecture::X86_64,
            distribution: &distribution::AMD64,
            kernel: "/boot/vmlinuz".into(),
            initramfs: anonymous_file(b"070701").unwrap(),
        };
        let config = linux.config(Bytes::gib(16));
        assert_eq!(config.append, ["console=ttyS0", "quiet", "hotmem.plug=17179869184"]);
        assert_eq!(fs::read(config.initrd.unwrap()).unwrap(), b"070701");
        let offline = linux.config_offline(Bytes::gib(16));
        assert_eq!(offline.append.last().unwrap(), "hotmem.block=8589934592");
        assert_eq!(Linux::min_boot_memory(Bytes::gib(64)), Bytes::mib(1280));
    }
}
