//! Defines the feature bits that the driver supports, and chooses those to accept.

use bitflags::bitflags;
use hotmem::{Contents, Frames};

bitflags! {
    /// Feature bits: those of virtio-balloon devices (5.5.3), and of the bits that all types of
    /// devices share (6), those that the driver uses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// The driver must notify the host before memory from the balloon is used. The driver
        /// always notifies the host.
        const MUST_TELL_HOST = 1 << 0;
        /// The device has a queue for statistics.
        const STATS_VQ = 1 << 1;
        /// The guest may take memory from the balloon when it runs out of memory.
        const DEFLATE_ON_OOM = 1 << 2;
        /// The device has a queue for free page hints.
        const FREE_PAGE_HINT = 1 << 3;
        /// The device knows the value that free memory is filled with.
        const PAGE_POISON = 1 << 4;
        /// The device has a queue for free page reports.
        const PAGE_REPORTING = 1 << 5;
        /// The device says how much of a report it has initialised, by the number of bytes that it has
        /// used: with the poison value if `PAGE_POISON` is negotiated, otherwise with zeroes. Proposed
        /// for the specification as `VIRTIO_BALLOON_F_DEVICE_INIT_REPORTED`. A kernel wants it only if it
        /// trusts the host.
        const DEVICE_INIT_REPORTED = 1 << 6;
        /// The device says which frames of an inflate request it has initialised, by a bitmap that
        /// it writes to the request: with the poison value if `PAGE_POISON` is negotiated,
        /// otherwise with zeroes. They need not be initialised when they are deflated. Proposed for
        /// the specification as `VIRTIO_BALLOON_F_DEVICE_INIT_ON_INFLATE`. A kernel wants it only
        /// if it trusts the host.
        const DEVICE_INIT_ON_INFLATE = 1 << 7;
        /// The device follows version 1 of the specification or later.
        const VERSION_1 = 1 << 32;
        /// The device needs the barriers for a device of the platform, not only those for one that
        /// is simulated. The driver always uses them.
        const ORDER_PLATFORM = 1 << 36;
    }
}

/// VIRTIO's page poison: the value that the kernel writes to memory that is freed. Poisoned frames
/// are something else: they have a hardware memory error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poison {
    /// The kernel writes nothing: allocated memory may have any contents.
    #[default]
    None,
    /// The kernel writes this value to every four bytes, and the memory must still hold it when it
    /// is allocated. For a kernel that zeroes freed memory the value is 0.
    Filled(u32),
}

impl Poison {
    /// Returns the value for the device's field `poison_val`. The field exists if `PAGE_POISON` is
    /// negotiated.
    #[must_use]
    pub fn value(self) -> u32 {
        match self {
            Poison::None => 0,
            Poison::Filled(value) => value,
        }
    }

    /// Returns what free memory contains as far as the device knows, if these features are
    /// negotiated.
    pub(super) fn contents(self, features: Features) -> Contents {
        match self {
            Poison::Filled(value) if features.contains(Features::PAGE_POISON) => {
                Contents::Filled(value)
            }
            _ => Contents::Undefined,
        }
    }
}

impl Features {
    /// The features by which a device says what memory contains. They are drafts.
    pub const ABOUT_CONTENTS: Features =
        Features::DEVICE_INIT_REPORTED.union(Features::DEVICE_INIT_ON_INFLATE);

    /// Returns those of these features that a kernel can use whose memory is that of `frames`: the
    /// features by which the device says which memory it has initialised only if the instance
    /// [keeps zero marks](Frames::keep_zero_marks). So a kernel that does not trust its host wants
    /// none of them.
    #[must_use]
    pub fn usable_with<P>(self, frames: &Frames<P>) -> Features {
        match frames.keeps_zero_marks() {
            true => self,
            false => self - Features::ABOUT_CONTENTS,
        }
    }

