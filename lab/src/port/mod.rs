//! Runs other kernels, with Hotmem as their frame allocator, under QEMU. `cargo xtask ports` builds
//! them.

mod kernels;
mod measure;

pub use kernels::{
    ARCEOS, ARCEOS_ALONE, ARCEOS_PAGING, ARCEOS_SMP, C_KERNEL, OSTD, OSTD_HOTMEM, OSTD_ITSELF,
    OSTD_OSDK,
};
pub use measure::{Held, Segments, Used, end, found_at_boot, verified};

use crate::qemu::Config;
use hotmem::Bytes;
use std::{path::PathBuf, time::Duration};

/// The longest wait for an event of such a kernel.
const PATIENCE: Duration = Duration::from_secs(300);

/// A kernel that `cargo xtask ports` builds.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Its name in messages.
    pub name: &'static str,
    /// The port that it belongs to: `cargo xtask ports PORT` builds it.
    pub port: &'static str,
    /// Its image, below `target/ports`.
    pub image: &'static str,
    /// The memory that it boots with.
    pub boot_memory: Bytes,
    /// The CPUs that it boots with.
    pub cpus: u32,
}

impl Kernel {
    /// Returns where its image lies once it is built.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/ports")).join(self.image)
    }

    /// Returns the machine that it boots on, with a device of this much memory.
    #[must_use]
    pub fn config(&self, device_memory: Bytes) -> Config {
        let config = Config::new(self.image(), device_memory).touching(device_memory);
        let (boot_memory, cpus) = (self.boot_memory, self.cpus);
        Config { boot_memory, cpus, patience: PATIENCE, ..config }
    }
}
