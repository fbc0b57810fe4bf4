//! Address spaces for the measurements.

use super::memory::{FRAMES, Memory};
use super::stop::must;
use super::timed_hypercalls::TimedHypercalls;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use hotmem_addr::{Bytes, Pfn};
use hotmem_guest::to_usize;
use hotmem_pgtable::x86_64::{Batch, Entry, Flags, Format, Run, Space};
use hotmem_pgtable::{ENTRIES, EntryAddr, Level, Owner, PageTables, Table, VirtRange, entry_at};
use hotmem_xen::{
    Command, Config, DomId, GrantDetection, HypercallBuffer, Hypervisor, MachineTables, MmuExtOp,
    MmuUpdate, SyscallHypervisor, XenPv,
};

/// The address of the pages: the start of the third root entry.
pub(crate) const BASE: u64 = 2 << 39;
/// This kernel maps no grants.
pub(crate) const CONFIG: Config = Config::new(GrantDetection::assume_absent());
const PAGE_BYTES: Bytes = Bytes(4 << 10);

/// The number of frames for tables; the others are mapped as pages.
const TABLE_FRAMES: usize = FRAMES - super::writer_cpu::PAGES;

/// The kernel's state: frames for tables, and buffers for batches.
pub(crate) struct Kernel {
    pub(crate) memory: Memory,
    pub(crate) xen: TimedHypercalls,
    pub(crate) page_owner: PageOwner,
    batch: Batch,
    buffer: HypercallBuffer,
    updates: [MmuUpdate; ENTRIES],
    /// Entries that were read before they are cleared.
    pub(crate) entries_read: [Entry; ENTRIES],
}

/// Frames for tables, and the record of unmapped pages.
pub(crate) struct PageOwner {
    free_tables: [Pfn; TABLE_FRAMES],
    tables_left: usize,
    pub(crate) unmapped_counts: UnmappedCounts,
    /// Whether each page was unmapped dirty.
    pub(crate) dirty: [bool; super::writer_cpu::PAGES],
    /// The current run of pages that are added one by one.
    run: Option<Run>,
}

/// The counts of unmapped pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct UnmappedCounts {
    pub(crate) pages: u64,
    pub(crate) dirty: u64,
}

static mut KERNEL: core::mem::MaybeUninit<Kernel> = core::mem::MaybeUninit::uninit();

