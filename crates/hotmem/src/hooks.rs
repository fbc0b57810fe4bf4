//! What a kernel brings: page tables, and moving its own data.
//!
//! Everything here is safe to implement: a wrong answer can make memory unusable or lose the
//! kernel's own data, but never break the engine. All of it is called by requests, from whatever
//! context the kernel polls them in, with no lock of the engine held; the frame allocator may be
//! used from within.

use crate::addr::{Pfn, PfnRange};
use crate::frames::FreeErrorKind;
use crate::origin::MachineId;
use crate::region::{NodeId, Zone};
use core::fmt;

/// A kernel's part in adding and removing memory. The defaults suit a machine whose memory is
/// always mapped and never moved.
///
/// ```
/// use hotmem::{Bytes, Hooks, Migration, Pfn, PfnRange, Spare};
/// use std::collections::BTreeMap;
///
/// /// Maps memory in pages of 2 MiB: a table for each GiB.
/// #[derive(Default)]
/// struct Kernel {
///     tables: BTreeMap<Pfn, Pfn>,
/// }
///
/// const GIB: u64 = Bytes::gib(1).frames();
///
/// impl Hooks for Kernel {
///     fn tables_needed(&self, range: PfnRange) -> u64 {
///         range.chunks(GIB).count() as u64
///     }
///
///     fn map(&mut self, range: PfnRange, spare: &mut Spare) {
///         for part in range.chunks(GIB) {
///             let table = self.tables.entry(part.start().align_down(GIB));
///             table.or_insert_with(|| spare.take().expect("as asked for"));
///             // Its entries for `part` are written.
///         }
///     }
///
///     fn unmap(&mut self, range: PfnRange) {
///         // The entries are cleared, and every TLB flushed.
///     }
///
///     fn remap(&mut self, range: PfnRange) {
///         // The entries are written again.
///     }
///
///     fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
///         for whole in range.chunks(GIB).filter(|part| part.frames() == GIB) {
///             self.tables.remove(&whole.start()).into_iter().for_each(&mut *free);
///         }
///     }
///
///     fn migrate(&mut self, used: PfnRange) -> Migration {
///         // What lies there is copied elsewhere, mapped there, and `used` is freed.
///         Migration::Moved
///     }
/// }
///
/// let range = PfnRange::from_bytes(512 << 20, Bytes::gib(2))?;
/// assert_eq!(Kernel::default().tables_needed(range), 3);
/// # Ok::<(), hotmem::AddrError>(())
/// ```
pub trait Hooks {
    /// How many frames of page tables mapping `range` will need at most.
    fn tables_needed(&self, range: PfnRange) -> u64 {
        let _ = range;
        0
    }

