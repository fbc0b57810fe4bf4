//! The simulated MMU of a hosted machine. Its page tables are arrays in this process. Each access
//! by a virtual address walks the tables and sets the Accessed and Dirty flags of the entry, as a
//! processor does.
//!
//! An access holds `access_lock` for reading, and a TLB flush takes `access_lock` for writing. So a
//! flush waits until the accesses that began before it have ended. An access to a page that is
//! being migrated finds no entry, which is a page fault. The thread then waits for the lock of
//! `mapped`, which the migration holds.

use hotmem::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{Batch, LocatedEntry, Space};
use hotmem_pgtable::{
    AtomicU64, ENTRIES, EntryAddr, Flush, Kind, Level, Native, Table, Tables, find_entry,
};
use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

pub(super) const PAGE_BYTES: u64 = Level::L1.entry_span().0;
/// The number of page tables, with the root. They suffice to map 8 GiB of contiguous pages.
pub(super) const MAX_TABLES: usize = 5000;
pub(super) const SPACE: Space = Space::new(Pfn::ZERO, Level::L4);

/// A machine's MMU, with one address space.
pub(super) struct Mmu {
    pub(super) tables: TableArrays,
    /// Held for reading during an access, and taken for writing by a flush.
    pub(super) access_lock: RwLock<()>,
    /// Locked while entries are changed. A thread with a page fault takes this lock to wait for a
    /// migration of the page.
    mapped: Mutex<MappedPages>,
}

/// Page tables. The frame number of a table is its index in `tables`, and not a frame of the
/// machine.
pub(super) struct TableArrays {
    tables: Vec<OnceLock<Box<Table>>>,
    used_tables: AtomicUsize,
}

/// The mapped pages.
pub(super) struct MappedPages {
    /// The reverse map: the virtual address of the page in each frame.
    pub(super) addresses: HashMap<Pfn, u64>,
    pub(super) batch: Box<Batch>,
    /// The size of all pages that were migrated.
    pub(super) migrated_bytes: Bytes,
}

impl Mmu {
    pub(super) fn new() -> Mmu {
        let tables = (0..MAX_TABLES).map(|_| OnceLock::new()).collect();
        let tables = TableArrays { tables, used_tables: AtomicUsize::new(0) };
        // The root, which is table 0.
        tables.allocate();
        let mapped = MappedPages {
            addresses: HashMap::new(),
            batch: Box::default(),
            migrated_bytes: Bytes::ZERO,
        };
        Mmu { tables, access_lock: RwLock::new(()), mapped: Mutex::new(mapped) }
    }

    pub(super) fn native(&self) -> Native<&TableArrays, impl FnMut(Flush) + '_> {
        // A flush waits until all accesses that have begun have ended.
        Native::new(&self.tables, |_| {
            drop(self.access_lock.write().unwrap_or_else(PoisonError::into_inner));
        })
    }

    /// Locks the mapped pages. Whoever changes mappings, or migrates pages, holds this lock.
    pub(super) fn lock_mapped_pages(&self) -> MutexGuard<'_, MappedPages> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entry that maps the page at `address`, if it is mapped.
    pub(super) fn located_entry(&self, address: u64) -> Option<LocatedEntry> {
        find_entry(&self.native(), SPACE, address)
            .ok()
            .filter(|located| located.kind() == Kind::Page)
    }

    pub(super) fn word(&self, addr: EntryAddr) -> Option<&AtomicU64> {
        Some(&self.tables.get(addr.table())?[addr.index()])
    }
}

impl TableArrays {
    /// Returns an empty table, or `None` if all tables are used.
    pub(super) fn allocate(&self) -> Option<Pfn> {
        let number = self.used_tables.fetch_add(1, Relaxed);
        self.tables.get(number)?.get_or_init(|| Box::new([const { AtomicU64::new(0) }; ENTRIES]));
        Pfn::new(number as u64)
    }

    fn get(&self, frame: Pfn) -> Option<&Table> {
        self.tables.get(usize::try_from(frame.number()).ok()?)?.get().map(Box::as_ref)
    }
}

impl Tables for &TableArrays {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.get(frame)
    }
}
