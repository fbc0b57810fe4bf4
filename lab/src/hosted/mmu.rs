//! The hosted machine's simulated MMU. Page tables are arrays in this process. Each read or write
//! by a virtual address walks them and sets Accessed and Dirty, as a processor does.
//!
//! A thread holds a lock during an access, and a flush takes the same lock, so a flush waits for
//! accesses. An access to a page that is being moved waits for the move, as in a page fault.

use hotmem::{Bytes, Pfn};
use hotmem_pgtable::{
    AtomicU64, Batch, ENTRIES, EntryAddr, Flush, Kind, Level, Native, Slot, Space, Table, Tables,
    slot_at,
};
use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

pub(super) const PAGE: u64 = Level::L1.entry_bytes().0;
/// The number of page tables, with the root: enough for 8 GiB of contiguous pages.
pub(super) const TABLES: usize = 5000;
pub(super) const SPACE: Space = Space::new(Pfn::ZERO, Level::L4);

/// A machine's MMU, with one address space.
pub(super) struct Mmu {
    pub(super) tables: Arrays,
    /// A thread holds it for reading during an access.
    pub(super) accessing: RwLock<()>,
    /// Guards the entries. A thread whose access faults locks it, and so waits for a move of the
    /// page.
    mapped: Mutex<Mapped>,
}

/// Page tables. Their frame numbers are indices of the arrays, and not frames of the machine.
pub(super) struct Arrays {
    all: Vec<OnceLock<Box<Table>>>,
    used: AtomicUsize,
}

/// The mapped pages.
pub(super) struct Mapped {
    /// The address of the page that each frame belongs to.
    pub(super) owners: HashMap<Pfn, u64>,
    pub(super) batch: Box<Batch>,
    pub(super) moved: Bytes,
}

impl Mmu {
    pub(super) fn new() -> Mmu {
        let all = (0..TABLES).map(|_| OnceLock::new()).collect();
        let tables = Arrays { all, used: AtomicUsize::new(0) };
        tables.take();
        let mapped = Mapped { owners: HashMap::new(), batch: Box::default(), moved: Bytes::ZERO };
        Mmu { tables, accessing: RwLock::new(()), mapped: Mutex::new(mapped) }
    }

    pub(super) fn native(&self) -> Native<&Arrays, impl FnMut(Flush) + '_> {
        // Waits for all accesses that have begun.
        Native::new(&self.tables, |_| {
            drop(self.accessing.write().unwrap_or_else(PoisonError::into_inner));
        })
    }

    pub(super) fn mapped(&self) -> MutexGuard<'_, Mapped> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn slot(&self, address: u64) -> Option<Slot> {
        slot_at(&self.native(), SPACE, address).ok().filter(|slot| slot.kind() == Kind::Page)
    }

    pub(super) fn word(&self, at: EntryAddr) -> Option<&AtomicU64> {
        Some(&self.tables.get(at.table())?[at.index()])
    }
}

impl Arrays {
    pub(super) fn take(&self) -> Option<Pfn> {
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
