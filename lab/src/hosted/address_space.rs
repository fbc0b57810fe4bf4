//! The virtual address space of a hosted machine, on its simulated MMU.

use super::Hosted;
use super::mmu::{Mmu, PAGE_BYTES, SPACE, TableArrays};
use hotmem::{
    AllocError, AllocRequest, Allocation, Bytes, Hooks, Migration, NodeChoice, Pfn, PfnRange,
    geometry::PAGEBLOCK_FRAMES,
};
use hotmem_pgtable::x86_64::{Entry, Flags, Format, MoveError, Run};
use hotmem_pgtable::{
    AtomicU64, CoveredTables, ENTRIES, Level, Owner, PageTables, Unmap, VirtRange,
};
use std::{
    ptr::NonNull,
    sync::{PoisonError, atomic::Ordering::Relaxed},
};

/// The address space of a hosted machine. Its pages can be migrated to other frames while threads
/// access them.
///
/// ```
/// # use hotmem::Bytes;
/// # use hotmem_lab::hosted::Hosted;
/// let machine = Hosted::builder().boot_memory(Bytes::mib(128)).build()?;
/// let mut hotplug = machine.boot()?;
/// let space = machine.address_space();
/// space.map(0x7000)?;
/// assert_eq!(space.add_to_word(0x7008, 5), Some(5));
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
    /// The address is already mapped or is not canonical, or all page tables are used.
    #[error("no page can be mapped at {0:#x}")]
    Refused(u64),
}

/// The owner of the simulated MMU's page tables. It allocates new tables, never frees a table, and
/// records the run that was unmapped.
struct TableOwner<'a> {
    tables: &'a TableArrays,
    unmapped_frame: Option<PfnRange>,
}

impl Owner<Format> for TableOwner<'_> {
    fn unmapped(&mut self, run: Run) {
        self.unmapped_frame = run.frames();
    }

    fn free_table(&mut self, _: Pfn) {}

    fn new_table(&mut self) -> Option<Pfn> {
        self.tables.allocate()
    }
}

impl<'m> AddressSpace<'m> {
    fn new(machine: &'m Hosted, mmu: &'m Mmu) -> Self {
        AddressSpace { machine, mmu }
    }