    /// Returns the features of `offered` to accept. `wanted` are the features that the kernel can
    /// use, and `poison` is the value that it writes to free memory.
    ///
    /// `MUST_TELL_HOST`, `VERSION_1` and `ORDER_PLATFORM` are accepted whenever the device offers
    /// them.
    /// `ACCESS_PLATFORM` (6) is never accepted, because requests contain the numbers and addresses
    /// of frames, and nothing translates them for an IOMMU. A device that requires
    /// `ACCESS_PLATFORM` refuses the accepted features, so the driver cannot use it.
    ///
    /// If free memory must keep a value, a device that does not know the value must not take the
    /// memory (5.5.3.1). So neither reports nor hints are accepted for such a kernel if the device
    /// does not offer `PAGE_POISON`.
    #[must_use]
    pub fn accepted(offered: Features, wanted: Features, poison: Poison) -> Features {
        let always = Features::MUST_TELL_HOST | Features::VERSION_1 | Features::ORDER_PLATFORM;
        let accepted = offered & ((wanted - Features::PAGE_POISON) | always);
        let accepted = match poison {
            Poison::None => accepted,
            Poison::Filled(_) if offered.contains(Features::PAGE_POISON) => {
                accepted | Features::PAGE_POISON
            }
            Poison::Filled(_) => accepted - Features::PAGE_REPORTING - Features::FREE_PAGE_HINT,
        };
        match accepted.contains(Features::PAGE_REPORTING) {
            true => accepted,
            false => accepted - Features::DEVICE_INIT_REPORTED,
        }
    }

    /// Returns these features, and each feature of `offered` whose queue the specification lists before
    /// a queue of one of them.
    ///
    /// Some devices number their queues by the offered features, others by the accepted ones, and a
    /// driver cannot find out by which. If a driver accepts the result, both have the same numbers. A
    /// device may then ask for statistics and hints that the kernel has not asked for: see
    /// [`BalloonOptions::features`](super::BalloonOptions::features).
    #[must_use]
    pub fn with_earlier_queues(self, offered: Features) -> Features {
        let statistics = offered & Features::STATS_VQ;
        let hints = offered & Features::FREE_PAGE_HINT;
        match self {
            own if own.contains(Features::PAGE_REPORTING) => own | statistics | hints,
            own if own.contains(Features::FREE_PAGE_HINT) => own | statistics,
            own => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::OneCpu;

    #[test]
    fn the_device_is_asked_what_memory_contains_only_if_the_kernel_keeps_zero_marks() {
        let frames = Frames::new(OneCpu);
        let init = Features::DEVICE_INIT_REPORTED | Features::DEVICE_INIT_ON_INFLATE;
        assert_eq!(Features::all().usable_with(&frames), Features::all() - init);
        // SAFETY: the instance has no memory.
        #[allow(unsafe_code)]
        unsafe {
            frames.keep_zero_marks();
        }
        assert_eq!(Features::all().usable_with(&frames), Features::all());
        // The kernel fills all free memory itself.
        frames.set_contents(Contents::Filled(0)).unwrap();
        assert_eq!(Features::all().usable_with(&frames), Features::all() - init);
    }

    #[test]
    fn poison_is_negotiated_only_by_kernels_that_use_it() {
        let all = Features::all();
        assert_eq!(Features::accepted(all, all, Poison::None), all - Features::PAGE_POISON);
        assert_eq!(Features::accepted(all, all, Poison::Filled(0)), all);
        assert_eq!(
            Features::accepted(all, Features::PAGE_REPORTING, Poison::None),
            Features::MUST_TELL_HOST
                | Features::VERSION_1
                | Features::ORDER_PLATFORM
                | Features::PAGE_REPORTING
        );
    }

    #[test]
    fn a_device_that_does_not_know_the_poison_gets_no_free_memory() {
        for bits in 0..256 {
            let offered = Features::from_bits_truncate(bits) | Features::VERSION_1;
            let accepted = Features::accepted(offered, Features::all(), Poison::Filled(0xaa));
            assert!(offered.contains(accepted));
            let free = Features::PAGE_REPORTING
                | Features::FREE_PAGE_HINT
                | Features::DEVICE_INIT_REPORTED;
            let has_page_poison = offered.contains(Features::PAGE_POISON);
            assert_eq!(
                accepted & (free - Features::DEVICE_INIT_REPORTED),
                if has_page_poison {
                    offered & (free - Features::DEVICE_INIT_REPORTED)
                } else {
                    Features::empty()
                }
            );
            assert!(
                !accepted.contains(Features::DEVICE_INIT_REPORTED)
                    || accepted.contains(Features::PAGE_REPORTING)
            );
            assert_eq!(accepted - free, offered - free);
        }
    }
}
