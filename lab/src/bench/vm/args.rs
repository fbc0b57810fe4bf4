//! Defines the arguments of the bench, and computes sizes and warm-ups from them.

use super::memory_in_use::MemoryInUse;
use crate::{
    guest::{Guest, Machine, Policy},
    qemu::Architecture,
    size,
};
use hotmem::Bytes;
use std::path::PathBuf;

/// Arguments of `hotmem bench vm`.
#[derive(clap::Args)]
pub struct Args {
    /// The machine to boot. On riscv64, which has no virtio-mem device, the machine has the memory
    /// from the start, and the guest tells its engine of it after boot
    #[arg(long, value_enum, default_value_t)]
    pub(super) arch: Architecture,
    /// The sizes to plug [default: 16G,64G,256G,512G,4T; if Linux is among the guests, 16G,64G,
    /// because Linux needs boot memory for descriptors]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse)]
    pub(super) sizes: Vec<Bytes>,
    /// The guests to measure, in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem")]
    pub(super) guests: Vec<Guest>,
    /// How plugged memory is brought online
    #[arg(long, value_enum, value_delimiter = ',', default_value = "online_movable")]
    pub(super) policies: Vec<Policy>,
    /// Boots for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,
    /// The amount of memory that the guest writes to before memory in use is unplugged; 0: no
    /// memory in use is unplugged
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    pub(super) touch: Bytes,
    /// What the guest does with memory in use when it is unplugged
    #[arg(long, value_enum, value_delimiter = ',', default_value = "checked,dropped,migrated")]
    pub(super) used: Vec<MemoryInUse>,
    /// The memory that is plugged into and unplugged from each guest before it is measured, because
    /// TCG is slow the first time that code runs; at most half of the measured size [default: 2G if
    /// Linux is among the guests; otherwise 0]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) warm_up: Option<Bytes>,
    /// The time limit of a step of Linux
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: u32,
    #[command(flatten)]
    pub(super) machine: Machine,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// The default sizes to plug.
const DEFAULT_SIZES: [Bytes; 5] =
    [Bytes::gib(16), Bytes::gib(64), Bytes::gib(256), Bytes::gib(512), Bytes::gib(4096)];
/// The number of these sizes that are the default with Linux. Linux can describe at most 64 GiB in
/// its default boot memory.
const DEFAULT_SIZES_WITH_LINUX: usize = 2;
/// The default warm-up with Linux.
const DEFAULT_WARM_UP: Bytes = Bytes::gib(2);

impl Args {
    /// Returns whether Linux is among the guests.
    pub(super) fn has_linux(&self) -> bool {
        self.guests.contains(&Guest::Linux)
    }

    /// Returns the sizes to plug.
    pub(super) fn sizes(&self) -> Vec<Bytes> {
        let count = if self.has_linux() { DEFAULT_SIZES_WITH_LINUX } else { DEFAULT_SIZES.len() };
        if self.sizes.is_empty() { DEFAULT_SIZES[..count].to_vec() } else { self.sizes.clone() }
    }

    /// Returns the warm-up before it is limited by the size to plug.
    pub(super) fn full_warm_up(&self) -> Bytes {
        self.warm_up.unwrap_or(if self.has_linux() { DEFAULT_WARM_UP } else { Bytes::ZERO })
    }

    /// Returns the warm-up of a guest into which `size` will be plugged. It is less than `size`, so
    /// that the guest's events about the warm-up differ from those about the measurement.
    pub(super) fn warm_up(&self, policy: Policy, size: Bytes) -> Bytes {
        let half = Bytes(size.0 / 2);
        match self.full_warm_up() {
            Bytes::ZERO => Bytes::ZERO,
            // With this policy a memory block of Linux is half of the size.
            _ if policy == Policy::Offline => half,
            full => full.min(half),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bench::parsed, linux};

    fn args(line: &str) -> Args {
        parsed(&line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn with_linux_sizes_are_limited_and_guests_are_warmed_up() {
        let with_linux = args("--guests hotmem,linux");
        assert_eq!(with_linux.sizes(), [Bytes::gib(16), Bytes::gib(64)]);
        let boot_memory = Bytes::gib(2);
        let mut sizes = with_linux.sizes().into_iter();
        assert!(sizes.all(|size| linux::Linux::min_boot_memory(size) <= boot_memory));
        assert_eq!(with_linux.warm_up(Policy::OnlineMovable, Bytes::gib(64)), Bytes::gib(2));
        let without_linux = args("");
        assert_eq!(without_linux.sizes().last(), Some(&Bytes::gib(4096)));
        assert_eq!(without_linux.warm_up(Policy::OnlineMovable, Bytes::gib(64)), Bytes::ZERO);
        assert_eq!(without_linux.warm_up(Policy::Offline, Bytes::gib(64)), Bytes::ZERO);
    }

    #[test]
    fn a_warm_up_is_less_than_the_measured_size() {
        let args = args("--guests hotmem,linux --warm-up 2G");
        for gib in [1, 2, 4] {
            let (size, half) = (Bytes::gib(gib), Bytes(Bytes::gib(gib).0 / 2));
            assert_eq!(args.warm_up(Policy::OnlineMovable, size), half);
        }
        assert_eq!(args.warm_up(Policy::Offline, Bytes::gib(64)), Bytes::gib(32));
    }
}
