//! The domain's frames: their machine frame numbers, which page tables use, and their addresses in
//! the kernel.

use super::entry::VIRT_BASE;
use super::hypercall::hypercall;
use super::start_info::StartInfo;
use hotmem_addr::Pfn;
use hotmem_guest::to_usize;
use hotmem_pgtable::x86_64::{Entry, Space};
use hotmem_pgtable::{ENTRIES, EntryAddr, Kind, Level, Table, Tables, entry_at};
use hotmem_xen::MachineTables;

/// The number of frames for the kernel's own use.
pub(crate) const FRAMES: usize = 18 << 10;
/// `MACH2PHYS_VIRT_START`: Xen's table from the machine's frame numbers to the domain's.
const MACHINE_TO_DOMAIN: u64 = 0xffff_8000_0000_0000;
const MEMORY_OP: u64 = 12;
const MAXIMUM_RAM_PAGE: u64 = 2;

#[repr(C, align(4096))]
struct Arena([[u64; ENTRIES]; FRAMES]);

static mut ARENA: Arena = Arena([[0; ENTRIES]; FRAMES]);

/// The domain's memory, as Xen describes it.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// The machine frame number of each of the domain's frames.
    mfn_list: &'static [u64],
    /// The number of frames that are mapped from `VIRT_BASE` on.
    mapped_frames: u64,
    /// The number of frames of the machine.
    machine_frames: u64,
    /// The initial root.
    pub(crate) root: Pfn,
}

impl Memory {
    /// # Safety
    /// The argument is the structure that Xen passed to the kernel.
    pub(crate) unsafe fn new(info: &StartInfo) -> Memory {
        let list = core::ptr::with_exposed_provenance(to_usize(info.mfn_list));
        // SAFETY: Xen has put the list there, and nothing changes it.
        let mfn_list = unsafe { core::slice::from_raw_parts(list, to_usize(info.nr_pages)) };
        // SAFETY: takes no argument.
        let last = unsafe { hypercall(MEMORY_OP, [MAXIMUM_RAM_PAGE, 0, 0, 0, 0]) };
        let mapped_frames = (info.pt_base - VIRT_BASE) / 4096 + info.nr_pt_frames;
        let mut memory = Memory {
            mfn_list,
            mapped_frames,
            machine_frames: last.map_or(0, |last| last + 1),
            root: Pfn::ZERO,
        };
        memory.root = memory.machine_frame(info.pt_base);
        memory
    }

    /// Returns the machine frame number of one of the kernel's addresses.
    pub(crate) fn machine_frame(&self, virt: u64) -> Pfn {
        let frame = self.mfn_list.get(to_usize((virt - VIRT_BASE) / 4096));
        frame.and_then(|&frame| Pfn::new(frame)).unwrap_or(Pfn::ZERO)
    }

    /// Returns the kernel's own frame of this number.
    pub(crate) fn frame(&self, number: usize) -> Pfn {
        let arena = (&raw const ARENA).expose_provenance() as u64;
        self.machine_frame(arena + (number % FRAMES) as u64 * 4096)
    }

    /// Returns the kernel's address of a machine frame, if it is mapped.
    pub(crate) fn virt(&self, frame: Pfn) -> Option<u64> {
        if frame.number() >= self.machine_frames {
            return None;
        }
        let entry = MACHINE_TO_DOMAIN + frame.number() * 8;
        let entry: *const u64 = core::ptr::with_exposed_provenance(to_usize(entry));
        // SAFETY: Xen maps the table for all frames of the machine.
        let number = unsafe { entry.read_volatile() };
        let is_own = number < self.mapped_frames
            && self.mfn_list.get(to_usize(number)) == Some(&frame.number());
        is_own.then_some(VIRT_BASE + number * 4096)
    }

    /// Returns a machine frame above the first MiB that does not belong to the domain.
    pub(crate) fn foreign(&self) -> Option<Pfn> {
        (0x100..self.machine_frames).filter_map(Pfn::new).find(|&frame| self.virt(frame).is_none())
    }

    /// Returns the words of a frame that is ordinary memory, or a table to be read.
    pub(crate) fn words(&self, frame: Pfn) -> Option<&'static Table> {
        let table = core::ptr::with_exposed_provenance::<Table>(to_usize(self.virt(frame)?));
        // SAFETY: the frame is always mapped, and is accessed as atomic words.
        Some(unsafe { &*table })
    }
}

impl Memory {
    /// Returns the entry at an address.
    pub(crate) fn entry(&self, at: EntryAddr) -> Entry {
        self.words(at.table()).map_or(Entry::EMPTY, |words| entry_at(words, at.index()))
    }

    /// Returns the L1 table of an address, or frame 0 if the address has no L1 table.
    pub(crate) fn l1_table(&self, space: Space, virt: u64) -> Pfn {
        let (mut table, mut level) = (space.root, space.root_level);
        while let Some(below) = level.below() {
            let index = to_usize(virt / level.entry_span().0) % ENTRIES;
            let entry = self.words(table).map_or(Entry::EMPTY, |words| entry_at(words, index));
            table = entry.frame(Level::L1).unwrap_or(Pfn::ZERO);
            level = below;
        }
        table
    }
}

impl Tables for Memory {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.words(frame)
    }
}

impl MachineTables for Memory {
    fn direct_map_entry(&self, frame: Pfn) -> Option<(EntryAddr, Entry)> {
        let virt = self.virt(frame)?;
        let (mut table, mut level) = (self.root, Level::L4);
        loop {
            let index = to_usize(virt / level.entry_span().0) % ENTRIES;
            let entry = entry_at(self.words(table)?, index);
            let Some(below) = level.below() else {
                return Some((EntryAddr::new(table, index), entry));
            };
            let Kind::Table(next) = entry.kind(level) else { return None };
            (table, level) = (next, below);
        }
    }

    /// Does nothing: this kernel has no lockless page walks.
    fn grace_period(&self) {}
}