impl Kernel {
    /// # Safety
    /// This is called only one time.
    pub(crate) unsafe fn new(memory: Memory) -> &'static mut Kernel {
        let kernel = (&raw mut KERNEL).cast::<Kernel>();
        // SAFETY: nothing else uses the static, because the caller guarantees that this is the
        // only call. The static is written field by field, because it is too large for the stack.
        unsafe {
            (&raw mut (*kernel).memory).write(memory);
            (&raw mut (*kernel).xen).write(TimedHypercalls::new(SyscallHypervisor::new()));
            (&raw mut (*kernel).page_owner.free_tables).write([Pfn::ZERO; TABLE_FRAMES]);
            (&raw mut (*kernel).page_owner.tables_left).write(0);
            (&raw mut (*kernel).page_owner.unmapped_counts).write(UnmappedCounts::default());
            (&raw mut (*kernel).page_owner.run).write(None);
            (&raw mut (*kernel).page_owner.dirty).write([false; super::writer_cpu::PAGES]);
            (&raw mut (*kernel).batch).write(Batch::new());
            (&raw mut (*kernel).buffer).write(HypercallBuffer::new());
            (&raw mut (*kernel).updates).write([MmuUpdate::NONE; ENTRIES]);
            (&raw mut (*kernel).entries_read).write([Entry::EMPTY; ENTRIES]);
            for number in 0..TABLE_FRAMES {
                (*kernel).page_owner.free_table(memory.frame(number));
            }
            &mut *kernel
        }
    }

    /// Returns a frame whose contents do not matter.
    pub(crate) fn page(&self, number: usize) -> Pfn {
        self.memory.frame(TABLE_FRAMES + number % super::writer_cpu::PAGES)
    }

    /// Returns the page tables of an address space.
    pub(crate) fn tables(
        &mut self,
        space: Space,
        config: Config,
    ) -> (PageTables<'_, XenPv<'_, &mut TimedHypercalls, Memory>>, &mut PageOwner) {
        let machine = XenPv::new(&mut self.xen, self.memory, config, &mut self.buffer);
        (PageTables::new(machine, space, &mut self.batch), &mut self.page_owner)
    }

    /// Makes Xen change entries, `batch` at a time.
    pub(crate) fn update(
        &mut self,
        updates: impl Iterator<Item = MmuUpdate>,
        owner: DomId,
        batch: usize,
    ) {
        let mut updates = updates.peekable();
        while updates.peek().is_some() {
            let mut count = 0;
            for (entry, update) in self.updates.iter_mut().take(batch).zip(&mut updates) {
                *entry = update;
                count += 1;
            }
            let result = self.xen.mmu_update(&self.updates[..count], owner);
            must("mmu_update", result.map_err(|refused| refused.errno));
        }
    }

    /// Makes Xen perform an extended operation on page tables.
    pub(crate) fn ext(&mut self, op: MmuExtOp) {
        must("mmuext_op", self.xen.mmuext_op(&[op]).map_err(|refused| refused.errno));
    }

    fn pin(&mut self, level: Level, table: Pfn) {
        match MmuExtOp::pin(level, table) {
            Some(op) => self.ext(op),
            None => super::stop::give_up("a table of level 5"),
        }
    }

    /// Returns an empty frame.
    fn table(&mut self) -> Pfn {
        let Some(frame) = self.page_owner.take() else {
            super::stop::give_up("no frame for a table")
        };
        if let Some(words) = self.memory.words(frame) {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
        frame
    }

    /// Makes a frame read-only, as a table must be, or writable.
    pub(crate) fn set_writable(&mut self, frame: Pfn, writable: bool) {
        let Some((at, entry)) = self.memory.direct_map_entry(frame) else {
            super::stop::give_up("a frame that is not mapped")
        };
        let bits = entry.bits() & !Flags::WRITABLE.bits();
        let flag = if writable { Flags::WRITABLE } else { Flags::empty() };
        let update = MmuUpdate::new(at, Command::Normal, Entry::from_bits(bits).with(flag));
        self.update([update].into_iter(), DomId::SELF, 1);
    }

    /// Writes an entry of a frame that is not a table yet.
    fn write(&self, table: Pfn, index: usize, entry: Entry) {
        if let Some(words) = self.memory.words(table) {
            words[index % ENTRIES].store(entry.bits(), Relaxed);
        }
    }

    /// Builds page tables for `pages` pages at [`BASE`], below two new roots, the kernel's and the
    /// user's, or below the kernel's current root. `entry` returns the entry of each page.
    pub(crate) fn build(
        &mut self,
        has_own_roots: bool,
        pins_l1: bool,
        pages: usize,
        entry: impl Fn(&Kernel, usize) -> Entry,
    ) -> Space {
        let link = |table| {
            Entry::new(table, Flags::PRESENT | Flags::WRITABLE | Flags::USER | Flags::ACCESSED)
        };
        let (l3_table, l2_table) = (self.table(), self.table());
        for first in (0..pages).step_by(ENTRIES) {
            let table = self.table();
            for index in 0..ENTRIES.min(pages - first) {
                self.write(table, index, entry(self, first + index));
            }
            self.set_writable(table, false);
            if pins_l1 {
                self.pin(Level::L1, table);
            }
            self.write(l2_table, first / ENTRIES, link(table));
        }
        self.write(l3_table, 0, link(l2_table));
        self.set_writable(l2_table, false);
        self.set_writable(l3_table, false);
        let index = to_usize(BASE >> 39);
        let root = if has_own_roots { self.table() } else { self.memory.root };
        if has_own_roots {
            if let Some(kernel_root) = self.memory.words(self.memory.root) {
                self.write(root, ENTRIES - 1, entry_at(kernel_root, ENTRIES - 1));
            }
            let user_root = self.table();
            for root in [root, user_root] {
                self.write(root, index, link(l3_table));
                self.set_writable(root, false);
                self.pin(Level::L4, root);
            }
            return Space::new(root, Level::L4).with_user_root(user_root);
        }
        let update = MmuUpdate::new(EntryAddr::new(root, index), Command::Normal, link(l3_table));
        self.update([update].into_iter(), DomId::SELF, 1);
        Space::new(root, Level::L4)
    }

    /// Returns the addresses of the entries of these pages. Looks up each table one time.
    pub(crate) fn entries(
        &self,
        space: Space,
        pages: Range<usize>,
    ) -> impl Iterator<Item = EntryAddr> + use<> {
        self.l1_entries(space, pages).map(|(table, _, index)| EntryAddr::new(table, index))
    }

    /// Returns the addresses and the values of these entries.
    pub(crate) fn read(
        &self,
        space: Space,
        pages: Range<usize>,
    ) -> impl Iterator<Item = (EntryAddr, Entry)> + use<> {
        self.l1_entries(space, pages).map(|(table, words, index)| {
            (
                EntryAddr::new(table, index),
                words.map_or(Entry::EMPTY, |words| entry_at(words, index)),
            )
        })
    }

    /// Returns the L1 table of each of these pages and the index of the page's entry.
    fn l1_entries(
        &self,
        space: Space,
        pages: Range<usize>,
    ) -> impl Iterator<Item = (Pfn, Option<&'static Table>, usize)> + use<> {
        let memory = self.memory;
        let (mut table, mut words) = (Pfn::ZERO, None);
        pages.map(move |page| {
            let index = page % ENTRIES;
            if index == 0 || words.is_none() {
                table = memory.l1_table(space, BASE + page as u64 * 4096);
                words = memory.words(table);
            }
            (table, words, index)
        })
    }

    /// Returns the entry at an address.
    pub(crate) fn entry(&self, at: EntryAddr) -> Entry {
        self.memory.entry(at)
    }
}

