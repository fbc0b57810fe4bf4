//! Models Xen's page table interface, as far as a guest can observe it. The model follows
//! `xen/arch/x86/mm.c` of Xen 4.17. It counts hypercalls, and flushes of all CPUs of the domain.
#![allow(dead_code, reason = "each test uses a part of the model")]

mod hypercalls;
mod page_types;
pub(crate) mod recording_owner;

use hotmem_addr::Pfn;
use hotmem_pgtable::x86_64::{Entry, Flags, Space};
use hotmem_pgtable::{AtomicU64, ENTRIES, EntryAddr, Kind, Level, Table, Tables, entry_at};
use hotmem_xen::{Errno, MachineTables, MmuExtOp};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// The domain has the frames `FIRST_FRAME..FIRST_FRAME + frames`. The first of them hold its direct
/// map.
pub(crate) const FIRST_FRAME: u64 = 0x100;

/// The contents of free frames.
const FREED_WORD: u64 = 0xdead_d001;

/// Xen's state of a frame.
#[derive(Clone, Copy, Default)]
struct Page {
    /// If the frame is a table, its level and the number of its uses, pins included.
    table: Option<(Level, u32)>,
    is_pinned: bool,
    /// The number of writable mappings.
    writable_mappings: u32,
    /// The value of the clock at the end of the last use.
    last_use: u64,
}

/// A function that does what another CPU does before an update.
type OtherCpu = Box<dyn FnMut(&Xen)>;

/// The hypervisor and the memory of its only domain.
pub(crate) struct Xen {
    words: Vec<Table>,
    pages: RefCell<Vec<Page>>,
    free_frames: RefCell<BTreeSet<u64>>,
    /// The number of flushes so far, counted from 1.
    clock: Cell<u64>,
    /// The value of the clock at the last flush.
    last_flush: Cell<u64>,
    /// The number of flushes of all the domain's CPUs.
    pub(crate) flushes: Cell<u64>,
    pub(crate) hypercalls: Cell<u64>,
    /// Whether a lockless page walk of the kernel may be in a table that was unhooked.
    may_be_walked: Cell<bool>,
    /// The number of updates and operations that succeed before the first one is refused.
    pub(crate) refuse_after: Cell<Option<u64>>,
    /// The number of updates and operations to refuse after that.
    pub(crate) refusals: Cell<u64>,
    /// The roots that the CPU uses in kernel mode and in user mode.
    roots: Cell<[Option<Pfn>; 2]>,
    /// Another CPU, which may access mapped pages before each update.
    pub(crate) other_cpu: RefCell<Option<OtherCpu>>,
}

impl Xen {
    pub(crate) fn new(frames: u64) -> Xen {
        let table = || std::array::from_fn(|_| AtomicU64::new(FREED_WORD));
        let xen = Xen {
            words: (0..frames).map(|_| table()).collect(),
            pages: RefCell::new(vec![Page::default(); usize::try_from(frames).unwrap()]),
            free_frames: RefCell::new((0..frames).collect()),
            clock: Cell::new(1),
            last_flush: Cell::new(1),
            flushes: Cell::new(0),
            hypercalls: Cell::new(0),
            may_be_walked: Cell::new(false),
            refuse_after: Cell::new(None),
            refusals: Cell::new(u64::MAX),
            roots: Cell::new([None; 2]),
            other_cpu: RefCell::new(None),
        };
        let direct_map_tables = frames.div_ceil(ENTRIES as u64);
        for number in 0..direct_map_tables * ENTRIES as u64 {
            let (table, index) = (number / ENTRIES as u64, number % ENTRIES as u64);
            xen.free_frames.borrow_mut().remove(&table);
            let writable =
                if number < direct_map_tables { Flags::empty() } else { Flags::WRITABLE };
            let frame = Pfn::new(FIRST_FRAME + number).unwrap();
            let entry = Entry::new(frame, Flags::PRESENT | Flags::ACCESSED_DIRTY | writable);
            let entry = if number < frames { entry } else { Entry::EMPTY };
            let (table, index) = (usize::try_from(table).unwrap(), usize::try_from(index).unwrap());
            xen.words[table][index].store(entry.bits(), Relaxed);
        }
        for table in 0..direct_map_tables {
            xen.count_table_use(Pfn::new(FIRST_FRAME + table).unwrap(), Level::L1).unwrap();
        }
        xen
    }

    /// Takes a free frame of the domain.
    pub(crate) fn take_frame(&self) -> Pfn {
        let frame = self.free_frames.borrow_mut().pop_first().expect("the domain has a free frame");
        Pfn::new(FIRST_FRAME + frame).unwrap()
    }

    pub(crate) fn free(&self, frame: Pfn) {
        let page = self.page(frame).unwrap();
        assert!(
            page.table.is_none() && page.writable_mappings > 0,
            "a freed frame is not ordinary memory"
        );
        assert!(!self.may_be_walked.get(), "a frame was freed during a lockless page walk");
        assert!(
            self.free_frames.borrow_mut().insert(frame.number() - FIRST_FRAME),
            "the frame was freed twice"
        );
        self.words(frame).iter().for_each(|word| word.store(FREED_WORD, Relaxed));
    }

    pub(crate) fn used_frames(&self) -> usize {
        self.words.len() - self.free_frames.borrow().len()
    }

    /// Makes an empty frame without writable mappings, which can become a table.
    pub(crate) fn new_table(&self) -> Pfn {
        let frame = self.take_frame();
        self.words(frame).iter().for_each(|word| word.store(0, Relaxed));
        self.set_writable(frame, false);
        frame
    }

