//! Maps each frame to its owner, a word for each frame, for kernels that have no reverse map.
//!
//! [`Hooks::migrate`](crate::Hooks::migrate) gets frames whose contents must move, and the kernel
//! must find their owners from the frame numbers. A kernel that has no other way to do so records
//! here an owner for every frame that it allocates as movable. The owner is a number that leads to
//! the reference that must change, such as a virtual page number. The use of this map is optional,
//! and no other part of the engine uses it.
//!
//! The map allocates the frames of its words as it needs them: one for each 2 MiB in which a frame
//! has an owner (0.2 %), and one above that for each 1 GiB, as in a page table. As long as there is
//! free memory that is never removed, it allocates them from that, so that the map itself does not
//! prevent a removal.

use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocError, AllocRequest, BadRequest, Frames};
use crate::geometry::{FRAME_SIZE, PFN_LIMIT};
use crate::known::Known;
use crate::platform::Platform;
use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

/// The owner of a frame: a number that the kernel chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Owner(NonZeroU64);

impl Owner {
    /// Returns the owner with this number, or `None` for 0, which stands for no owner.
    #[must_use]
    pub const fn new(number: u64) -> Option<Owner> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Owner(number)),
            None => None,
        }
    }

    /// Returns the number of the owner.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

/// The map from a machine's frames to their owners.
///
/// ```
/// # use hotmem::{AlwaysMapped, BootMap, BootRange, Bytes, Frames, Hooks, Hotplug, Migration};
/// # use hotmem::{OneCpu, Owner, ReverseMap, PfnRange, AllocRequest};
/// static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
/// static REVERSE_MAP: ReverseMap<'static, OneCpu> = ReverseMap::new(&FRAMES);
///
/// # struct Kernel;
/// # impl Kernel { fn moves(&mut self, _: Owner, _: PfnRange) {} }
/// impl Hooks for Kernel {
///     fn migrate(&mut self, used: PfnRange) -> Migration {
///         for (part, owner) in REVERSE_MAP.runs(used) {
///             let Some(owner) = owner else { return Migration::Pinned("nobody's") };
///             self.moves(owner, part);
///         }
///         Migration::Moved
///     }
/// }
/// # let layout = std::alloc::Layout::from_size_align(4 << 20, 4096)?;
/// # // SAFETY: it is a layout of some bytes.
/// # let base = unsafe { std::alloc::alloc_zeroed(layout) };
/// # let ram = [BootRange { start: 0, len: Bytes::mib(4) }];
/// # // SAFETY: all of it is there, and nobody else uses it.
/// # unsafe {
/// #     let mapping = AlwaysMapped::new(base, PfnRange::from_bytes(0, Bytes::mib(4))?);
/// #     Hotplug::bootstrap(&FRAMES, mapping, &BootMap::of_ram(&ram))?;
/// # }
/// let page = FRAMES.alloc(AllocRequest::frames(1).movable())?;
/// let owner = Owner::new(0x7f00_1234).ok_or("nobody")?;
/// REVERSE_MAP.set(page.range(), owner)?;
/// assert_eq!(REVERSE_MAP.of(page.start()), Some(owner));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReverseMap<'f, P: Platform> {
    frames: &'f Frames<P>,
    root: [AtomicU64; ROOT],
}

/// The number of words in a frame. This many bits of a frame number index one level of tables.
const WORDS: usize = 1 << WORDS_SHIFT;
const WORDS_SHIFT: u32 = 9;
/// The number of levels of frames below the root.
const LEVELS: u32 = 4;
/// The number of entries of the root: the levels do not use these bits of a frame number.
const ROOT: usize = ((PFN_LIMIT - 1) >> (LEVELS * WORDS_SHIFT)) as usize + 1;
/// The entry for no table. Other entries hold the number of a frame plus one.
const NO_TABLE: u64 = 0;

const _: () = assert!((WORDS * size_of::<AtomicU64>()) as u64 == FRAME_SIZE);

/// A frame of words: owners at the lowest level, entries for the frames below at the other levels.
type Table = [AtomicU64; WORDS];

/// Returns the index of a frame's word in a table of this level; level 0 holds the owners.
#[allow(clippy::cast_possible_truncation, reason = "9 bits, or 4 for the root")]
const fn index(pfn: Pfn, level: u32) -> usize {
    let index = (pfn.number() >> (level * WORDS_SHIFT)) as usize;
    if level < LEVELS { index % WORDS } else { index }
}