impl PageOwner {
    /// Returns how many frames for tables are left.
    pub(crate) fn tables_left(&self) -> usize {
        self.tables_left
    }

    fn take(&mut self) -> Option<Pfn> {
        self.tables_left = self.tables_left.checked_sub(1)?;
        self.free_tables.get(self.tables_left).copied()
    }

    /// Receives a single unmapped page. Pages whose addresses and frames follow each other form a
    /// run.
    pub(crate) fn add_page(&mut self, virt: u64, entry: Entry) {
        if let Some(run) = &mut self.run
            && run.virt.last() + 1 == virt
            && run.entry.bits() + run.virt.bytes().0 == entry.bits()
            && let Ok(virt) = VirtRange::new(run.virt.start(), run.virt.bytes() + PAGE_BYTES)
        {
            run.virt = virt;
            return;
        }
        self.finish_run();
        let virt = VirtRange::new(virt, PAGE_BYTES).ok();
        self.run = virt.map(|virt| Run { virt, entry, level: Level::L1 });
    }

    /// Counts the current run of single pages, and ends it.
    pub(crate) fn finish_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.unmapped(run);
        }
    }
}

impl Owner<Format> for PageOwner {
    fn unmapped(&mut self, run: Run) {
        let pages = run.virt.bytes().frames();
        self.unmapped_counts.pages += pages;
        self.unmapped_counts.dirty += if run.is_dirty() { pages } else { 0 };
        let first = to_usize(run.virt.start().wrapping_sub(BASE) / PAGE_BYTES.0);
        let last = first.saturating_add(to_usize(pages));
        if let Some(dirty) = self.dirty.get_mut(first..last) {
            dirty.fill(run.is_dirty());
        }
    }

    fn free_table(&mut self, table: Pfn) {
        if let Some(free) = self.free_tables.get_mut(self.tables_left) {
            *free = table;
            self.tables_left += 1;
        }
    }
}