    /// How many frames describing `range` as RAM will take at most, with page tables, and without
    /// what the kernel [keeps](Self::keeps) of the memory itself.
    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        let _ = range;
        0
    }

    /// How many pageblocks at the start of `section`, which comes as a whole, hold the section's own
    /// descriptors: one for 64 bytes a frame. So memory that comes needs no free memory to be
    /// described in. They come online with the section, but are nobody's to allocate or migrate;
    /// they do not hinder its removal, and go with the last of it.
    fn keeps(&self, section: PfnRange) -> u64 {
        let _ = section;
        0
    }

    /// Makes `range` reachable in the direct map, with page tables from `spare`. Cannot fail:
    /// `spare` holds what [`tables_needed`](Self::tables_needed) asked for; what is not taken goes
    /// back by itself.
    fn map(&mut self, range: PfnRange, spare: &mut Spare) {
        let _ = (range, spare);
    }

    /// Describes `range`, which is mapped, as RAM: in what the kernel [keeps](Self::keeps) of it,
    /// and in frames from `spare`, which holds what
    /// [`descriptors_needed`](Self::descriptors_needed) asked for, so that this cannot fail.
    fn describe(&mut self, range: PfnRange, spare: &mut Spare) {
        let _ = (range, spare);
    }

    /// `range` is RAM no more: gives the frames with its descriptors, and page tables of theirs that
    /// map nothing else, to `free`.
    fn undescribe(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let _ = (range, free);
    }

    /// Takes `range` out of the direct map, and out of the map of descriptors where the kernel
    /// [keeps](Self::keeps) it for them, and flushes it from every TLB. The page tables stay, so
    /// that [`remap`](Self::remap) cannot fail.
    fn unmap(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Undoes [`unmap`](Self::unmap): the device did not take the memory.
    fn remap(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// The memory is gone for good: gives the page tables that mapped nothing else to `free`.
    fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let _ = (range, free);
    }

    /// Reports a frame that [`undescribe`](Self::undescribe) or
    /// [`release_tables`](Self::release_tables) gave to `free` and that was not allocated: the first
    /// such frame of that call. It was left as it is, and the memory is removed all the same. The
    /// kernel has a fault: it gave a frame back twice, or one that it never had.
    fn frame_refused(&mut self, frame: Pfn, why: FreeErrorKind) {
        let _ = (frame, why);
    }

    /// `range` is about to come online in `zone`.
    ///
    /// # Errors
    /// A veto refuses it; [`online_cancelled`](Self::online_cancelled) is not called then.
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        let _ = (range, zone);
        Ok(())
    }

    /// `range` stays offline after all. What is cancelled is exactly what agreed.
    fn online_cancelled(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// `range` is online. Nobody was asked if it is memory that could not leave, and came back.
    fn onlined(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// A node has its first memory.
    fn node_appeared(&mut self, node: NodeId) {
        let _ = node;
    }

    /// A node has lost its last memory.
    fn node_vanished(&mut self, node: NodeId) {
        let _ = node;
    }

    /// `range` is isolated and about to go offline.
    ///
    /// # Errors
    /// A veto refuses it; [`offline_cancelled`](Self::offline_cancelled) is not called then.
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        let _ = range;
        Ok(())
    }

    /// `range` stays online after all. What is cancelled is exactly what agreed, though several
    /// ranges may be cancelled as one.
    fn offline_cancelled(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// `range` is offline.
    fn offlined(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Frees what the kernel can do without in `within`, a pageblock of which something is in use:
    /// it is to go offline, and there is no room elsewhere for all that lives there. To be done
    /// without allocating. Nothing is isolated for this, so that what else lives there stays in use
    /// if there is still no room; otherwise it is [migrated](Self::migrate) then. A kernel whose
    /// caches can only be dropped here, and never moved, loses no more than is missing.
    fn discard(&mut self, within: PfnRange) {
        let _ = within;
    }

    /// Moves what the kernel has in these frames somewhere else and frees them. `used` is a run of
    /// allocated frames within one pageblock, which may belong to several allocations. The counters
    /// decide whether it worked; the answer only says what to do next. What belongs where it goes is
    /// best asked for as [leaving](crate::Want::leaving) [its node](crate::Frames::node_of), more of
    /// which may be about to go.
    fn migrate(&mut self, used: PfnRange) -> Migration {
        let _ = used;
        Migration::Pinned("this kernel does not migrate")
    }
}

/// A machine whose memory is always mapped and never moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// A veto against going offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Veto(pub &'static str);

/// What became of frames that were to be migrated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Migration {
    /// Moved and freed, all or a part: look again.
    Moved,
    /// Freed by their owner meanwhile.
    Gone,
    /// Not now; it may work later.
    Retry,
    /// Never, and why.
    Pinned(&'static str),
}

/// Frames for page tables and descriptors, taken before the step that must not fail.
#[derive(Debug)]
pub struct Spare {
    left: PfnRange,
    machine: MachineId,
}

impl Spare {
    pub(crate) const fn new(frames: PfnRange, machine: MachineId) -> Spare {
        Spare { left: frames, machine }
    }

    /// Whose frames these are.
    pub(crate) const fn machine(&self) -> MachineId {
        self.machine
    }

    pub(crate) const fn left(&self) -> PfnRange {
        self.left
    }

    /// The next frame; its contents are undefined.
    pub fn take(&mut self) -> Option<Pfn> {
        let frame = self.left.start();
        let (taken, left) = self.left.split_at(frame.checked_add(1)?);
        self.left = left;
        if taken.is_empty() { None } else { Some(frame) }
    }
}

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