    /// Maps the page that contains `address` to a new frame, which is filled with zeros.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(self, address: u64) -> Result<(), MapError> {
        let virt = VirtRange::page(address);
        let mapped = &mut *self.mmu.lock_mapped_pages();
        let frame = self.machine.frames().alloc(AllocRequest::frames(1).movable())?.into_raw();
        // SAFETY: the frame was allocated above.
        unsafe { self.pointer(frame.start()).write_bytes(0, ENTRIES) };
        let entry = Entry::new(frame.start(), Flags::PRESENT | Flags::WRITABLE);
        let mut owner = TableOwner { tables: &self.mmu.tables, unmapped_frame: None };
        let mut tables = PageTables::new(self.mmu.native(), SPACE, &mut mapped.batch);
        match tables.map(Run { virt, entry, level: Level::L1 }, &mut owner) {
            Ok(_) => {
                mapped.addresses.insert(frame.start(), virt.start());
                Ok(())
            }
            Err(_) => {
                self.free(frame);
                Err(MapError::Refused(address))
            }
        }
    }

    /// Unmaps the page that contains `address`, if it is mapped, and frees its frame.
    pub fn unmap(self, address: u64) {
        let mapped = &mut *self.mmu.lock_mapped_pages();
        let mut owner = TableOwner { tables: &self.mmu.tables, unmapped_frame: None };
        let mut tables = PageTables::new(self.mmu.native(), SPACE, &mut mapped.batch);
        let options =
            Unmap { tables: CoveredTables::Keep, ignore_accessed_and_dirty: true, is_dying: false };
        let _ = tables.unmap_range(VirtRange::page(address), options, &mut owner);
        if let Some(frame) = owner.unmapped_frame {
            mapped.addresses.remove(&frame.start());
            self.free(frame);
        }
    }

    /// Reads the word that contains `address`. Returns `None` if the page is not mapped.
    #[must_use]
    pub fn read(self, address: u64) -> Option<u64> {
        self.access(address, Flags::ACCESSED, |word| word.load(Relaxed))
    }

    /// Adds `addend` to the word that contains `address` and returns the sum, or `None` if the page is
    /// not mapped. The addition is not atomic: one of two concurrent additions may be lost.
    #[expect(clippy::must_use_candidate, reason = "callers may need only the addition")]
    pub fn add_to_word(self, address: u64, addend: u64) -> Option<u64> {
        self.access(address, Flags::ACCESSED_DIRTY, |word| {
            let sum = word.load(Relaxed).wrapping_add(addend);
            word.store(sum, Relaxed);
            sum
        })
    }

    /// Clears the Accessed and Dirty flags of the page that contains `address`, and returns whether
    /// Dirty was set.
    #[must_use]
    pub fn take_dirty(self, address: u64) -> bool {
        let _lock = self.mmu.lock_mapped_pages();
        let Some(word) =
            self.mmu.located_entry(address).and_then(|located| self.mmu.word(located.addr))
        else {
            return false;
        };
        let old_entry = word.fetch_and(!Flags::ACCESSED_DIRTY.bits(), Relaxed);
        // An access that set Dirty before it was cleared may not have written yet. Wait until such
        // accesses have ended.
        drop(self.mmu.access_lock.write().unwrap_or_else(PoisonError::into_inner));
        Entry::from_bits(old_entry).flags().contains(Flags::DIRTY)
    }

    /// Returns the size of all pages that were migrated since the machine was built.
    #[must_use]
    pub fn migrated(self) -> Bytes {
        self.mmu.lock_mapped_pages().migrated_bytes
    }

    /// Moves the pages in the frames of `used`, which lie in one pageblock, to other frames.
    /// Returns `None` if the frames contain no page of this address space.
    fn migrate(self, used: PfnRange) -> Option<Migration> {
        let mapped = &mut *self.mmu.lock_mapped_pages();
        let frames = used.chunks(1).take(PAGEBLOCK_FRAMES);
        let pages: Vec<(PfnRange, u64)> =
            frames.filter_map(|from| Some((from, *mapped.addresses.get(&from.start())?))).collect();
        let frames = self.machine.frames();
        let node = frames.node_of(used.start()).unwrap_or_default();
        let request = AllocRequest::frames(1).movable().node(NodeChoice::Avoiding(node));
        let destination = || frames.alloc(request).map(Allocation::into_raw).ok();
        // The old frame, the address and the new frame of each page.
        let moves: Vec<(PfnRange, u64, PfnRange)> =
            pages.iter().map_while(|&(from, page)| Some((from, page, destination()?))).collect();
        if moves.is_empty() {
            return pages.first().map(|_| Migration::Retry);
        }
        let tables = PageTables::new(self.mmu.native(), SPACE, &mut mapped.batch);
        let moved = tables.move_pages(moves.iter().map(|&(_, page, _)| page), |moving| {
            for (index, &(from, _, to)) in moves.iter().enumerate() {
                // SAFETY: both frames belong to the page, and no thread accesses the page now.
                unsafe {
                    self.pointer(from.start())
                        .copy_to_nonoverlapping(self.pointer(to.start()), ENTRIES);
                }
                moving.place(index, to.start());
            }
        });
        match moved {
            Ok(()) => {}
            // `addresses` names only mapped pages, so this does not occur.
            Err(MoveError::Refused(_)) => {
                moves.iter().for_each(|&(_, _, to)| self.free(to));
                return Some(Migration::Unmovable("its page is not mapped"));
            }
            Err(error @ MoveError::NotPresent { .. }) => {
                panic!("{error}, but no table of this address space is ever unhooked")
            }
        }
        for (from, page, to) in moves {
            mapped.addresses.remove(&from.start());
            mapped.addresses.insert(to.start(), page);
            mapped.migrated_bytes = mapped.migrated_bytes + Bytes(PAGE_BYTES);
            self.free(from);
        }
        Some(Migration::Moved)
    }

    /// Accesses the word that contains `address` as a processor does: walks the page tables, sets
    /// `flags` in the entry, and calls `operation` with the word. Returns its result, or `None`
    /// if the page is not mapped.
    fn access(
        self,
        address: u64,
        flags: Flags,
        operation: impl Fn(&AtomicU64) -> u64,
    ) -> Option<u64> {
        loop {
            let access_guard = self.mmu.access_lock.read().unwrap_or_else(PoisonError::into_inner);
            let Some(located) = self.mmu.located_entry(address) else {
                // This is a page fault. The page is not mapped, or the thread that holds the lock
                // is migrating it.
                drop(access_guard);
                let _lock = self.mmu.lock_mapped_pages();
                self.mmu.located_entry(address)?;
                continue;
            };
            let (word, entry) = (self.mmu.word(located.addr)?, located.entry);
            let marked = entry.with(flags).bits();
            // If the entry has changed since it was read, walk the tables again.
            if word.compare_exchange(entry.bits(), marked, Relaxed, Relaxed).is_err() {
                continue;
            }
            let index = usize::try_from(address % PAGE_BYTES / 8).ok()?;
            // SAFETY: this thread holds `access_lock` for reading. A frame leaves its page only
            // after a flush has taken the lock for writing, so the frame still belongs to the page.
            // While the page is mapped, all accesses to its words are atomic.
            let word = unsafe {
                AtomicU64::from_ptr(self.pointer(entry.frame(located.level)?).add(index))
            };
            return Some(operation(word));
        }
    }

    fn pointer(self, frame: Pfn) -> *mut u64 {
        self.machine.address_of(frame).map_or(std::ptr::null_mut(), NonNull::as_ptr).cast()
    }

    fn free(self, frame: PfnRange) {
        // SAFETY: `map` or `migrate` allocated the frame, no entry maps it any more, and no other
        // call frees it.
        let _ = unsafe { self.machine.frames().free_raw(frame) };
    }
}

impl Hosted {
    /// Returns the machine's only address space.
    #[must_use]
    pub fn address_space(&self) -> AddressSpace<'_> {
        AddressSpace::new(self, self.mmu.get_or_init(Mmu::new))
    }

    /// Returns the machine's hooks, which migrate the pages of its address space.
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
            .unwrap_or(Migration::Unmovable("not a mapped page"))
    }
}

#[cfg(test)]
mod tests;
