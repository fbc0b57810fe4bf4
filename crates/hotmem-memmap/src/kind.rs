//! What is described: the kind of memory, and how many frames make one page.

use core::fmt;
use hotmem_addr::{Bytes, geometry::FRAME_SHIFT};

/// What a range of device memory is for. It decides on the reference count that descriptors start
/// with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Persistent memory under a file system.
    FileSystemDax,
    /// Persistent memory as a device that is mapped.
    DeviceDax,
    /// Memory of a device that the CPU cannot reach.
    Private,
    /// Memory of a device that the CPU reaches coherently.
    Coherent,
    /// Memory of a device that other devices reach.
    PeerToPeer,
    /// Anything else.
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

    /// The reference count of a frame that nobody uses yet, heads of compounds included; tails
    /// always have 0. It is 0 where the memory's driver hands frames out, which sets it to 1 then;
    /// 1 where frames are in the hands of whoever maps the device from the start.
    #[must_use]
    pub const fn refcount(self) -> u32 {
        match self {
            Kind::FileSystemDax | Kind::Private | Kind::Coherent | Kind::PeerToPeer => 0,
            Kind::DeviceDax | Kind::Generic => 1,
        }
    }
}

/// How many frames make one page: 2^order, the first its *head*, the others its *tails*. Pages
/// are aligned to their size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Compound(u32);

impl Compound {
    /// Frames by themselves, neither head nor tail.
    pub const SINGLE: Compound = Compound(0);
    /// Pages of 2 MiB.
    pub const MIB_2: Compound = Compound(9);
    /// Pages of 1 GiB.
    pub const GIB_1: Compound = Compound(18);

    /// 2^`order` frames; `None` above 1 GiB.
    #[must_use]
    pub const fn new(order: u32) -> Option<Compound> {
        if order <= Compound::GIB_1.0 { Some(Compound(order)) } else { None }
    }

    /// The power of two.
    #[must_use]
    pub const fn order(self) -> u32 {
        self.0
    }

    /// How many frames: 1 to 262 144.
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