impl<'f, P: Platform> ReverseMap<'f, P> {
    /// Creates a map in which no frame has an owner.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>) -> ReverseMap<'f, P> {
        ReverseMap { frames, root: [const { AtomicU64::new(NO_TABLE) }; ROOT] }
    }

    /// Makes `owner` the owner of all of `range`. The code that allocated `range` calls this.
    ///
    /// Context: any. Cost: a store for each frame, and for the first owner in 2 MiB the allocation
    /// of a frame.
    ///
    /// # Errors
    /// There is no memory for the words, or no such frames can exist; then no frame of `range` has
    /// an owner.
    pub fn set(&self, range: PfnRange, owner: Owner) -> Result<(), AllocError> {
        for part in range.chunks(WORDS as u64) {
            match self.make_table(part.start()) {
                Ok(table) => write(table, part, owner.number()),
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
        for part in range.chunks(WORDS as u64) {
            if let Some(table) = self.table(part.start()) {
                write(table, part, 0);
            }
        }
    }

    /// Returns the owner of a frame. Context: any. Cost: five loads.
    #[must_use]
    pub fn of(&self, frame: Pfn) -> Option<Owner> {
        // Acquire pairs with `write`: a reader that finds the owner sees what the owner did before.
        Owner::new(self.table(frame)?[index(frame, 0)].load(Ordering::Acquire))
    }

    /// Iterates over `range` as runs of frames that have the same owner, or none.
    pub fn runs(&self, range: PfnRange) -> impl Iterator<Item = (PfnRange, Option<Owner>)> {
        let mut rest = range;
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let owner = self.of(rest.start());
            let mut frames = rest.chunks(1);
            let other = frames.find(|frame| self.of(frame.start()) != owner);
            let (run, after) = rest.split_at(other.map_or(rest.end(), PfnRange::start));
            rest = after;
            Some((run, owner))
        })
    }

    /// Clears the owners of `range`, which is no longer present, and frees the frames that held its
    /// words.
    ///
    /// Context: any in which the kernel has exclusive access to the map. Cost: O(2 MiB pieces that
    /// have words).
    pub fn forget(&mut self, range: PfnRange) {
        for (entry, covers) in
            self.root.iter().zip(PfnRange::ALL.chunks(1 << (LEVELS * WORDS_SHIFT)))
        {
            self.forget_in(entry, LEVELS - 1, covers, range);
        }
    }

    /// Does the same within the table of this level to which `entry` leads, which covers the frames
    /// `covers`.
    fn forget_in(&self, entry: &AtomicU64, level: u32, covers: PfnRange, range: PfnRange) {
        let part = covers.intersection(range);
        let Some(frame) = named(entry).filter(|_| !part.is_empty()) else { return };
        let table = self.table_in(frame);
        if level == 0 {
            write(table, part, 0);
        } else {
            for (entry, covers) in table.iter().zip(covers.chunks(1 << (level * WORDS_SHIFT))) {
                self.forget_in(entry, level - 1, covers, range);
            }
        }
        // Relaxed, here and below: `forget` and `drop` have `&mut self`.
        if table.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
            entry.store(NO_TABLE, Ordering::Relaxed);
            self.free(frame);
        }
    }

    /// Returns the table that has this frame's owner, if there is one.
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let mut entry = self.root.get(index(frame, LEVELS))?;
        for level in (1..LEVELS).rev() {
            entry = &self.table_in(named(entry)?)[index(frame, level)];
        }
        Some(self.table_in(named(entry)?))
    }

    /// Returns the table that has this frame's owner, and makes it if there is none.
    fn make_table(&self, frame: Pfn) -> Result<&Table, AllocError> {
        let nowhere = AllocError::Bad(BadRequest::Place(frame));
        let mut entry = self.root.get(index(frame, LEVELS)).ok_or(nowhere)?;
        for level in (1..LEVELS).rev() {
            entry = &self.make(entry)?[index(frame, level)];
        }
        self.make(entry)
    }

    /// Returns the table to which `entry` leads, and makes one if there is none.
    fn make(&self, entry: &AtomicU64) -> Result<&Table, AllocError> {
        if let Some(frame) = named(entry) {
            return Ok(self.table_in(frame));
        }
        let one = AllocRequest::frames(1);
        let alloc = |request| self.frames.alloc_range(request);
        let new = alloc(one.in_boot_memory()).or_else(|_| alloc(one))?.start();
        self.table_in(new).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // Release publishes the zeroes. Acquire: if another CPU was faster, this call sees the
        // zeroes of its table.
        let named = new.number() + 1;
        match entry.compare_exchange(NO_TABLE, named, Ordering::Release, Ordering::Acquire) {
            Ok(_) => Ok(self.table_in(new)),
            Err(theirs) => match theirs.checked_sub(1).and_then(Pfn::new).known() {
                Some(theirs) => {
                    self.free(new);
                    Ok(self.table_in(theirs))
                }
                None => Err(AllocError::Busy),
            },
        }
    }

    /// Returns the table in a frame that was allocated for one.
    fn table_in(&self, frame: Pfn) -> &Table {
        // SAFETY: `make` allocated the frame from mapped memory, and nobody else owns it. It is
        // read and written by atomics alone, and any bytes are a valid table. It is freed only by
        // `make` before another CPU can find it, or with `&mut self`, so that no reference to it is
        // left.
        unsafe { &*self.frames.direct_map().pointer(frame).cast() }
    }

    fn free(&self, table: Pfn) {
        if let Some(frame) = PfnRange::with_len(table, 1).known() {
            // `make` has allocated it.
            self.frames.free_filled(frame).known();
        }
    }
}

impl<P: Platform> Drop for ReverseMap<'_, P> {
    fn drop(&mut self) {
        self.forget(PfnRange::ALL);
    }
}

impl<P: Platform> fmt::Debug for ReverseMap<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReverseMap").finish_non_exhaustive()
    }
}

/// Returns the frame to which an entry leads. Acquire pairs with the Release in `ReverseMap::make`.
fn named(entry: &AtomicU64) -> Option<Pfn> {
    Pfn::new(entry.load(Ordering::Acquire).checked_sub(1)?)
}

/// Writes the owner of `part`, whose words are all in `table`. Release pairs with `ReverseMap::of`.
fn write(table: &Table, part: PfnRange, owner: u64) {
    let first = index(part.start(), 0);
    for word in table.iter().skip(first).take(usize::try_from(part.frames()).unwrap_or(WORDS)) {
        word.store(owner, Ordering::Release);
    }
}
