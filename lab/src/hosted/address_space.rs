//! Implements virtual memory on the simulated MMU.

use super::Hosted;
use super::mmu::{Arrays, Mmu, PAGE, SPACE};
use hotmem::{
    AllocError, AllocRequest, Allocation, Bytes, Hooks, Migration, NodeChoice, Pfn, PfnRange,
    geometry::PAGEBLOCK_FRAMES,
};
use hotmem_pgtable::{
    AtomicU64, Covered, ENTRIES, Entry, Flags, Level, MoveError, Owner, PageTables, Run, Unmap,
    VirtRange,
};
use std::{
    ptr::NonNull,
    sync::{PoisonError, atomic::Ordering::Relaxed},
};

/// Virtual memory on a simulated MMU. Its frames can be migrated while the pages are used.
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

/// The reason why a page could not be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// No frame was free.
    #[error("no memory: {0}")]
    NoMemory(#[from] AllocError),
    /// The address is already mapped or not canonical, or there are no more page tables.
    #[error("nothing can be mapped at {0:#x}")]
    Refused(u64),
}

/// The owner of the simulated MMU's page tables: it takes arrays for new tables, which are never
/// freed, and records the run that was unmapped.
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
    fn new(machine: &'m Hosted, mmu: &'m Mmu) -> Self {
        AddressSpace { machine, mmu }
    }

    /// Maps the page of this address to a frame of zeros.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(self, address: u64) -> Result<(), MapError> {
        let virt = VirtRange::page(address);
        let mapped = &mut *self.mmu.mapped();
        let frame = self.machine.frames().alloc(AllocRequest::frames(1).movable())?.into_raw();
        // SAFETY: the frame was just allocated.
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

    /// Unmaps the page of this address, if it is mapped, and frees its frame.
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

    /// Reads the word that contains this address. Returns `None` if the page is not mapped.
    #[must_use]
    pub fn read(self, address: u64) -> Option<u64> {
        self.access(address, Flags::ACCESSED, |word| word.load(Relaxed))
    }

    /// Adds `n` to the word at this address and returns the sum. The addition is not atomic: one of
    /// two concurrent additions may be lost.
    #[expect(clippy::must_use_candidate, reason = "it is called for the write")]
    pub fn add(self, address: u64, n: u64) -> Option<u64> {
        self.access(address, Flags::USED, |word| {
            let sum = word.load(Relaxed).wrapping_add(n);
            word.store(sum, Relaxed);
            sum
        })
    }

    /// Returns whether the page of this address was written to since the last call for it.
    #[must_use]
    pub fn take_dirty(self, address: u64) -> bool {
        let _lock = self.mmu.mapped();
        let Some(word) = self.mmu.slot(address).and_then(|slot| self.mmu.word(slot.at)) else {
            return false;
        };
        let before = word.fetch_and(!Flags::USED.bits(), Relaxed);
        // Wait for the accesses that set Dirty before it was cleared: they have not necessarily
        // written yet.
        drop(self.mmu.accessing.write().unwrap_or_else(PoisonError::into_inner));
        Entry::from_bits(before).flags().contains(Flags::DIRTY)
    }

    /// Returns the size of all pages that were migrated so far.
    #[must_use]
    pub fn moved(self) -> Bytes {
        self.mmu.mapped().moved
    }

    /// Moves the pages on these frames, which lie in one pageblock, to other frames. Returns `None`
    /// if the frames hold no page of this address space.
    fn migrate(self, used: PfnRange) -> Option<Migration> {
        let mapped = &mut *self.mmu.mapped();
        let frames = used.chunks(1).take(PAGEBLOCK_FRAMES);
        let pages: Vec<(PfnRange, u64)> =
            frames.filter_map(|from| Some((from, *mapped.owners.get(&from.start())?))).collect();
        let frames = self.machine.frames();
        let node = frames.node_of(used.start()).unwrap_or_default();
        let elsewhere = AllocRequest::frames(1).movable().node(NodeChoice::Avoiding(node));
        let destination = || frames.alloc(elsewhere).map(Allocation::into_raw).ok();
        let moves: Vec<(PfnRange, u64, PfnRange)> =
            pages.iter().map_while(|&(from, page)| Some((from, page, destination()?))).collect();
        if moves.is_empty() {
            return pages.first().map(|_| Migration::Retry);
        }
        let tables = PageTables::new(self.mmu.native(), SPACE, &mut mapped.batch);
        let moved = tables.move_pages(moves.iter().map(|&(_, page, _)| page), |moving| {
            for (index, &(from, _, to)) in moves.iter().enumerate() {
                // SAFETY: both frames belong to the page, and no thread is accessing it.
                unsafe {
                    self.pointer(from.start())
                        .copy_to_nonoverlapping(self.pointer(to.start()), ENTRIES);
                }
                moving.place(index, to.start());
            }
        });
        match moved {
            Ok(()) => {}
            // The frames have owners in the table, so their pages are mapped.
            Err(MoveError::Refused(_)) => {
                moves.iter().for_each(|&(_, _, to)| self.free(to));
                return Some(Migration::Unmovable("its owner is not a page"));
            }
            Err(error @ MoveError::Hidden { .. }) => panic!("{error}: tables are never freed"),
        }
        for (from, page, to) in moves {
            mapped.owners.remove(&from.start());
            mapped.owners.insert(to.start(), page);
            mapped.moved = mapped.moved + Bytes(PAGE);
            self.free(from);
        }
        Some(Migration::Moved)
    }

    /// Accesses a word as a processor does: walks the page tables, sets the flags `used` in the
    /// entry, and calls `act` with the word. Returns the result of `act`, or `None` if the page is
    /// not mapped.
    fn access(self, address: u64, used: Flags, act: impl Fn(&AtomicU64) -> u64) -> Option<u64> {
        loop {
            let access = self.mmu.accessing.read().unwrap_or_else(PoisonError::into_inner);
            let Some(slot) = self.mmu.slot(address) else {
                // A page fault: the page is unmapped, or is being moved by the holder of the lock.
                drop(access);
                let _lock = self.mmu.mapped();
                self.mmu.slot(address)?;
                continue;
            };
            let (word, entry) = (self.mmu.word(slot.at)?, slot.entry);
            let marked = entry.with(used).bits();
            // If the entry has changed, the walk begins again.
            if word.compare_exchange(entry.bits(), marked, Relaxed, Relaxed).is_err() {
                continue;
            }
            let index = usize::try_from(address % PAGE / 8).ok()?;
            // SAFETY: the frame belongs to the page until a flush has waited for this access. The
            // words of a page are accessed atomically while the page is mapped.
            let word =
                unsafe { AtomicU64::from_ptr(self.pointer(entry.frame(slot.level)?).add(index)) };
            return Some(act(word));
        }
    }

    fn pointer(self, frame: Pfn) -> *mut u64 {
        self.machine.address_of(frame).map_or(std::ptr::null_mut(), NonNull::as_ptr).cast()
    }

    fn free(self, frame: PfnRange) {
        // SAFETY: `map` or `migrate` allocated the frame, no entry maps it any more, and it is
        // freed once.
        let _ = unsafe { self.machine.frames().free_raw(frame) };
    }
}

impl Hosted {
    /// Returns the machine's only address space, on a simulated MMU whose page tables are arrays of
    /// this process.
    #[must_use]
    pub fn address_space(&self) -> AddressSpace<'_> {
        AddressSpace::new(self, self.mmu.get_or_init(Mmu::new))
    }

    /// Returns hooks that migrate the pages of the machine's address space.
    #[must_use]
    pub fn hooks(&self) -> HostKernel<'_> {
        HostKernel { machine: self }
    }
}

/// The hooks of a hosted machine, which migrate the pages of its address space.
#[derive(Clone, Copy)]
pub struct HostKernel<'m> {
    machine: &'m Hosted,
}

impl Hooks for HostKernel<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        let mmu = self.machine.mmu.get();
        mmu.and_then(|mmu| AddressSpace::new(self.machine, mmu).migrate(used))
            .unwrap_or(Migration::Unmovable("behind no virtual address"))
    }
}

#[cfg(test)]
mod tests;
