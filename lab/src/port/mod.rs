//! Boots the kernels of the ports under QEMU. In a port, Hotmem is the frame allocator of another
//! kernel. `cargo xtask ports` builds them.

mod kernels;
mod measure;

pub use kernels::{
    ARCEOS, ARCEOS_PAGING, ARCEOS_SMP, ARCEOS_STOCK, C_KERNEL, OSTD, OSTD_HOTMEM, OSTD_KTEST,
    OSTD_LATE, OSTD_OSDK, TGOSKITS,
};
pub use measure::{CommittedMemory, PlugCycle, Segments, booted_with, end, verified};

use crate::patience::patience;
use crate::qemu::Config;
use hotmem::Bytes;
use std::path::PathBuf;

/// A kernel that `cargo xtask ports` builds.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Its name in messages.
    pub name: &'static str,
    /// The name of its port: `cargo xtask ports PORT` builds the kernel.
    pub port: &'static str,
    /// The path of its image, relative to `target/ports`.
    pub image: &'static str,
    /// The firmware that starts it as an EFI application, if QEMU cannot start it.
    pub firmware: Option<&'static str>,
    /// Its boot memory.
    pub boot_memory: Bytes,
    /// The number of its CPUs.
    pub cpus: u32,
}

impl Kernel {
    /// Returns the path of the image, which exists after the kernel was built.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/ports")).join(self.image)
    }

    /// Returns a machine that boots the kernel, with a virtio-mem device of `device_memory`.
    #[must_use]
    pub fn config(&self, device_memory: Bytes) -> Config {
        let config = Config::new(self.image(), device_memory).with_touched_memory(device_memory);
        Config {
            firmware: self.firmware,
            boot_memory: self.boot_memory,
            cpus: self.cpus,
            patience: patience(),
            ..config
        }
    }
}
