//! What Xen makes of an update of one entry: cases that a model of Xen and Xen itself must agree
//! on. The guest runs them under the real one.

use crate::abi::{Command, Errno, MmuUpdate};
use crate::hypervisor::Partly;
use hotmem_addr::Pfn;
use hotmem_pgtable::{Entry, EntryAddr, Flags};

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    /// The flags of the entry before, with a frame of the domain's; none: an empty entry.
    pub before: Flags,
    /// The command.
    pub command: Command,
    /// The flags of the new entry, with `frame`.
    pub value: Flags,
    /// What the new entry points to.
    pub frame: Frame,
    /// The flags afterwards, or why Xen refuses (and leaves the entry as it was).
    pub after: Result<Flags, Errno>,
}

/// What a new entry points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame {
    /// Nothing: the address is 0.
    None,
    /// Ordinary memory of the domain's, the frame of the entry before.
    Same,
    /// Another frame of it.
    Other,
    /// A table of the domain's.
    Table,
}

const P: Flags = Flags::PRESENT;
const PU: Flags = P.union(Flags::USER);
const PUW: Flags = PU.union(Flags::WRITABLE);
const A: Flags = Flags::ACCESSED;
const AD: Flags = Flags::USED;
const NONE: Flags = Flags::empty();
use Command::{Normal, PreserveAd};

/// The cases.
pub const VECTORS: [Vector; 21] = [
    case(PUW, Normal, NONE, Frame::None, Ok(NONE)),
    case(PUW.union(AD), Normal, NONE, Frame::None, Ok(NONE)),
    case(PUW, PreserveAd, NONE, Frame::None, Ok(NONE)),
    case(PUW.union(A), PreserveAd, NONE, Frame::None, Ok(A)),
    case(PUW.union(AD), PreserveAd, NONE, Frame::None, Ok(AD)),
    case(PU.union(AD), PreserveAd, NONE, Frame::None, Ok(AD)),
    case(NONE, PreserveAd, NONE, Frame::None, Ok(NONE)),
    // A residue is an empty entry: it can be mapped over, and keeps nothing if that is not asked.
    case(AD, Normal, PUW, Frame::Same, Ok(PUW)),
    case(AD, Normal, NONE, Frame::None, Ok(NONE)),
    case(AD, PreserveAd, NONE, Frame::None, Ok(AD)),
    // Protection.
    case(PUW.union(AD), PreserveAd, PU, Frame::Same, Ok(PU.union(AD))),
    case(
        PUW.union(A),
        PreserveAd,
        PU.union(Flags::NO_EXECUTE),
        Frame::Same,
        Ok(PU.union(Flags::NO_EXECUTE).union(A)),
    ),
    case(PU, PreserveAd, PUW, Frame::Same, Ok(PUW)),
    case(PUW.union(AD), Normal, PU, Frame::Same, Ok(PU)),
    case(PUW.union(AD), Normal, PU.union(AD), Frame::Same, Ok(PU.union(AD))),
    // Another frame: bits are the entry's and not the page's.
    case(PUW.union(AD), PreserveAd, PUW, Frame::Other, Ok(PUW.union(AD))),
    case(PUW.union(AD), Normal, PUW, Frame::Other, Ok(PUW)),
    case(NONE, Normal, PUW.union(AD), Frame::Other, Ok(PUW.union(AD))),
    // A table may be seen and not written.
    case(NONE, Normal, PU, Frame::Table, Ok(PU)),
    case(NONE, Normal, PUW, Frame::Table, Err(Errno::EBUSY)),
    case(PUW.union(AD), PreserveAd, PUW, Frame::Table, Err(Errno::EBUSY)),
];

const fn case(
    before: Flags,
    command: Command,
    value: Flags,
    frame: Frame,
    after: Result<Flags, Errno>,
) -> Vector {
    Vector { before, command, value, frame, after }
}

/// A batch of three updates of empty entries, of which Xen refuses the second: the first is done,
/// the third is not.
#[must_use]
pub fn refused_second(at: [EntryAddr; 3], frames: Frames) -> [MmuUpdate; 3] {
    let [first, second, third] = at;
    let entry = |frame| Entry::new(frame, PUW);
    [
        MmuUpdate::new(first, Normal, entry(frames.same)),
        MmuUpdate::new(second, PreserveAd, entry(frames.table)),
        MmuUpdate::new(third, Normal, entry(frames.other)),
    ]
}

/// What comes of [`refused_second`].
pub const AFTER_FIRST: Partly = Partly { done: 1, errno: Errno::EBUSY };

/// What comes of an update of a frame that is not the domain's.
pub const NOT_OWNED: Partly = Partly { done: 0, errno: Errno::EINVAL };

/// What comes of unpinning a table that is not pinned.
pub const NOT_PINNED: Partly = Partly { done: 0, errno: Errno::EINVAL };

/// The frames that a run of the cases uses.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    /// Ordinary memory, which nothing maps writable but what the run does.
    pub same: Pfn,
    /// The same.
    pub other: Pfn,
    /// A table.
    pub table: Pfn,
}

impl Vector {
    /// The entry before.
    #[must_use]
    pub fn before(&self, frames: Frames) -> Entry {
        let present = self.before.contains(Flags::PRESENT);
        Entry::new(if present { frames.same } else { Pfn::ZERO }, self.before)
    }

    /// The update of the entry at this address.
    #[must_use]
    pub fn update(&self, at: EntryAddr, frames: Frames) -> MmuUpdate {
        MmuUpdate::new(at, self.command, Entry::new(self.target(frames), self.value))
    }

    /// The entry afterwards.
    #[must_use]
    pub fn after(&self, frames: Frames) -> Entry {
        match self.after {
            Ok(flags) => Entry::new(self.target(frames), flags),
            Err(_) => self.before(frames),
        }
    }

    fn target(&self, frames: Frames) -> Pfn {
        match self.frame {
            Frame::None => Pfn::ZERO,
            Frame::Same => frames.same,
            Frame::Other => frames.other,
            Frame::Table => frames.table,
        }
    }
}
