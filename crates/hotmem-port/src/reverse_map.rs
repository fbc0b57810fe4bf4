//! Records the owner of each frame in one 64-bit word, for kernels that have no reverse map.
//!
//! [`Hooks::migrate`](hotmem::Hooks::migrate) gets frames whose contents must move, and the kernel
//! must find the owners of these frames. A kernel without another way to find them records the owner
//! of every movable frame in a [`ReverseMap`] when it allocates the frame. The owner is a number that
//! leads to the reference that must change, such as a virtual page number.
//!
//! The words lie in tables of one frame each, with levels as in page tables. The map allocates a
//! table when it is first needed: one for each 2 MiB in which a frame has an owner, and one above it
//! for each 1 GiB. So the tables take 0.2 % of the memory whose frames have owners. If boot memory
//! has a free frame, the map uses that frame, because boot memory is never removed. So the map
//! itself does not prevent a removal as long as boot memory has free frames.

use crate::linear::LinearMap;
use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};
use hotmem::geometry::FRAME_SIZE;
use hotmem::{AllocError, AllocRequest, BadRequest, Frames, Pfn, PfnRange, Platform};
use hotmem_invariant::OrRecordViolation;

/// The owner of a frame: a number that the kernel chooses. It is never 0, because the word of a frame
/// without an owner is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct FrameOwner(pub NonZeroU64);

/// The map from an instance's frames to their owners.
///
/// ```
/// # use hotmem::{AlwaysMapped, BootRange, Bytes, Frames, Hooks, Hotplug, Migration};
/// # use hotmem::{OneCpu, PfnRange, AllocRequest};
/// # use hotmem_port::{LinearMap, FrameOwner, ReverseMap};
/// # use std::num::NonZeroU64;
/// # static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
/// struct Kernel {
///     reverse_map: ReverseMap<'static, OneCpu>,
/// }
///
/// # impl Kernel { fn moves(&self, _: FrameOwner, _: PfnRange) {} }
/// impl Hooks for Kernel {
///     fn migrate(&mut self, used: PfnRange) -> Migration {
///         for (part, owner) in self.reverse_map.runs(used) {
///             let Some(owner) = owner else { return Migration::Unmovable("no owner") };
///             self.moves(owner, part);
///         }
///         Migration::Moved
///     }
/// }
/// # let layout = std::alloc::Layout::from_size_align(4 << 20, 4096)?;
/// # // SAFETY: the size of the layout is not 0.
/// # let base = unsafe { std::alloc::alloc_zeroed(layout) };
/// # let ram = [BootRange { start: 0, len: Bytes::mib(4) }];
/// # // SAFETY: all of `ram` was just allocated at `base`, and nothing else uses it.
/// # let _hotplug = unsafe {
/// #     let mapping = AlwaysMapped::new(base, PfnRange::from_bytes(0, Bytes::mib(4))?);
/// #     Hotplug::bootstrap(&FRAMES, mapping, &ram)?
/// # };
/// // SAFETY: all memory of the machine is mapped at `base`.
/// let reverse_map = unsafe { ReverseMap::new(&FRAMES, LinearMap::new(base)) };
/// let page = FRAMES.alloc(AllocRequest::frames(1).movable())?;
/// let owner = FrameOwner(NonZeroU64::new(0x7f00_1234).ok_or("0")?);
/// reverse_map.set(page.range(), owner)?;
/// assert_eq!(reverse_map.owner(page.range().start()), Some(owner));
/// # Kernel { reverse_map }.migrate(page.range());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReverseMap<'f, P: Platform> {
    frames: &'f Frames<P>,
    linear_map: LinearMap,
    root: [AtomicU64; ROOT_ENTRIES],
}

/// The number of words in a table.
const TABLE_WORDS: usize = 1 << INDEX_BITS;
/// The number of bits of a frame number that select a word of one table.
const INDEX_BITS: u32 = 9;
/// The number of levels of tables below the root.
const LEVELS: u32 = 4;
/// The number of entries of the root, which the highest bits of a frame number index.
const ROOT_ENTRIES: usize = ((Pfn::LIMIT.number() - 1) >> (LEVELS * INDEX_BITS)) as usize + 1;
/// The entry that leads to no table. Any other entry is one more than the number of the frame that
/// holds the table.
const NO_TABLE: u64 = 0;

const _: () = assert!((TABLE_WORDS * size_of::<AtomicU64>()) as u64 == FRAME_SIZE);

