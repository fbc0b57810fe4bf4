//! Defines ranges of virtual addresses.

use crate::format::Format;
use crate::space::Space;
use core::fmt;
use hotmem_addr::{Bytes, geometry::FRAME_SIZE};

/// A range of virtual addresses that consists of one or more pages of 4 KiB. The range may include
/// the last address of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VirtRange {
    start: u64,
    bytes: u64,
}

/// The reason why a start and a length do not make a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VirtRangeError {
    /// The start or the length is not a multiple of 4 KiB.
    Unaligned {
        /// The address of the first byte.
        start: u64,
        /// The length.
        len: Bytes,
    },
    /// The length is 0.
    Empty {
        /// The address of the first byte.
        start: u64,
    },
    /// The range passes the end of the address space.
    Wraps {
        /// The address of the first byte.
        start: u64,
        /// The length.
        len: Bytes,
    },
}

impl VirtRange {
    /// Returns the range of `len` bytes from `start`.
    ///
    /// # Errors
    /// [`VirtRangeError`] if the bytes are not whole pages, if there are none, or if they pass the end
    /// of the address space.
    pub const fn new(start: u64, len: Bytes) -> Result<VirtRange, VirtRangeError> {
        if !start.is_multiple_of(FRAME_SIZE) || !len.0.is_multiple_of(FRAME_SIZE) {
            return Err(VirtRangeError::Unaligned { start, len });
        }
        if len.0 == 0 {
            return Err(VirtRangeError::Empty { start });
        }
        if start.checked_add(len.0 - 1).is_none() {
            return Err(VirtRangeError::Wraps { start, len });
        }
        Ok(VirtRange { start, bytes: len.0 })
    }

    /// Returns the page of 4 KiB that contains an address.
    #[must_use]
    pub const fn page(address: u64) -> VirtRange {
        Self::around(address, Bytes(FRAME_SIZE))
    }

    /// Returns the range of `len` bytes from `start`. The caller ensures that the bytes are whole
    /// pages and not empty.
    pub(crate) const fn of_pages(start: u64, len: Bytes) -> VirtRange {
        debug_assert!(VirtRange::new(start, len).is_ok());
        VirtRange { start, bytes: len.0 }
    }

    /// Returns the range of the page that contains `address`. `page_size` is a power of two.
    pub(crate) const fn around(address: u64, page_size: Bytes) -> VirtRange {
        VirtRange { start: address & !(page_size.0 - 1), bytes: page_size.0 }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the address of the last byte.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.start + (self.bytes - 1)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Returns the part below `address` and the part from `address` on.
    #[must_use]
    pub fn split_at(self, address: u64) -> (Option<VirtRange>, Option<VirtRange>) {
        let below = address.saturating_sub(self.start).min(self.bytes);
        let part = |start, bytes| (bytes != 0).then_some(VirtRange { start, bytes });
        let above = self.start.wrapping_add(below);
        (part(self.start, below), part(above, self.bytes - below))
    }
}

/// A range of virtual addresses as offsets into the span of a root: the bits that select entries. An
/// address space of four levels has offsets from 0 to 2^48, one of five levels to 2^57. Because the offsets end there, and not at 2^64,
/// the exclusive end of the highest range can be represented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OffsetRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl OffsetRange {
    /// Returns the offsets of a range, or `None` if some addresses of the range are not canonical
    /// in this address space.
    pub(crate) fn of<F: Format>(range: VirtRange, space: Space<F>) -> Option<OffsetRange> {
        let space_size = space.root_level.table_span().0;
        let is_canonical = |address| space.address_at(address & (space_size - 1)) == address;
        let same_half = (range.start ^ range.last()) < space.user_bytes();
        let span = OffsetRange {
            start: range.start & (space_size - 1),
            end: (range.last() & (space_size - 1)) + 1,
        };
        (is_canonical(range.start) && is_canonical(range.last()) && same_half).then_some(span)
    }

    pub(crate) fn intersection(self, other: OffsetRange) -> OffsetRange {
        OffsetRange { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    pub(crate) fn covers(self, other: OffsetRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

impl fmt::Debug for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virt {:#x}..={:#x}", self.start, self.last())
    }
}

impl fmt::Display for VirtRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            VirtRangeError::Unaligned { start, len } => {
                write!(f, "{len} at {start:#x} are not whole pages of {FRAME_SIZE} bytes")
            }
            VirtRangeError::Empty { start } => write!(f, "the range at {start:#x} is empty"),
            VirtRangeError::Wraps { start, len } => {
                write!(f, "{len} at {start:#x} pass the end of the address space")
            }
        }
    }
}

