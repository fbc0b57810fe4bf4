//! Defines the kinds of memory that descriptors describe, and the number of frames in one page.

use core::fmt;
use hotmem_addr::{Bytes, geometry::FRAME_SHIFT};

/// The kind of device memory (Linux: `enum memory_type`). It determines the initial reference count
/// of descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Persistent memory that a file system uses.
    FileSystemDax,
    /// Persistent memory that user programs map as a device.
    DeviceDax,
    /// Device memory that the CPU cannot access.
    Private,
    /// Device memory that the CPU accesses coherently.
    Coherent,
    /// Device memory that other devices access (PCI peer-to-peer).
    PeerToPeer,
    /// Device memory of any other kind.
    Generic,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 6] = [
        Kind::FileSystemDax,
        Kind::DeviceDax,
        Kind::Private,
        Kind::Coherent,
        Kind::PeerToPeer,
        Kind::Generic,
    ];

    /// Returns the initial reference count of a single frame or of the head of a compound. The count
    /// of a tail is always 0. The returned count is 0 if the memory's driver allocates the frames, and
    /// sets the count to 1 then. It is 1 if the users of the mapped device own the frames from the
    /// start.
    #[must_use]
    pub const fn refcount(self) -> u32 {
        match self {
            Kind::FileSystemDax | Kind::Private | Kind::Coherent | Kind::PeerToPeer => 0,
            Kind::DeviceDax | Kind::Generic => 1,
        }
    }
}

/// The number of frames in one page, 2^order. The first frame is the page's *head*, and the other
/// frames are its *tails*. Pages are aligned to their size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Compound(u32);

impl Compound {
    /// Pages of one frame, which is neither a head nor a tail.
    pub const SINGLE: Compound = Compound(0);
    /// Pages of 2 MiB.
    pub const MIB_2: Compound = Compound(9);
    /// Pages of 1 GiB.
    pub const GIB_1: Compound = Compound(18);

    /// Returns the compound of 2^`order` frames, or `None` if it is larger than 1 GiB.
    #[must_use]
    pub const fn new(order: u32) -> Option<Compound> {
        if order <= Compound::GIB_1.0 { Some(Compound(order)) } else { None }
    }

    /// Returns the order: the base-2 logarithm of the number of frames.
    #[must_use]
    pub const fn order(self) -> u32 {
        self.0
    }

    /// Returns the number of frames: 1 to 262 144.
    #[must_use]
    pub const fn frames(self) -> u64 {
        1 << self.0
    }
}

impl fmt::Debug for Compound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "compound of {}", Bytes(self.frames() << FRAME_SHIFT))
    }
}
