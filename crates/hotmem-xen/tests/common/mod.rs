//! A model of what Xen makes of updates of page tables: `xen/arch/x86/mm.c` as of 4.17, as far as
//! a guest can tell. It counts what costs: hypercalls, and flushes of all the domain's CPUs.
#![allow(dead_code, reason = "each test uses a part of it")]

use hotmem::Pfn;
use hotmem_pgtable::{
    AtomicU64, ENTRIES, Entry, EntryAddr, Flags, Kind, Level, Owner, Run, Space, Table, Tables,
    entry_at,
};
use hotmem_xen::{DomId, Errno, Hypervisor, MachineTables, MmuExtOp, MmuUpdate, Partly};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// The domain has the frames `FIRST..FIRST + frames`; the first of them hold its direct map.
pub(crate) const FIRST: u64 = 0x100;

/// What Xen knows of a frame.
#[derive(Clone, Copy, Default)]
struct Page {
    /// A table of this level, used so often, pins included.
    table: Option<(Level, u32)>,
    pinned: bool,
    /// Mapped writable so often.
    writable: u32,
    /// The flush clock when it was last in use as what it was.
    stamp: u64,
}

/// Called before each update.
type OtherCpu = Box<dyn FnMut(&Xen)>;

pub(crate) struct Xen {
    words: Vec<Table>,
    pages: RefCell<Vec<Page>>,
    free: RefCell<BTreeSet<u64>>,
    clock: Cell<u64>,
    flushed: Cell<u64>,
    /// Flushes that all the domain's CPUs took part in.
    pub(crate) flushes: Cell<u64>,
    pub(crate) hypercalls: Cell<u64>,
    /// Updates and operations that are done before one is refused.
    pub(crate) refuse_after: Cell<Option<u64>>,
    /// Another CPU, which uses what is mapped at any time it likes.
    pub(crate) other_cpu: RefCell<Option<OtherCpu>>,
}

impl Xen {
    pub(crate) fn new(frames: u64) -> Xen {
        let table = || std::array::from_fn(|_| AtomicU64::new(0xdead_d001));
        let xen = Xen {
            words: (0..frames).map(|_| table()).collect(),
            pages: RefCell::new(vec![Page::default(); usize::try_from(frames).unwrap()]),
            free: RefCell::new((0..frames).collect()),
            clock: Cell::new(1),
            flushed: Cell::new(1),
            flushes: Cell::new(0),
            hypercalls: Cell::new(0),
            refuse_after: Cell::new(None),
            other_cpu: RefCell::new(None),
        };
        let map_tables = frames.div_ceil(ENTRIES as u64);
        for number in 0..map_tables * ENTRIES as u64 {
            let (table, index) = (number / ENTRIES as u64, number % ENTRIES as u64);
            xen.free.borrow_mut().remove(&table);
            let writable = if number < map_tables { Flags::empty() } else { Flags::WRITABLE };
            let frame = Pfn::new(FIRST + number).unwrap();
            let entry = Entry::new(frame, Flags::PRESENT | Flags::USED | writable);
            let entry = if number < frames { entry } else { Entry::EMPTY };
            let (table, index) = (usize::try_from(table).unwrap(), usize::try_from(index).unwrap());
            xen.words[table][index].store(entry.bits(), Relaxed);
        }
        for table in 0..map_tables {
            xen.get_table(Pfn::new(FIRST + table).unwrap(), Level::L1).unwrap();
        }
        xen
    }

    /// A frame of the domain's that nobody uses.
    pub(crate) fn frame(&self) -> Pfn {
        let frame = self.free.borrow_mut().pop_first().expect("enough frames");
        Pfn::new(FIRST + frame).unwrap()
    }

    pub(crate) fn free(&self, frame: Pfn) {
        let page = self.page(frame).unwrap();
        assert!(page.table.is_none() && page.writable > 0, "freed, but not ordinary memory");
        assert!(self.free.borrow_mut().insert(frame.number() - FIRST), "freed twice");
        self.words(frame).iter().for_each(|word| word.store(0xdead_d001, Relaxed));
    }

