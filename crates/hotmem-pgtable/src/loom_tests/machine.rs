//! A simulated machine: page tables, pages, and a processor that walks the tables as the hardware
//! does.

use crate::x86_64::{Entry, Flags};
use crate::{AtomicU64, Kind, Level, Table, Tables};
use hotmem_addr::Pfn;
use loom::sync::{Mutex, atomic::Ordering};

/// A small machine: tables of eight entries in frames 1 to 3, and the pages that they map.
pub(super) struct Machine {
    pub(super) tables: [Table; 3],
    /// The number of writes to each of the frames 8 to 10.
    pub(super) pages: [AtomicU64; 3],
    /// The other processor's TLB: the level of the page whose translation it caches. The processor
    /// holds the lock during an access, so that a flush waits for the end of the access.
    tlb: Mutex<Option<Level>>,
}

/// The flags of a link, and of a page that is writable and was accessed.
pub(super) const WRITABLE: Flags = Flags::PRESENT.union(Flags::WRITABLE).union(Flags::ACCESSED);

pub(super) fn pfn(number: u64) -> Pfn {
    Pfn::new(number).unwrap()
}

impl Machine {
    pub(super) fn new(entries: [Entry; 3]) -> Machine {
        let table = |first: Entry| -> Table {
            std::array::from_fn(|index| AtomicU64::new(if index == 0 { first.bits() } else { 0 }))
        };
        let pages = std::array::from_fn(|_| AtomicU64::new(0));
        Machine { tables: entries.map(table), pages, tlb: Mutex::new(None) }
    }

    pub(super) fn page(&self, frame: Pfn) -> &AtomicU64 {
        let index = usize::try_from(frame.number()).unwrap() - 8;
        &self.pages[index]
    }

    pub(super) fn l1_entry(&self) -> Entry {
        Entry::from_bits(self.tables[1][0].load(Ordering::Relaxed))
    }

    /// Writes to page 0 as a processor does: walks the tables, sets Dirty in the page's entry by a
    /// compare-exchange if it is clear, and increments the page's counter. If the compare-exchange
    /// fails, walks the tables again. Returns whether it wrote.
    pub(super) fn write(&self) -> bool {
        self.write_from(0)
    }

    /// Writes as [`write`](Self::write) does, by the root with this index in `tables`.
    pub(super) fn write_from(&self, root: usize) -> bool {
        let _access = self.tlb.lock().unwrap();
        let mut level = Level::L2;
        let mut table = &self.tables[root];
        loop {
            let bits = table[0].load(Ordering::Acquire);
            let entry = Entry::from_bits(bits);
            match entry.kind(level) {
                Kind::Table(below) => {
                    table = Tables::table(&self, below).unwrap();
                    level = level.below().unwrap();
                }
                Kind::Page if entry.flags().contains(Flags::WRITABLE) => {
                    let dirty = entry.with(Flags::DIRTY).bits();
                    let order = Ordering::Relaxed;
                    if bits == dirty || table[0].compare_exchange(bits, dirty, order, order).is_ok()
                    {
                        let page = self.page(entry.frame(level).unwrap());
                        page.store(page.load(order) + 1, order);
                        return true;
                    }
                    (level, table) = (Level::L2, &self.tables[root]);
                }
                _ => return false,
            }
        }
    }

    /// Reads page 0. The TLB caches the translation. It must not already cache a translation of
    /// another page size.
    pub(super) fn read(&self) {
        let mut cached_level = self.tlb.lock().unwrap();
        let (mut level, mut table) = (Level::L2, &self.tables[0]);
        loop {
            let entry = Entry::from_bits(table[0].load(Ordering::Acquire));
            match entry.kind(level) {
                Kind::Table(below) => {
                    table = Tables::table(&self, below).unwrap();
                    level = level.below().unwrap();
                }
                Kind::Page => break,
                _ => return,
            }
        }
        assert_eq!(
            *cached_level.get_or_insert(level),
            level,
            "the TLB caches pages of two sizes for one address"
        );
    }

    /// Flushes the TLB, as the handler of a flush interrupt does.
    pub(super) fn flush(&self) {
        *self.tlb.lock().unwrap() = None;
    }
}

impl Tables for &Machine {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let index = usize::try_from(frame.number()).ok()?.checked_sub(1)?;
        self.tables.get(index)
    }
}
