//! Whose each frame is: a word per frame, for kernels without a reverse map.
//!
//! [`Hooks::migrate`](crate::Hooks::migrate) names frames and wants what lives there to move; a
//! kernel must find out from the frame whose it is. One that has no other way keeps an owner
//! for every frame that it allocates as movable: whatever leads back to the reference that must be
//! changed, a virtual page number for instance. Optional; nothing else in the engine knows of it.
//!
//! The words lie in frames that are taken as they are needed: one for each 2 MiB in which something
//! has an owner (0.2 %), and one above that for each 1 GiB, as in a page table. They come from
//! memory that is never removed while there is some, so that they hinder no removal themselves.

use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocError, AllocRequest, BadRequest, Frames};
use crate::geometry::{FRAME_SIZE, PFN_LIMIT};
use crate::known::Known;
use crate::platform::Platform;
use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

/// Whose a frame is, in whatever way the kernel likes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Owner(NonZeroU64);

impl Owner {
    /// The owner with this number; 0 is nobody.
    #[must_use]
    pub const fn new(number: u64) -> Option<Owner> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Owner(number)),
            None => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

/// The owners of a machine's frames.
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

/// Words in a frame, and bits of a frame number that one level of tables takes.
const WORDS: usize = 1 << WORDS_SHIFT;
const WORDS_SHIFT: u32 = 9;
/// Levels of frames below the root.
const LEVELS: u32 = 4;
/// What is left of a frame number for the root.
const ROOT: usize = ((PFN_LIMIT - 1) >> (LEVELS * WORDS_SHIFT)) as usize + 1;
/// An entry that names no table; others name a frame by its number plus one.
const NO_TABLE: u64 = 0;

const _: () = assert!((WORDS * size_of::<AtomicU64>()) as u64 == FRAME_SIZE);

/// A frame of words: at the lowest level owners, above that the numbers of the frames below.
type Table = [AtomicU64; WORDS];

/// Where a frame's word is in a table of this level; level 0 holds the owners.
#[allow(clippy::cast_possible_truncation, reason = "9 bits, or 4 for the root")]
const fn index(pfn: Pfn, level: u32) -> usize {
    let index = (pfn.number() >> (level * WORDS_SHIFT)) as usize;
    if level < LEVELS { index % WORDS } else { index }
}

impl<'f, P: Platform> ReverseMap<'f, P> {
    /// Nobody owns anything.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>) -> ReverseMap<'f, P> {
        ReverseMap { frames, root: [const { AtomicU64::new(NO_TABLE) }; ROOT] }
    }

    /// All of `range` is `owner`'s from now on. To be called by whoever has allocated it.
    ///
    /// Context: any. Cost: a store a frame, and the first time in 2 MiB the allocation of a frame.
    ///
    /// # Errors
    /// There is no memory for the words, or no such frames can exist; nobody owns any of `range`
    /// then.
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

    /// Nobody owns any of `range` from now on. To be called before it is freed.
    ///
    /// Context: any. Cost: a store a frame.
    pub fn clear(&self, range: PfnRange) {
        for part in range.chunks(WORDS as u64) {
            if let Some(table) = self.table(part.start()) {
                write(table, part, 0);
            }
        }
    }

    /// Whose this frame is. Context: any. Cost: five loads.
    #[must_use]
    pub fn of(&self, frame: Pfn) -> Option<Owner> {
        // Acquire pairs with `write`: who learns of the owner sees what the owner did before.
        Owner::new(self.table(frame)?[index(frame, 0)].load(Ordering::Acquire))
    }

    /// `range` as runs that have one owner, or none.
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

    /// `range` is no longer there: nobody owns any of it, and the frames that held its words are
    /// freed.
    ///
    /// Context: where the kernel is alone with this. Cost: O(2 MiB pieces that have words).
    pub fn forget(&mut self, range: PfnRange) {
        for (entry, covers) in
            self.root.iter().zip(PfnRange::ALL.chunks(1 << (LEVELS * WORDS_SHIFT)))
        {
            self.forget_in(entry, LEVELS - 1, covers, range);
        }
    }

    /// The same within the table of this level that `entry` names, which is for `covers`.
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
        // Relaxed, here and below: our caller's caller has `&mut self`.
        if table.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
            entry.store(NO_TABLE, Ordering::Relaxed);
            self.free(frame);
        }
    }

    /// The table with this frame's owner, if there is one.
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let mut entry = self.root.get(index(frame, LEVELS))?;
        for level in (1..LEVELS).rev() {
            entry = &self.table_in(named(entry)?)[index(frame, level)];
        }
        Some(self.table_in(named(entry)?))
    }

    /// The same; it is made if there is none.
    fn make_table(&self, frame: Pfn) -> Result<&Table, AllocError> {
        let nowhere = AllocError::Bad(BadRequest::Place(frame));
        let mut entry = self.root.get(index(frame, LEVELS)).ok_or(nowhere)?;
        for level in (1..LEVELS).rev() {
            entry = &self.make(entry)?[index(frame, level)];
        }
        self.make(entry)
    }

    /// The table that `entry` names, or a new one.
    fn make(&self, entry: &AtomicU64) -> Result<&Table, AllocError> {
        if let Some(frame) = named(entry) {
            return Ok(self.table_in(frame));
        }
        let one = AllocRequest::frames(1);
        let alloc = |request| self.frames.alloc_range(request);
        let new = alloc(one.fixed()).or_else(|_| alloc(one))?.start();
        self.table_in(new).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // Release publishes the zeroes; Acquire, if somebody else was first, sees theirs.
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

    /// The table in a frame that was allocated for one.
    fn table_in(&self, frame: Pfn) -> &Table {
        // SAFETY: `make` allocated the frame of mapped memory and nobody else has it; it is
        // read and written by atomics alone, any bytes are a table, and it is freed only by
        // `make` before anybody else knows of it, or with `&mut self`, so that no reference to it
        // is left.
        unsafe { &*self.frames.direct_map().pointer(frame).cast() }
    }

    fn free(&self, table: Pfn) {
        if let Some(frame) = PfnRange::with_len(table, 1).known() {
            // It was allocated by `make`.
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

/// The frame whose number plus one this entry holds. Acquire pairs with the Release in
/// `ReverseMap::make`.
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
