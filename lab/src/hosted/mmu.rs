//! The hosted machine's MMU, which is simulated: page tables are arrays in this process, and
//! whoever reads or writes through them walks them, and sets Accessed and Dirty, as a processor
//! would.
//!
//! A thread is in the middle of an access for as long as it holds the lock that a flush takes; a
//! page that is missing because it is being moved is waited for, as in a page fault.

use super::Hosted;
use hotmem::{AllocError, Bytes, Migration, Pfn, PfnRange, Want, geometry::PAGEBLOCK_FRAMES};
use hotmem_pgtable::{
    AtomicU64, Batch, Covered, ENTRIES, Entry, EntryAddr, Flags, Flush, Kind, Level, Native, Owner,
    PageTables, Run, Slot, Space, Table, Tables, Unmap, VirtRange, slot_at,
};
use std::{
    collections::HashMap,
    ptr::NonNull,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

const PAGE: u64 = Level::L1.entry_bytes().0;
/// Tables at most, the root included: for at least 8 GiB of pages one after another.
const TABLES: usize = 5000;
const SPACE: Space = Space { root: Pfn::ZERO, levels: Level::L4 };

/// A machine's MMU, with one address space.
pub(super) struct Mmu {
    tables: Arrays,
    /// Held by threads that are in the middle of an access.
    accessing: RwLock<()>,
    /// What guards the entries: whoever misses a page takes it to see whether it comes.
    mapped: Mutex<Mapped>,
}

/// Page tables. Their frames are numbers of their own, and none of the machine's.
struct Arrays {
    all: Vec<OnceLock<Box<Table>>>,
    used: AtomicUsize,
}

/// What is behind the addresses.
struct Mapped {
    /// Whose each frame is: a page, by its address.
    owners: HashMap<Pfn, u64>,
    batch: Box<Batch>,
    moved: Bytes,
}

/// Memory behind virtual addresses, on a simulated MMU: frames that may be moved while it is used.
///
/// ```
/// # use hotmem::Bytes;
/// # use hotmem_lab::hosted::Hosted;
/// let machine = Hosted::builder().boot_memory(Bytes::mib(128)).build()?;
/// let mut hotplug = machine.boot()?;
/// let space = machine.address_space();
/// space.map(0x7000)?;
/// assert_eq!(space.add(0x7008, 5), Some(5));
/// assert_eq!(space.read(0x7008), Some(5));
/// assert!(space.take_dirty(0x7000) && !space.take_dirty(0x7000));
/// space.unmap(0x7000);
/// assert_eq!(space.read(0x7008), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct AddressSpace<'m> {
    machine: &'m Hosted,
    mmu: &'m Mmu,
}

/// Why there is no memory behind an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// There was no frame.
    #[error("no memory: {0}")]
    NoMemory(#[from] AllocError),
    /// Something is there already, the address can be none, or it takes a page table too many.
    #[error("nothing can be mapped at {0:#x}")]
    Refused(u64),
}

impl Mmu {
    pub(super) fn new() -> Mmu {
        let all = (0..TABLES).map(|_| OnceLock::new()).collect();
        let tables = Arrays { all, used: AtomicUsize::new(0) };
        tables.take();
        let mapped = Mapped { owners: HashMap::new(), batch: Box::default(), moved: Bytes::ZERO };
        Mmu { tables, accessing: RwLock::new(()), mapped: Mutex::new(mapped) }
    }

    fn native(&self) -> Native<&Arrays, impl FnMut(Flush) + '_> {
        // Whoever began an access before this has ended it after.
        Native::new(&self.tables, |_| {
            drop(self.accessing.write().unwrap_or_else(PoisonError::into_inner));
        })
    }

    fn mapped(&self) -> MutexGuard<'_, Mapped> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, address: u64) -> Option<Slot> {
        slot_at(&self.native(), SPACE, address).ok().filter(|slot| slot.kind() == Kind::Page)
    }

    fn word(&self, at: EntryAddr) -> Option<&AtomicU64> {
        Some(&self.tables.get(at.table())?[at.index()])
    }
}

impl Arrays {
    fn take(&self) -> Option<Pfn> {
        let number = self.used.fetch_add(1, Relaxed);
        self.all.get(number)?.get_or_init(|| Box::new([const { AtomicU64::new(0) }; ENTRIES]));
        Pfn::new(number as u64)
    }