    pub(crate) fn in_use(&self) -> usize {
        self.words.len() - self.free.borrow().len()
    }

    /// An empty frame that nothing maps writable any more: it can become a table.
    pub(crate) fn new_table(&self) -> Pfn {
        let frame = self.frame();
        self.words(frame).iter().for_each(|word| word.store(0, Relaxed));
        self.set_window(frame, false);
        frame
    }

    pub(crate) fn set_window(&self, frame: Pfn, writable: bool) {
        let (at, entry) = (&self).window(frame).unwrap();
        let bits = entry.bits() & !Flags::WRITABLE.bits();
        let flag = if writable { Flags::WRITABLE } else { Flags::empty() };
        self.update_entry(at, Entry::from_bits(bits).with(flag), false).unwrap();
    }

    /// A pinned root, as PV has it: four levels.
    pub(crate) fn new_space(&self) -> Space {
        let root = self.new_table();
        self.ext(MmuExtOp::pin(Level::L4, root)).unwrap();
        Space { root, levels: Level::L4 }
    }

    /// Maps a page, with the tables that it takes, as a kernel would; whether there was room.
    pub(crate) fn put(&self, space: Space, virt: u64, entry: Entry, pins_l1: bool) -> bool {
        let (mut table, mut level) = (space.root, space.levels);
        loop {
            let bytes = level.entry_bytes().0;
            let at = EntryAddr::new(table, usize::try_from(virt / bytes).unwrap() % ENTRIES);
            let there = self.entry(at);
            match (there.kind(level), level.below()) {
                (Kind::Empty, None) => {
                    self.update_entry(at, entry, false).unwrap();
                    return true;
                }
                (_, None) => return false,
                (Kind::Table(below), Some(next)) => (table, level) = (below, next),
                (_, Some(next)) => {
                    let below = self.new_table();
                    if pins_l1 && next == Level::L1 {
                        self.ext(MmuExtOp::pin(next, below)).unwrap();
                    }
                    let link = Entry::new(below, Flags::PRESENT | Flags::WRITABLE | Flags::USER);
                    self.update_entry(at, link, false).unwrap();
                    (table, level) = (below, next);
                }
            }
        }
    }

    /// The entry that maps this address, if there is one.
    pub(crate) fn find(&self, space: Space, virt: u64) -> Option<EntryAddr> {
        let (mut table, mut level) = (space.root, space.levels);
        loop {
            let bytes = level.entry_bytes().0;
            let at = EntryAddr::new(table, usize::try_from(virt / bytes).unwrap() % ENTRIES);
            let Some(below) = level.below() else { return Some(at) };
            let Kind::Table(next) = self.entry(at).kind(level) else { return None };
            (table, level) = (next, below);
        }
    }

    /// What the processor does when it writes by this entry; whether it could.
    pub(crate) fn write_by(&self, at: EntryAddr) -> bool {
        let entry = self.entry(at);
        if entry.flags().contains(Flags::PRESENT | Flags::WRITABLE) {
            self.words(at.table())[at.index()].fetch_or(Flags::USED.bits(), Relaxed);
            return true;
        }
        false
    }

    pub(crate) fn entry(&self, at: EntryAddr) -> Entry {
        entry_at(self.words(at.table()), at.index())
    }

    fn words(&self, frame: Pfn) -> &Table {
        &self.words[usize::try_from(frame.number() - FIRST).unwrap()]
    }

