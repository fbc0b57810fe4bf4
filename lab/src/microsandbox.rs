//! Virtual machines on the VMM of microsandbox, which a program outside of the workspace runs. The
//! program answers the commands of QEMU's monitor, so a [`Vm`](crate::qemu::Vm) drives it.

use crate::qemu::{Balloon, Config as QemuConfig, Error, Launch};
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The program's package, and the directory into which cargo builds it, both relative to the workspace's
/// root.
const PACKAGE: &str = "lab/vmm/microsandbox";
const TARGET: &str = "target/microsandbox";
const NAME: &str = "hotmem-microsandbox";

/// The block size of the memory device.
pub const BLOCK_SIZE: Bytes = Bytes::mib(2);

/// The configuration of a machine with a virtio-mem device, which boots a kernel by Linux's 64-bit boot
/// protocol. All sizes are whole MiB.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program that runs the VMM.
    pub program: PathBuf,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The initial RAM disk, if there is one.
    pub initrd: Option<PathBuf>,
    /// The words of the kernel's command line.
    pub append: Vec<String>,
    /// Memory at boot.
    pub boot_memory: Bytes,
    /// The largest size that the device can plug.
    pub device_memory: Bytes,
    /// The number of CPUs.
    pub cpus: u32,
    /// Whether there is a balloon device with free page reporting.
    pub balloon: bool,
    /// Whether the VMM emulates the I/O APIC. The machine then has neither an 8259 nor an 8254.
    pub split_irqchip: bool,
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
    pub fn new(program: PathBuf, kernel: PathBuf, device_memory: Bytes) -> Config {
        Config {
            program,
            kernel,
            initrd: None,
            append: Vec::new(),
            boot_memory: Bytes::mib(128),
            device_memory,
            cpus: 1,
            balloon: false,
            split_irqchip: false,
            touched_memory: Bytes::ZERO,
            patience: scaled(Duration::from_secs(75)),
        }
    }

    /// Returns a machine with the guest, the memory and the balloon of a machine of QEMU. Whatever this VMM
    /// cannot configure is left out.
    #[must_use]
    pub fn like(config: &QemuConfig, program: PathBuf) -> Config {
        Config {
            initrd: config.initrd.clone(),
            append: config.append.clone(),
            boot_memory: config.boot_memory,
            cpus: config.cpus,
            balloon: config.balloon != Balloon::None,
            touched_memory: config.touched_memory,
            patience: config.patience,
            ..Config::new(program, config.kernel.clone(), config.device_memory)
        }
    }

    /// Adds the key `hotmem.KEY` to the guest's command line.
    #[must_use]
    pub fn with_guest_option(mut self, key: &str, value: impl std::fmt::Display) -> Config {
        self.append.push(format!("hotmem.{key}={value}"));
        self
    }

    /// Makes the guest write to up to `size` of its plugged memory.
    #[must_use]
    pub fn with_touched_memory(mut self, size: Bytes) -> Config {
        self.touched_memory = size;
        self.patience += scaled(Duration::from_secs(size.0 >> 30) * 10);
        self.with_guest_option("touch", size.0)
    }

    fn command(&self) -> Command {
        let mib = |size: Bytes| (size.0 >> 20).to_string();
        let mut command = Command::new(&self.program);
        command.arg("--kernel").arg(&self.kernel);
        if let Some(initrd) = &self.initrd {
            command.arg("--initrd").arg(initrd);
        }
        command.args(["--append", &self.append.join(" ")]);
        command.args(["--boot-memory", &mib(self.boot_memory)]);
        command.args(["--device-memory", &mib(self.device_memory)]);
        command.args(["--cpus", &self.cpus.to_string()]);
        command.args(self.balloon.then_some("--balloon"));
        command.args(self.split_irqchip.then_some("--split-irqchip"));
        command
    }
}

impl From<&Config> for Launch {
    fn from(config: &Config) -> Launch {
        // The VMM itself takes a few MiB. It ends with status 0 when the guest resets the machine.
        let host_memory = config.boot_memory + config.touched_memory + Bytes::mib(64);
        Launch { host_memory, ..Launch::new(config.command(), config.patience) }
    }
}

/// Builds the program, if it is out of date, and returns its path.
///
/// # Errors
/// [`Error::Build`].
pub fn find() -> Result<PathBuf, Error> {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--locked", "--target-dir", TARGET])
        .args(["--manifest-path", &format!("{PACKAGE}/Cargo.toml")])
        .current_dir(workspace)
        .stdout(Stdio::null())
        .status()
        .map_err(|error| Error::Build(format!("cargo: {error}")))?;
    if !status.success() {
        return Err(Error::Build(format!("cargo ended with {status} for {PACKAGE}")));
    }
    Ok(workspace.join(TARGET).join("release").join(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_all_settings() {
        let config = Config::new("runner".into(), "guest".into(), Bytes::gib(1));
        let config = Config { cpus: 2, balloon: true, initrd: Some("disk".into()), ..config };
        let command = config.with_guest_option("exit", "boot").command();
        let line: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        assert_eq!(
            line.join(" "),
            "--kernel guest --initrd disk --append hotmem.exit=boot --boot-memory 128 \
             --device-memory 1024 --cpus 2 --balloon"
        );
    }
}