impl core::error::Error for VirtRangeError {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::{Aarch64, Riscv64, X86_64};
    use crate::level::Level;
    use hotmem_addr::Pfn;

    fn space<F: Format>(root_level: Level) -> Space<F> {
        Space::new(Pfn::ZERO, root_level)
    }

    fn range(start: u64, len: u64) -> VirtRange {
        VirtRange::new(start, Bytes(len)).unwrap()
    }

    #[test]
    fn bad_starts_and_lengths_are_refused() {
        for (start, len) in [(1, 0x1000), (0x1000, 0xfff)] {
            let refused = VirtRange::new(start, Bytes(len));
            assert_eq!(refused, Err(VirtRangeError::Unaligned { start, len: Bytes(len) }));
        }
        let start = 0x1000u64.wrapping_neg();
        assert_eq!(VirtRange::new(start, Bytes::ZERO), Err(VirtRangeError::Empty { start }));
        let len = Bytes(0x2000);
        assert_eq!(VirtRange::new(start, len), Err(VirtRangeError::Wraps { start, len }));
        assert_eq!(range(start, 0x1000).last(), u64::MAX);
    }

    #[test]
    fn the_roots_level_decides_which_addresses_are_canonical() {
        let (four_levels, five_levels) = (space::<X86_64>(Level::L4), space::<X86_64>(Level::L5));
        let top = range(0u64.wrapping_sub(1 << 47), 1 << 47);
        let span = OffsetRange { start: 1 << 47, end: 1 << 48 };
        assert_eq!(OffsetRange::of(top, four_levels), Some(span));
        assert_eq!(four_levels.address_at(span.start), top.start());
        let beyond = range(1 << 47, 0x1000);
        assert_eq!(OffsetRange::of(beyond, four_levels), None);
        assert!(OffsetRange::of(beyond, five_levels).is_some());
        assert_eq!(OffsetRange::of(range((1 << 47) - 0x1000, 0x2000), four_levels), None);
        let around = range((1 << 47) - 0x1000, 0u64.wrapping_sub(1 << 48) + 0x2000);
        assert_eq!(
            OffsetRange::of(around, four_levels),
            None,
            "both ends are canonical, but the addresses between them are not"
        );
        let three_levels = space::<Riscv64>(Level::L3);
        assert!(OffsetRange::of(range(0, 1 << 38), three_levels).is_some());
        assert_eq!(OffsetRange::of(range(1 << 38, 0x1000), three_levels), None);
        let top = range(0u64.wrapping_sub(1 << 38), 1 << 38);
        let span = OffsetRange { start: 1 << 38, end: 1 << 39 };
        assert_eq!(OffsetRange::of(top, three_levels), Some(span));
    }

    #[test]
    fn a_root_of_one_half_translates_its_whole_span_and_no_address_of_the_other_half() {
        let lower = space::<Aarch64>(Level::L4);
        let upper = lower.in_half_of(u64::MAX);
        let whole = OffsetRange { start: 0, end: 1 << 48 };
        let (bottom, top) = (range(0, 1 << 48), range(0xffff << 48, 1 << 48));
        assert_eq!(OffsetRange::of(bottom, lower), Some(whole));
        assert_eq!(OffsetRange::of(top, upper), Some(whole));
        assert_eq!(OffsetRange::of(bottom, upper), None);
        assert_eq!(OffsetRange::of(top, lower), None);
        assert_eq!(OffsetRange::of(range(1 << 48, 0x1000), lower), None);
    }

    #[test]
    fn a_split_range_is_cut_at_the_address_or_stays_whole() {
        let whole = range(0x3000, 0x2000);
        assert_eq!(
            whole.split_at(0x4000),
            (Some(range(0x3000, 0x1000)), Some(range(0x4000, 0x1000)))
        );
        assert_eq!(whole.split_at(0), (None, Some(whole)));
        assert_eq!(whole.split_at(u64::MAX), (Some(whole), None));
    }
}