    fn page(&self, frame: Pfn) -> Result<Page, Errno> {
        let index = frame.number().checked_sub(FIRST).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.pages.borrow().get(index).copied()).ok_or(Errno::EPERM)
    }

    fn set_page(&self, frame: Pfn, page: Page) {
        self.pages.borrow_mut()[usize::try_from(frame.number() - FIRST).unwrap()] = page;
    }

    pub(crate) fn is_table(&self, frame: Pfn) -> bool {
        self.page(frame).is_ok_and(|page| page.table.is_some())
    }

    fn flush(&self) {
        self.clock.set(self.clock.get() + 1);
        self.flushed.set(self.clock.get());
        self.flushes.set(self.flushes.get() + 1);
    }

    /// A frame changes from table to memory or back: nobody may remember what it was.
    fn flush_for(&self, page: Page) {
        if self.flushed.get() <= page.stamp {
            self.flush();
        }
    }

    /// `get_page_type`: one more use as a table.
    fn get_table(&self, frame: Pfn, level: Level) -> Result<(), Errno> {
        let mut page = self.page(frame)?;
        match page.table {
            Some((of, count)) if of == level => page.table = Some((of, count + 1)),
            Some(_) => return Err(Errno::EINVAL),
            None if page.writable > 0 => return Err(Errno::EBUSY),
            None => {
                self.flush_for(page);
                for index in 0..ENTRIES {
                    self.get_entry(entry_at(self.words(frame), index), level)?;
                }
                page.table = Some((level, 1));
            }
        }
        self.set_page(frame, page);
        Ok(())
    }

    /// `put_page_type`: one use as a table less; the last takes back what its entries use.
    fn put_table(&self, frame: Pfn) {
        let mut page = self.page(frame).expect("a table");
        let (level, count) = page.table.expect("a table");
        page.table = (count > 1).then_some((level, count - 1));
        page.stamp = self.clock.get();
        self.set_page(frame, page);
        if count == 1 {
            (0..ENTRIES).for_each(|index| {
                self.put_entry(entry_at(self.words(frame), index), level);
            });
        }
    }

    fn get_entry(&self, entry: Entry, level: Level) -> Result<(), Errno> {
        match entry.kind(level) {
            Kind::Table(frame) => self.get_table(frame, level.below().unwrap()),
            Kind::Page if level == Level::L1 => {
                let frame = entry.frame(level).ok_or(Errno::EINVAL)?;
                let mut page = self.page(frame)?;
                if entry.flags().contains(Flags::WRITABLE) {
                    if page.table.is_some() {
                        return Err(Errno::EBUSY);
                    }
                    if page.writable == 0 {
                        self.flush_for(page);
                    }
                    page.writable += 1;
                    self.set_page(frame, page);
                }
                Ok(())
            }
            Kind::Page | Kind::Malformed => Err(Errno::EINVAL),
            Kind::Software if entry.bits() >> 12 << 12 & 0xf_ffff_ffff_f000 != 0 => {
                panic!("L1 terminal fault: Xen would crash the domain for {entry:?}")
            }
            Kind::Software | Kind::Empty => Ok(()),
        }
    }

    fn put_entry(&self, entry: Entry, level: Level) {
        match entry.kind(level) {
            Kind::Table(frame) => self.put_table(frame),
            Kind::Page if entry.flags().contains(Flags::WRITABLE) => {
                let frame = entry.frame(level).expect("a page");
                let mut page = self.page(frame).expect("the domain's");
                page.writable -= 1;
                page.stamp = self.clock.get();
                self.set_page(frame, page);
            }
            _ => {}
        }
    }

    fn update_entry(&self, at: EntryAddr, value: Entry, preserve: bool) -> Result<(), Errno> {
        if let Some(other) = self.other_cpu.borrow_mut().as_mut() {
            other(self);
        }
        let page = self.page(at.table())?;
        let word = &self.words(at.table())[at.index()];
        let Some((level, _)) = page.table else {
            if page.writable == 0 {
                return Err(Errno::EINVAL);
            }
            word.store(value.bits(), Relaxed);
            return Ok(());
        };
        self.get_entry(value, level)?;
        let old = self.entry(at);
        let kept = if preserve { old.flags() & Flags::USED } else { Flags::empty() };
        word.store(value.with(kept).bits(), Relaxed);
        self.put_entry(old, level);
        if level != Level::L1 && old.is_present() {
            self.flush();
        }
        Ok(())
    }

    fn may_go_on(&self) -> Result<(), Errno> {
        match self.refuse_after.get() {
            Some(0) => Err(Errno::EINVAL),
            left => {
                self.refuse_after.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    fn ext(&self, op: MmuExtOp) -> Result<(), Errno> {
        let (command, argument) = op.parts();
        match command {
            0..=3 => {
                let level = [Level::L1, Level::L2, Level::L3, Level::L4][command as usize];
                let frame = Pfn::new(argument).ok_or(Errno::EINVAL)?;
                if self.page(frame)?.pinned {
                    return Err(Errno::EINVAL);
                }
                self.get_table(frame, level)?;
                self.set_page(frame, Page { pinned: true, ..self.page(frame)? });
            }
            4 => {
                let frame = Pfn::new(argument).ok_or(Errno::EINVAL)?;
                let page = self.page(frame)?;
                if !page.pinned {
                    return Err(Errno::EINVAL);
                }
                self.set_page(frame, Page { pinned: false, ..page });
                self.put_table(frame);
            }
            10 | 11 => self.flush(),
            other => panic!("operation {other} is not modelled"),
        }
        Ok(())
    }

    fn all<T>(&self, items: &[T], each: impl Fn(&T) -> Result<(), Errno>) -> Result<(), Partly> {
        for (done, item) in items.iter().enumerate() {
            self.may_go_on().and_then(|()| each(item)).map_err(|errno| Partly { done, errno })?;
        }
        Ok(())
    }

    pub(crate) fn updates(&self, updates: &[MmuUpdate]) -> Result<(), Partly> {
        assert!(!updates.is_empty(), "a hypercall for nothing");
        self.all(updates, |update| {
            let (address, command) = update.target();
            let table = Pfn::containing(address).ok_or(Errno::EINVAL)?;
            let index = usize::try_from(address >> 3).unwrap() % ENTRIES;
            assert!([0, 2].contains(&command), "command {command} is not modelled");
            self.update_entry(EntryAddr::new(table, index), update.value(), command == 2)
        })
    }
}

impl Hypervisor for &Xen {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), Partly> {
        assert_eq!(owner, DomId::SELF);
        self.hypercalls.set(self.hypercalls.get() + 1);
        self.updates(updates)
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), Partly> {
        self.hypercalls.set(self.hypercalls.get() + 1);
        self.all(ops, |op| self.ext(*op))
    }

    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), Partly>, Result<(), Partly>) {
        self.hypercalls.set(self.hypercalls.get() + 1);
        (self.all(ops, |op| self.ext(*op)), self.updates(updates))
    }
}