    /// Sets whether the direct map maps the frame writable.
    pub(crate) fn set_writable(&self, frame: Pfn, writable: bool) {
        let (addr, entry) = (&self).direct_map_entry(frame).unwrap();
        let bits = entry.bits() & !Flags::WRITABLE.bits();
        let flag = if writable { Flags::WRITABLE } else { Flags::empty() };
        self.update_entry(addr, Entry::from_bits(bits).with(flag), false).unwrap();
    }

    /// Makes an address space with a pinned root of four levels.
    pub(crate) fn new_space(&self) -> Space {
        let root = self.new_table();
        self.do_operation(MmuExtOp::pin(Level::L4, root).unwrap()).unwrap();
        Space::new(root, Level::L4)
    }

    /// Makes an address space with a pinned root for the kernel and another for user mode.
    pub(crate) fn new_space_of_two_roots(&self) -> Space {
        let [kernel, user] = [self.new_space(), self.new_space()];
        kernel.with_user_root(user.root)
    }

    /// Stores the L1 entry for an address as a kernel does, and makes missing tables. Returns false
    /// if the entry is in use.
    pub(crate) fn put(&self, space: Space, virt: u64, entry: Entry, pins_l1: bool) -> bool {
        let (mut table, mut level) = (space.root, space.root_level);
        loop {
            let bytes = level.entry_span().0;
            let addr = EntryAddr::new(table, usize::try_from(virt / bytes).unwrap() % ENTRIES);
            let found = self.entry(addr);
            match (found.kind(level), level.below()) {
                (Kind::Empty, None) => {
                    self.update_entry(addr, entry, false).unwrap();
                    return true;
                }
                (_, None) => return false,
                (Kind::Table(below), Some(next)) => (table, level) = (below, next),
                (_, Some(next)) => {
                    let below = self.new_table();
                    if pins_l1 && next == Level::L1 {
                        self.do_operation(MmuExtOp::pin(next, below).unwrap()).unwrap();
                    }
                    let link = Entry::new(below, Flags::PRESENT | Flags::WRITABLE | Flags::USER);
                    self.update_entry(addr, link, false).unwrap();
                    if let Some(user) = space.user_root.filter(|_| table == space.root) {
                        self.update_entry(EntryAddr::new(user, addr.index()), link, false).unwrap();
                    }
                    (table, level) = (below, next);
                }
            }
        }
    }

    /// Returns the address of the L1 entry for an address, or `None` if there is no L1 table.
    pub(crate) fn find(&self, space: Space, virt: u64) -> Option<EntryAddr> {
        let (mut table, mut level) = (space.root, space.root_level);
        loop {
            let bytes = level.entry_span().0;
            let addr = EntryAddr::new(table, usize::try_from(virt / bytes).unwrap() % ENTRIES);
            let Some(below) = level.below() else { return Some(addr) };
            let Kind::Table(next) = self.entry(addr).kind(level) else { return None };
            (table, level) = (next, below);
        }
    }

    /// Writes to the page that this entry maps, as a processor does. Returns whether the entry allows
    /// writes.
    pub(crate) fn write_page(&self, addr: EntryAddr) -> bool {
        let entry = self.entry(addr);
        if entry.flags().contains(Flags::PRESENT | Flags::WRITABLE) {
            self.words(addr.table())[addr.index()].fetch_or(Flags::ACCESSED_DIRTY.bits(), Relaxed);
            return true;
        }
        false
    }

    pub(crate) fn entry(&self, addr: EntryAddr) -> Entry {
        entry_at(self.words(addr.table()), addr.index())
    }

    fn words(&self, frame: Pfn) -> &Table {
        &self.words[usize::try_from(frame.number() - FIRST_FRAME).unwrap()]
    }

    fn page(&self, frame: Pfn) -> Result<Page, Errno> {
        let index =
            frame.number().checked_sub(FIRST_FRAME).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.pages.borrow().get(index).copied()).ok_or(Errno::EINVAL)
    }

    fn set_page(&self, frame: Pfn, page: Page) {
        self.pages.borrow_mut()[usize::try_from(frame.number() - FIRST_FRAME).unwrap()] = page;
    }

    pub(crate) fn is_table(&self, frame: Pfn) -> bool {
        self.page(frame).is_ok_and(|page| page.table.is_some())
    }

    fn flush(&self) {
        self.clock.set(self.clock.get() + 1);
        self.last_flush.set(self.clock.get());
        self.flushes.set(self.flushes.get() + 1);
    }
}

impl Tables for &Xen {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let index = usize::try_from(frame.number().checked_sub(FIRST_FRAME)?).ok()?;
        let is_free = self.free_frames.borrow().contains(&(index as u64));
        self.words.get(index).filter(|_| !is_free)
    }
}

impl MachineTables for &Xen {
    fn direct_map_entry(&self, frame: Pfn) -> Option<(EntryAddr, Entry)> {
        let index = usize::try_from(frame.number().checked_sub(FIRST_FRAME)?).ok()?;
        let table = Pfn::new(FIRST_FRAME + (index / ENTRIES) as u64)?;
        let addr = EntryAddr::new(table, index % ENTRIES);
        (index < self.words.len()).then(|| (addr, self.entry(addr)))
    }

    fn grace_period(&self) {
        self.may_be_walked.set(false);
    }
}
