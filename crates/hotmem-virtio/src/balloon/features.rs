//! The feature bits that the driver understands, and which of them it agrees to.

use bitflags::bitflags;

bitflags! {
    /// Feature bits of a virtio-balloon device, those of its own (5.5.3) and those of every device
    /// (6) that matter here.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// The host is told before memory from the balloon is used. The driver always does.
        const MUST_TELL_HOST = 1 << 0;
        /// There is a queue for statistics.
        const STATS_VQ = 1 << 1;
        /// The guest may take memory from the balloon when it runs out of memory.
        const DEFLATE_ON_OOM = 1 << 2;
        /// There is a queue for free page hints.
        const FREE_PAGE_HINT = 1 << 3;
        /// The device is told what free memory is filled with.
        const PAGE_POISON = 1 << 4;
        /// There is a queue for free page reports.
        const PAGE_REPORTING = 1 << 5;
        /// The device follows version 1 of the specification or later.
        const VERSION_1 = 1 << 32;
    }
}

/// What the kernel does with memory that is freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poison {
    /// Nothing: what is allocated may hold anything.
    #[default]
    None,
    /// Every four bytes are written with this value, and found so when it is allocated. A kernel
    /// that zeroes what is freed says 0.
    Filled(u32),
}

impl Poison {
    /// Returns what to write to the device's `poison_val`, where that is negotiated.
    #[must_use]
    pub fn value(self) -> u32 {
        match self {
            Poison::None => 0,
            Poison::Filled(value) => value,
        }
    }
}

impl Features {
    /// Returns what to accept of what is `offered`, if the kernel wants `wanted` and does this with
    /// free memory.
    ///
    /// `MUST_TELL_HOST` and `VERSION_1` are always accepted. `ACCESS_PLATFORM` (6) never is: what
    /// the device is given are numbers and addresses of frames themselves, and nobody translates
    /// them for an IOMMU. A device that insists on it refuses the features. A kernel whose free
    /// memory has to keep a value must not have it taken by a device that does not know the value
    /// (5.5.3.1): without `PAGE_POISON` there are no reports and, for the same reason, no hints.
    #[must_use]
    pub fn accepted(offered: Features, wanted: Features, poison: Poison) -> Features {
        let always = Features::MUST_TELL_HOST | Features::VERSION_1;
        let accepted = offered & ((wanted - Features::PAGE_POISON) | always);
        match poison {
            Poison::None => accepted,
            Poison::Filled(_) if offered.contains(Features::PAGE_POISON) => {
                accepted | Features::PAGE_POISON
            }
            Poison::Filled(_) => accepted - Features::PAGE_REPORTING - Features::FREE_PAGE_HINT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_negotiated_only_by_kernels_that_have_any() {
        let all = Features::all();
        assert_eq!(Features::accepted(all, all, Poison::None), all - Features::PAGE_POISON);
        assert_eq!(Features::accepted(all, all, Poison::Filled(0)), all);
        assert_eq!(
            Features::accepted(all, Features::PAGE_REPORTING, Poison::None),
            Features::MUST_TELL_HOST | Features::VERSION_1 | Features::PAGE_REPORTING
        );
    }

    #[test]
    fn a_device_that_cannot_be_told_of_poison_gets_no_free_memory() {
        for bits in 0..64 {
            let offered = Features::from_bits_truncate(bits) | Features::VERSION_1;
            let accepted = Features::accepted(offered, Features::all(), Poison::Filled(0xaa));
            assert!(offered.contains(accepted));
            let free = Features::PAGE_REPORTING | Features::FREE_PAGE_HINT;
            let may = offered.contains(Features::PAGE_POISON);
            assert_eq!(accepted & free, if may { offered & free } else { Features::empty() });
            assert_eq!(accepted - free, offered - free);
        }
    }
}