impl Tables for &Xen {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let index = usize::try_from(frame.number().checked_sub(FIRST)?).ok()?;
        let is_free = self.free.borrow().contains(&(index as u64));
        self.words.get(index).filter(|_| !is_free)
    }
}

impl MachineTables for &Xen {
    fn window(&self, frame: Pfn) -> Option<(EntryAddr, Entry)> {
        let index = usize::try_from(frame.number().checked_sub(FIRST)?).ok()?;
        let table = Pfn::new(FIRST + (index / ENTRIES) as u64)?;
        let at = EntryAddr::new(table, index % ENTRIES);
        (index < self.words.len()).then(|| (at, self.entry(at)))
    }
}

/// Takes notes.
pub(crate) struct Notes<'x> {
    pub(crate) xen: &'x Xen,
    pub(crate) runs: Vec<Run>,
    pub(crate) freed: usize,
    pub(crate) stuck: usize,
}

impl Notes<'_> {
    pub(crate) fn new(xen: &Xen) -> Notes<'_> {
        Notes { xen, runs: Vec::new(), freed: 0, stuck: 0 }
    }

    /// What was told, page by page: the address and the entry.
    pub(crate) fn pages(&self) -> Vec<(u64, Entry)> {
        let pages = |run: &Run| {
            let run = *run;
            (0..run.virt.bytes().frames()).map(move |page| {
                let entry = Entry::from_bits(run.entry.bits() + (page << 12));
                (run.virt.start() + (page << 12), entry)
            })
        };
        self.runs.iter().flat_map(pages).collect()
    }
}

impl Owner for Notes<'_> {
    fn unmapped(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn free_table(&mut self, table: Pfn) {
        self.freed += 1;
        self.xen.free(table);
    }

    fn stuck_table(&mut self, _: Pfn) {
        self.stuck += 1;
    }
}
