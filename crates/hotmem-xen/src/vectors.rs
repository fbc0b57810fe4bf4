//! Defines test vectors: updates of one entry, and their effects. The tests check the vectors with
//! the model of Xen. The guest checks them with Xen itself.

use crate::abi::{Command, Errno, MmuUpdate};
use crate::hypervisor::BatchRefused;
use hotmem_addr::Pfn;
use hotmem_pgtable::EntryAddr;
use hotmem_pgtable::x86_64::{Entry, Flags};

/// One test vector.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    /// The flags of the old entry, which points to a frame of the domain. If there are no flags,
    /// the entry is empty.
    pub old_flags: Flags,
    /// The command.
    pub command: Command,
    /// The flags of the new entry.
    pub value: Flags,
    /// The frame that the new entry points to.
    pub frame: Frame,
    /// The flags of the entry after the update. If Xen refuses the update and so leaves the entry
    /// unchanged, the error.
    pub new_flags: Result<Flags, Errno>,
}

/// The frame that a new entry points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame {
    /// No frame: the address is 0.
    None,
    /// Ordinary memory of the domain: the frame of the old entry.
    Same,
    /// Another frame of ordinary memory.
    Other,
    /// A table of the domain.
    Table,
}

// Flags by their initials: Present, User, Writable, Accessed, Dirty.
const PU: Flags = Flags::PRESENT.union(Flags::USER);
const PUW: Flags = PU.union(Flags::WRITABLE);
const A: Flags = Flags::ACCESSED;
const AD: Flags = Flags::ACCESSED_DIRTY;
const NONE: Flags = Flags::empty();
use Command::{Normal, PreserveAd};

/// All test vectors.
pub const VECTORS: [Vector; 21] = [
    case(PUW, Normal, NONE, Frame::None, Ok(NONE)),
    case(PUW.union(AD), Normal, NONE, Frame::None, Ok(NONE)),
    case(PUW, PreserveAd, NONE, Frame::None, Ok(NONE)),
    case(PUW.union(A), PreserveAd, NONE, Frame::None, Ok(A)),
    case(PUW.union(AD), PreserveAd, NONE, Frame::None, Ok(AD)),
    case(PU.union(AD), PreserveAd, NONE, Frame::None, Ok(AD)),
    case(NONE, PreserveAd, NONE, Frame::None, Ok(NONE)),
    // An entry with only Accessed and Dirty is empty: an update may store a page in it, and a normal
    // update does not keep the two bits.
    case(AD, Normal, PUW, Frame::Same, Ok(PUW)),
    case(AD, Normal, NONE, Frame::None, Ok(NONE)),
    case(AD, PreserveAd, NONE, Frame::None, Ok(AD)),
    // Changes of protection.
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
    // The two bits stay in the entry even if the frame changes, although they are those of the old
    // page.
    case(PUW.union(AD), PreserveAd, PUW, Frame::Other, Ok(PUW.union(AD))),
    case(PUW.union(AD), Normal, PUW, Frame::Other, Ok(PUW)),
    case(NONE, Normal, PUW.union(AD), Frame::Other, Ok(PUW.union(AD))),
    // A table may be mapped read-only, but not writable.
    case(NONE, Normal, PU, Frame::Table, Ok(PU)),
    case(NONE, Normal, PUW, Frame::Table, Err(Errno::EBUSY)),
    case(PUW.union(AD), PreserveAd, PUW, Frame::Table, Err(Errno::EBUSY)),
];

const fn case(
    old_flags: Flags,
    command: Command,
    value: Flags,
    frame: Frame,
    new_flags: Result<Flags, Errno>,
) -> Vector {
    Vector { old_flags, command, value, frame, new_flags }
}

/// Returns a batch of three updates of empty entries. Xen makes the first update and refuses the
/// second, so it does not make the third.
#[must_use]
pub fn refused_second(addrs: [EntryAddr; 3], frames: Frames) -> [MmuUpdate; 3] {
    let [first, second, third] = addrs;
    let entry = |frame| Entry::new(frame, PUW);
    [
        MmuUpdate::new(first, Normal, entry(frames.same_frame)),
        MmuUpdate::new(second, PreserveAd, entry(frames.table)),
        MmuUpdate::new(third, Normal, entry(frames.other_frame)),
    ]
}

/// The result of the batch of [`refused_second`].
pub const REFUSED_AT_SECOND: BatchRefused = BatchRefused { entries_done: 1, errno: Errno::EBUSY };

/// The result of an update of a table that another domain owns.
pub const NOT_OWNED: BatchRefused = BatchRefused { entries_done: 0, errno: Errno::EINVAL };

/// The result of unpinning a table that is not pinned.
pub const NOT_PINNED: BatchRefused = BatchRefused { entries_done: 0, errno: Errno::EINVAL };

/// The frames that a run of the vectors uses.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    /// Ordinary memory that only the entry under test maps writable.
    pub same_frame: Pfn,
    /// Another frame of ordinary memory that only the entry under test maps writable.
    pub other_frame: Pfn,
    /// A table.
    pub table: Pfn,
}

impl Vector {
    /// Returns the entry before the update.
    #[must_use]
    pub fn before(&self, frames: Frames) -> Entry {
        let present = self.old_flags.contains(Flags::PRESENT);
        Entry::new(if present { frames.same_frame } else { Pfn::ZERO }, self.old_flags)
    }

    /// Returns the update of the entry at this address.
    #[must_use]
    pub fn update(&self, addr: EntryAddr, frames: Frames) -> MmuUpdate {
        MmuUpdate::new(addr, self.command, Entry::new(self.new_frame(frames), self.value))
    }

    /// Returns the entry after the update.
    #[must_use]
    pub fn after(&self, frames: Frames) -> Entry {
        match self.new_flags {
            Ok(flags) => Entry::new(self.new_frame(frames), flags),
            Err(_) => self.before(frames),
        }
    }

    fn new_frame(&self, frames: Frames) -> Pfn {
        match self.frame {
            Frame::None => Pfn::ZERO,
            Frame::Same => frames.same_frame,
            Frame::Other => frames.other_frame,
            Frame::Table => frames.table,
        }
    }
}
