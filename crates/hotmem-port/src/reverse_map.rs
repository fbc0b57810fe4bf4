//! Maps each frame to its owner, a word for each frame, for kernels that have no reverse map.
//!
//! [`Hooks::migrate`](hotmem::Hooks::migrate) gets frames whose contents must move, and the kernel
//! must find their owners from the frame numbers. A kernel that has no other way to do so records
//! here an owner for every frame that it allocates as movable. The owner is a number that leads to
//! the reference that must change, such as a virtual page number.
//!
//! The map allocates the frames of its words as it needs them: one for each 2 MiB in which a frame
//! has an owner (0.2 %), and one above that for each 1 GiB, as in a page table. As long as there is
//! free memory that is never removed, it allocates them from that, so that the map itself does not
//! prevent a removal.

use crate::linear::LinearMap;
use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};
use hotmem::geometry::{FRAME_SIZE, PFN_LIMIT};
use hotmem::{AllocError, AllocRequest, BadRequest, Frames, Known, Pfn, PfnRange, Platform};

/// The owner of a frame: a number that the kernel chooses. A frame whose number is 0 has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Owner(pub NonZeroU64);

/// The map from a machine's frames to their owners.
///
/// ```
/// # use hotmem::{AlwaysMapped, BootMap, BootRange, Bytes, Frames, Hooks, Hotplug, Migration};
/// # use hotmem::{OneCpu, PfnRange, AllocRequest};
/// # use hotmem_port::{LinearMap, Owner, ReverseMap};
/// # use std::num::NonZeroU64;
/// # static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
/// struct Kernel {
///     reverse_map: ReverseMap<'static, OneCpu>,
/// }
///
/// # impl Kernel { fn moves(&self, _: Owner, _: PfnRange) {} }
/// impl Hooks for Kernel {
///     fn migrate(&mut self, used: PfnRange) -> Migration {
///         for (part, owner) in self.reverse_map.runs(used) {
///             let Some(owner) = owner else { return Migration::Unmovable("nobody's") };
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
/// # let _hotplug = unsafe {
/// #     let mapping = AlwaysMapped::new(base, PfnRange::from_bytes(0, Bytes::mib(4))?);
/// #     Hotplug::bootstrap(&FRAMES, mapping, &BootMap::of_ram(&ram))?
/// # };
/// // SAFETY: all memory of the machine is mapped at `base`.
/// let reverse_map = unsafe { ReverseMap::new(&FRAMES, LinearMap::new(base)) };
/// let page = FRAMES.alloc(AllocRequest::frames(1).movable())?;
/// let owner = Owner(NonZeroU64::new(0x7f00_1234).ok_or("nobody")?);
/// reverse_map.set(page.range(), owner)?;
/// assert_eq!(reverse_map.of(page.start()), Some(owner));
/// # Kernel { reverse_map }.migrate(page.range());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReverseMap<'f, P: Platform> {
    frames: &'f Frames<P>,
    map: LinearMap,
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
    ///
    /// # Safety
    /// All kernel memory of the machine is mapped by `map`, for as long as it is allocated.
    #[must_use]
    pub const unsafe fn new(frames: &'f Frames<P>, map: LinearMap) -> ReverseMap<'f, P> {
        ReverseMap { frames, map, root: [const { AtomicU64::new(NO_TABLE) }; ROOT] }
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
                Ok(table) => write(table, part, owner.0.get()),
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
        NonZeroU64::new(self.table(frame)?[index(frame, 0)].load(Ordering::Acquire)).map(Owner)
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
        let new = self.frames.alloc(one.in_boot_memory()).or_else(|_| self.frames.alloc(one))?;
        let new = new.into_raw().start();
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
        // SAFETY: `make` allocated the frame from kernel memory, which is mapped by the promise to
        // `new`, and nobody else owns it. It is read and written by atomics alone, and any bytes are a valid table. It is freed only by
        // `make` before another CPU can find it, or with `&mut self`, so that no reference to it is
        // left.
        unsafe { &*self.map.pointer(frame).cast() }
    }

    fn free(&self, table: Pfn) {
        if let Some(frame) = PfnRange::with_len(table, 1).known() {
            // SAFETY: `make` allocated it, and no reference to it is left.
            unsafe { self.frames.free_raw_filled(frame) }.known();
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