/// A table fills a frame. On level 0, each word of the table is the owner of a frame. On the other
/// levels, each word is an entry that leads to a table of the next lower level.
type Table = [AtomicU64; TABLE_WORDS];

/// Returns the index of the word for `pfn` in a table of `level`, or in the root for level `LEVELS`.
#[allow(clippy::cast_possible_truncation, reason = "an index has 9 bits, or 4 in the root")]
const fn index(pfn: Pfn, level: u32) -> usize {
    let index = (pfn.number() >> (level * INDEX_BITS)) as usize;
    if level < LEVELS { index % TABLE_WORDS } else { index }
}

impl<'f, P: Platform> ReverseMap<'f, P> {
    /// Creates a map in which no frame has an owner.
    ///
    /// # Safety
    /// `linear_map` maps all kernel memory of the machine as long as that memory is allocated.
    #[must_use]
    pub const unsafe fn new(frames: &'f Frames<P>, linear_map: LinearMap) -> ReverseMap<'f, P> {
        ReverseMap { frames, linear_map, root: [const { AtomicU64::new(NO_TABLE) }; ROOT_ENTRIES] }
    }

    /// Makes `owner` the owner of all of `range`. The code that allocated `range` calls this.
    ///
    /// Context: any. Cost: a store for each frame, and for the first owner in 2 MiB the allocation
    /// of a frame.
    ///
    /// # Errors
    /// [`AllocError`] if no memory is free for a table, or if `range` ends beyond the highest possible
    /// frame. Then no frame of `range` has an owner.
    pub fn set(&self, range: PfnRange, owner: FrameOwner) -> Result<(), AllocError> {
        for part in range.chunks(TABLE_WORDS as u64) {
            match self.make_table(part.start()) {
                Ok(table) => write_owners(table, part, owner.0.get()),
                Err(error) => {
                    self.clear(range);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Clears the owner of all of `range`. The code that frees `range` calls this first.
    ///
    /// Context: any. Cost: a store for each frame.
    pub fn clear(&self, range: PfnRange) {
        for part in range.chunks(TABLE_WORDS as u64) {
            if let Some(table) = self.table(part.start()) {
                write_owners(table, part, 0);
            }
        }
    }

    /// Returns the owner of a frame, or `None` if the frame has no owner.
    ///
    /// Context: any. Cost: five loads.
    #[must_use]
    pub fn owner(&self, frame: Pfn) -> Option<FrameOwner> {
        // Acquire pairs with Release in `write`: a reader that loads an owner sees everything that
        // happened before `set` stored that owner.
        NonZeroU64::new(self.table(frame)?[index(frame, 0)].load(Ordering::Acquire)).map(FrameOwner)
    }

    /// Iterates over `range` as runs of frames that have the same owner, or none.
    pub fn runs(&self, range: PfnRange) -> impl Iterator<Item = (PfnRange, Option<FrameOwner>)> {
        let mut remaining = range;
        core::iter::from_fn(move || {
            if remaining.is_empty() {
                return None;
            }
            let owner = self.owner(remaining.start());
            let mut frames = remaining.chunks(1);
            let next_run = frames.find(|frame| self.owner(frame.start()) != owner);
            let (run, after_run) =
                remaining.split_at(next_run.map_or(remaining.end(), PfnRange::start));
            remaining = after_run;
            Some((run, owner))
        })
    }

    /// Clears the owners of `range`, which is no longer present, and frees the tables in which no
    /// frame has an owner any more.
    ///
    /// Context: any in which the kernel has exclusive access to the map. Cost: proportional to the
    /// number of tables for `range`.
    pub fn free_tables(&mut self, range: PfnRange) {
        for (entry, covered) in
            self.root.iter().zip(PfnRange::ALL.chunks(1 << (LEVELS * INDEX_BITS)))
        {
            self.free_tables_below(entry, LEVELS - 1, covered, range);
        }
    }

    /// Clears the owners of `range` in the table of `level` to which `entry` leads, and in the tables
    /// below it. Frees each of these tables that is then empty. The table has the owners of `covered`.
    fn free_tables_below(&self, entry: &AtomicU64, level: u32, covered: PfnRange, range: PfnRange) {
        let part = covered.intersection(range);
        let Some(frame) = table_frame(entry).filter(|_| !part.is_empty()) else { return };
        let table = self.table_in(frame);
        if level == 0 {
            write_owners(table, part, 0);
        } else {
            for (entry, covered) in table.iter().zip(covered.chunks(1 << (level * INDEX_BITS))) {
                self.free_tables_below(entry, level - 1, covered, range);
            }
        }
        // Relaxed suffices for this load and the store, because `free_tables` and `drop` have `&mut
        // self`.
        if table.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
            entry.store(NO_TABLE, Ordering::Relaxed);
            self.free(frame);
        }
    }

    /// Returns the table that has the owner of `frame`, or `None` if that table does not exist.
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let mut entry = self.root.get(index(frame, LEVELS))?;
        for level in (1..LEVELS).rev() {
            entry = &self.table_in(table_frame(entry)?)[index(frame, level)];
        }
        Some(self.table_in(table_frame(entry)?))
    }

    /// Returns the table that has the owner of `frame`. Makes the tables that do not exist yet.
    fn make_table(&self, frame: Pfn) -> Result<&Table, AllocError> {
        let no_such_frame = AllocError::Bad(BadRequest::Place(frame));
        let mut entry = self.root.get(index(frame, LEVELS)).ok_or(no_such_frame)?;
        for level in (1..LEVELS).rev() {
            entry = &self.make_table_at(entry)?[index(frame, level)];
        }
        self.make_table_at(entry)
    }

    /// Returns the table to which `entry` leads. Makes a table if `entry` leads to none.
    fn make_table_at(&self, entry: &AtomicU64) -> Result<&Table, AllocError> {
        if let Some(frame) = table_frame(entry) {
            return Ok(self.table_in(frame));
        }
        let one_frame = AllocRequest::frames(1);
        let new_frame = self
            .frames
            .alloc(one_frame.in_boot_memory())
            .or_else(|_| self.frames.alloc(one_frame))?;
        let new_frame = new_frame.into_raw().start();
        self.table_in(new_frame).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // Release publishes the zeroes of the new table; it pairs with Acquire in `table_frame` and
        // below. Acquire: if another CPU has stored its table first, this call sees the zeroes of
        // that table.
        let new_entry = new_frame.number() + 1;
        match entry.compare_exchange(NO_TABLE, new_entry, Ordering::Release, Ordering::Acquire) {
            Ok(_) => Ok(self.table_in(new_frame)),
            Err(other_entry) => {
                match other_entry.checked_sub(1).and_then(Pfn::new).or_record_violation() {
                    Some(frame) => {
                        self.free(new_frame);
                        Ok(self.table_in(frame))
                    }
                    None => Err(AllocError::Busy),
                }
            }
        }
    }

    /// Returns the table that fills `frame`, which `make_table_at` has allocated.
    fn table_in(&self, frame: Pfn) -> &Table {
        // SAFETY: `make_table_at` allocated the frame from kernel memory. The caller of `new` has
        // promised that kernel memory is mapped. Nothing else owns the frame. It is read and
        // written by atomics alone, and any bytes are a valid table. The frame is freed only by
        // `make_table_at` before another CPU can find it, or with `&mut self`, so no reference to
        // the table exists when it is freed.
        unsafe { &*self.linear_map.pointer(frame).cast() }
    }

    fn free(&self, table: Pfn) {
        if let Some(frame) = PfnRange::with_len(table, 1).or_record_violation() {
            // SAFETY: `make_table_at` allocated the frame, and no reference to its table exists.
            unsafe { self.frames.fill_and_free_raw(frame) }.or_record_violation();
        }
    }
}

impl<P: Platform> Drop for ReverseMap<'_, P> {
    fn drop(&mut self) {
        self.free_tables(PfnRange::ALL);
    }
}

impl<P: Platform> fmt::Debug for ReverseMap<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReverseMap").finish_non_exhaustive()
    }
}

/// Returns the frame of the table to which an entry leads, or `None` for `NO_TABLE`. Acquire pairs
/// with Release in `ReverseMap::make_table_at`.
fn table_frame(entry: &AtomicU64) -> Option<Pfn> {
    Pfn::new(entry.load(Ordering::Acquire).checked_sub(1)?)
}

/// Writes `owner` to the words of `part`, which are all in `table`. Release pairs with Acquire in
/// `ReverseMap::owner`.
fn write_owners(table: &Table, part: PfnRange, owner: u64) {
    let first = index(part.start(), 0);
    for word in table.iter().skip(first).take(usize::try_from(part.frames()).unwrap_or(TABLE_WORDS))
    {
        word.store(owner, Ordering::Release);
    }
}