    fn get(&self, frame: Pfn) -> Option<&Table> {
        self.all.get(usize::try_from(frame.number()).ok()?)?.get().map(Box::as_ref)
    }
}

impl Tables for &Arrays {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.get(frame)
    }
}

/// Takes arrays for tables, which are kept, and the frames of what is unmapped.
struct Kernel<'a> {
    tables: &'a Arrays,
    unmapped: Option<PfnRange>,
}

impl Owner for Kernel<'_> {
    fn unmapped(&mut self, run: Run) {
        self.unmapped = run.frames();
    }

    fn free_table(&mut self, _: Pfn) {}

    fn new_table(&mut self) -> Option<Pfn> {
        self.tables.take()
    }
}

impl<'m> AddressSpace<'m> {
    pub(super) fn new(machine: &'m Hosted, mmu: &'m Mmu) -> Self {
        AddressSpace { machine, mmu }
    }

    /// Puts a frame of zeros behind the page of this address.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(self, address: u64) -> Result<(), MapError> {
        let virt = VirtRange::page(address);
        let mapped = &mut *self.mmu.mapped();
        let frame = self.machine.frames().alloc(Want::frames(1).movable())?;
        // SAFETY: the frame was allocated just now.
        unsafe { self.pointer(frame.start()).write_bytes(0, ENTRIES) };
        let entry = Entry::new(frame.start(), Flags::PRESENT | Flags::WRITABLE);
        let mut kernel = Kernel { tables: &self.mmu.tables, unmapped: None };
        let mut tables = PageTables::new(self.mmu.native(), SPACE, &mut mapped.batch);
        match tables.map(Run { virt, entry, level: Level::L1 }, &mut kernel) {
            Ok(_) => {
                mapped.owners.insert(frame.start(), virt.start());
                Ok(())
            }
            Err(_) => {
                self.free(frame);
                Err(MapError::Refused(address))
            }
        }
    }

    /// Takes the frame away from behind the page of this address, if there is one.
    pub fn unmap(self, address: u64) {
        let mapped = &mut *self.mmu.mapped();
        let mut kernel = Kernel { tables: &self.mmu.tables, unmapped: None };
        let mut tables = PageTables::new(self.mmu.native(), SPACE, &mut mapped.batch);
        let how = Unmap { tables: Covered::Keep, ignore_used: true, dying: false };
        let _ = tables.unmap_range(VirtRange::page(address), how, &mut kernel);
        if let Some(frame) = kernel.unmapped {
            mapped.owners.remove(&frame.start());
            self.free(frame);
        }
    }

    /// Reads the word at this address, rounded down to a word's; `None`: nothing is there.
    #[must_use]
    pub fn read(self, address: u64) -> Option<u64> {
        self.access(address, Flags::ACCESSED, |word| word.load(Relaxed))
    }

    /// Adds to the word at this address; what it holds then. Two that add at once may lose one
    /// another's, as with a processor's `mov`.
    #[expect(clippy::must_use_candidate, reason = "the write counts")]
    pub fn add(self, address: u64, n: u64) -> Option<u64> {
        self.access(address, Flags::USED, |word| {
            let sum = word.load(Relaxed).wrapping_add(n);
            word.store(sum, Relaxed);
            sum
        })
    }

    /// Whether the page of this address was written to since this was last asked.
    #[must_use]
    pub fn take_dirty(self, address: u64) -> bool {
        let _lock = self.mmu.mapped();
        let Some(word) = self.mmu.slot(address).and_then(|slot| self.mmu.word(slot.at)) else {
            return false;
        };
        let before = word.fetch_and(!Flags::USED.bits(), Relaxed);
        // Whoever found the page dirty before has written by now.
        drop(self.mmu.accessing.write().unwrap_or_else(PoisonError::into_inner));
        Entry::from_bits(before).flags().contains(Flags::DIRTY)
    }

    /// What was moved so far under pages in use.
    #[must_use]
    pub fn moved(self) -> Bytes {
        self.mmu.mapped().moved
    }

    /// Moves what is on these frames, a run within one pageblock, to others; `None` if nothing of
    /// this address space is.
    pub(super) fn migrate(self, used: PfnRange) -> Option<Migration> {
        let mapped = &mut *self.mmu.mapped();
        let frames = used.chunks(1).take(PAGEBLOCK_FRAMES);
        let pages: Vec<(PfnRange, u64)> =
            frames.filter_map(|from| Some((from, *mapped.owners.get(&from.start())?))).collect();
        let frames = self.machine.frames();
        let node = frames.node_of(used.start()).unwrap_or_default();
        let destination = || frames.alloc(Want::frames(1).movable().leaving(node)).ok();
        let moves: Vec<(PfnRange, u64, PfnRange)> =
            pages.iter().map_while(|&(from, page)| Some((from, page, destination()?))).collect();
        if moves.is_empty() {
            return pages.first().map(|_| Migration::Retry);
        }
        let tables = PageTables::new(self.mmu.native(), SPACE, &mut mapped.batch);
        // All of them are mapped: they have owners.
        let Ok(mut moving) = tables.begin_move(moves.iter().map(|&(_, page, _)| page)) else {
            moves.iter().for_each(|&(_, _, to)| self.free(to));
            return Some(Migration::Pinned("its owner is no page"));
        };
        for (index, &(from, _, to)) in moves.iter().enumerate() {
            // SAFETY: both frames are the page's, and nobody is in the middle of an access to it.
            unsafe {
                self.pointer(from.start())
                    .copy_to_nonoverlapping(self.pointer(to.start()), ENTRIES);
            }
            moving.place(index, to.start());
        }
        drop(moving);
        for (from, page, to) in moves {
            mapped.owners.remove(&from.start());
            mapped.owners.insert(to.start(), page);
            mapped.moved = mapped.moved + Bytes(PAGE);
            self.free(from);
        }
        Some(Migration::Moved)
    }

    /// What a processor does with an instruction: walk, say by flags that it did, access.
    fn access(self, address: u64, used: Flags, act: impl Fn(&AtomicU64) -> u64) -> Option<u64> {
        loop {
            let access = self.mmu.accessing.read().unwrap_or_else(PoisonError::into_inner);
            let Some(slot) = self.mmu.slot(address) else {
                // A page fault: is it gone, or will it be there when the lock is free?
                drop(access);
                let _lock = self.mmu.mapped();
                self.mmu.slot(address)?;
                continue;
            };
            let (word, entry) = (self.mmu.word(slot.at)?, slot.entry);
            let marked = entry.with(used).bits();
            // The entry is still what was found, or the walk begins again.
            if word.compare_exchange(entry.bits(), marked, Relaxed, Relaxed).is_err() {
                continue;
            }
            let index = usize::try_from(address % PAGE / 8).ok()?;
            // SAFETY: the frame is the page's until a flush has waited for this access; words of
            // pages are accessed atomically, as long as the page is not taken out of sight.
            let word =
                unsafe { AtomicU64::from_ptr(self.pointer(entry.frame(slot.level)?).add(index)) };
            return Some(act(word));
        }
    }

    fn pointer(self, frame: Pfn) -> *mut u64 {
        self.machine.address_of(frame).map_or(std::ptr::null_mut(), NonNull::as_ptr).cast()
    }

    fn free(self, frame: PfnRange) {
        // Allocated by `map` or `migrate`, and freed once.
        let _ = self.machine.frames().free(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::{Announce, Budget, NodeId, OnlineType, Progress, Shrink, Shrunk};
    use std::{
        sync::atomic::{AtomicBool, Ordering::SeqCst},
        thread,
    };

    const PAGES: usize = 2048;
    const THREADS: u64 = 3;

    fn address(page: usize) -> u64 {
        // Over two tables of each level.
        (512 << 30) + page as u64 * PAGE - PAGES as u64 / 2 * PAGE
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let machine = Hosted::builder().build().unwrap();
        let _hotplug = machine.boot().unwrap();
        let space = machine.address_space();
        assert_eq!((space.read(0), space.add(8, 1), space.take_dirty(0)), (None, None, false));
        assert_eq!(space.map(1 << 47), Err(MapError::Refused(1 << 47)));
        space.map(0x1fff).unwrap();
        assert_eq!(space.map(0x1000), Err(MapError::Refused(0x1000)));
        assert_eq!((space.read(0x1ff8), space.read(0x2000)), (Some(0), None));
        let free = machine.frames().counts().free;
        space.unmap(0x1000);
        space.unmap(0x1000);
        assert_eq!(machine.frames().counts().free, free + 1);
        // Tables are kept, and run out.
        let refused = (0..1 << 20).find(|n| space.map(n << 30).is_err());
        assert!(refused.is_some_and(|n| n < TABLES as u64), "{refused:?}");
    }

    #[test]
    fn what_leaves_a_node_moves_to_another_though_its_own_has_room() {
        let machine = Hosted::builder().room(Bytes::mib(256)).build().unwrap();
        let mut hotplug = machine.boot().unwrap();
        let (room, space) = (machine.room(), machine.address_space());
        let hooks = &mut machine.hooks();
        let (near, far) = room.split_at(room.start().checked_add(room.frames() / 2).unwrap());
        for (part, node) in [(near, 0), (far, 1)] {
            let node = NodeId::new(node).unwrap();
            hotplug.announce(Announce::range(part).on_node(node)).unwrap();
            hotplug.add(part, hooks).unwrap();
            hotplug.online(part, OnlineType::Movable, hooks).unwrap();
        }
        (0..PAGES).for_each(|page| space.map(address(page)).unwrap());
        let are_on =
            |part: PfnRange| space.mmu.mapped().owners.keys().all(|&frame| part.contains(frame));
        assert!(are_on(near));
        let mut offline = hotplug.offline(near).unwrap();
        let done = offline.poll(&mut hotplug, hooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Done(near));
        assert!(are_on(far), "node 0 has boot memory");
    }

    /// Writes to a quarter of all pages at a time, and counts it.
    fn write(space: AddressSpace, thread: u64, done: &AtomicBool, phase: &AtomicU64) -> Vec<u64> {
        let mut counts = vec![0; PAGES];
        let mut random = fastrand::Rng::with_seed(thread);
        while !done.load(SeqCst) {
            let page = random.usize(..PAGES);
            if (page as u64 ^ phase.load(Relaxed)).is_multiple_of(4) {
                space.add(address(page) + thread * 8, 1).unwrap();
                counts[page] += 1;
            }
        }
        counts
    }

    /// Memory goes while threads write to it through addresses: each write is there in the end,
    /// and whatever is written is dirty.
    #[test]
    fn no_write_is_lost_and_no_dirty_bit_while_memory_goes() {
        let machine = Hosted::builder().room(Bytes::mib(256)).build().unwrap();
        let mut hotplug = machine.boot().unwrap();
        let (room, space) = (machine.room(), machine.address_space());
        let hooks = &mut machine.hooks();
        hotplug.announce(room).unwrap();
        let done = AtomicBool::new(false);
        let phase = AtomicU64::new(0);
        thread::scope(|scope| {
            let mut mapped = false;
            let mut writers = Vec::new();
            for round in 0..6 {
                hotplug.add(room, hooks).unwrap();
                hotplug.online(room, OnlineType::Movable, hooks).unwrap();
                if mapped {
                    // They move to the memory that came, as from anywhere.
                    let all: Vec<Pfn> = space.mmu.mapped().owners.keys().copied().collect();
                    for frame in all {
                        let frame = PfnRange::with_len(frame, 1).unwrap();
                        assert_eq!(space.migrate(frame), Some(Migration::Moved));
                    }
                } else {
                    (0..PAGES).for_each(|page| space.map(address(page)).unwrap());
                    mapped = true;
                    for thread in 0..THREADS {
                        let (done, phase) = (&done, &phase);
                        writers.push(scope.spawn(move || write(space, thread, done, phase)));
                    }
                }
                phase.fetch_add(1, Relaxed);
                let moved = space.moved();
                let mut shrink = Shrink::new(room, room.frames(), 512, 2048);
                loop {
                    match shrink.poll(&mut hotplug, hooks, Budget::pageblocks(4)) {
                        Shrunk::Ready(removal) => hotplug.commit_remove(removal, hooks).unwrap(),
                        Shrunk::Working => {}
                        Shrunk::Done { left, blocker } => {
                            assert_eq!((left, blocker), (0, None));
                            break;
                        }
                    }
                }
                assert!(space.moved() - moved >= Bytes(PAGES as u64 * PAGE), "round {round}");
            }
            done.store(true, SeqCst);
            let counts: Vec<_> = writers.into_iter().map(|thread| thread.join().unwrap()).collect();
            for page in 0..PAGES {
                let mut written = false;
                for (thread, counts) in (0..).zip(&counts) {
                    let count = counts[page];
                    assert_eq!(space.read(address(page) + thread * 8), Some(count));
                    written |= count > 0;
                }
                // Nobody has taken Dirty so far, wherever the page has been meanwhile.
                assert_eq!(space.take_dirty(address(page)), written, "page {page}");
                space.unmap(address(page));
            }
        });
        assert_eq!(machine.frames().validate().unwrap().present, machine.boot_memory().frames());
    }
}
