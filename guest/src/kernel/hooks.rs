//! Implements the engine's traits [`Map`], [`Describe`] and [`Hooks`] for this kernel: the direct
//! map, the descriptors of RAM, and the migration of the kernel's frames.

use super::balloon::BalloonMemory;
use super::fatal::give_up;
use super::heap;
use super::memory::{AddressSpace, RAM_OWNER, virt};
use super::moving_pages;
use super::quiesce;
use super::workload::Workload;
use crate::arch::LAYOUT;
use hotmem::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use hotmem::{
    Bytes, Describe, Hooks, Map, Migration, Pfn, PfnRange, RangeError, TABLE_RESERVE, Veto, Zone,
};
use hotmem_directmap::{Caching, tables_needed};
use hotmem_guest::cmdline::Options;
use hotmem_guest::signal::other_cpus;

/// The direct map and the descriptors of RAM.
pub(crate) struct KernelMapping {
    pub(crate) space: AddressSpace,
    /// The number of bytes written to describe added memory.
    pub(crate) bytes_described: Bytes,
    /// Whether RAM has descriptors.
    pub(crate) has_descriptors: bool,
}

/// The kernel's vetoes and migrations when memory is brought online or taken offline.
pub(crate) struct KernelHooks {
    pub(crate) workload: Workload,
    /// The memory of the balloon device, if there is one.
    pub(crate) balloon: Option<BalloonMemory>,
    /// The number of times that the kernel still vetoes onlining or offlining.
    pub(crate) vetoes: u32,
    /// The memory that was last put online, until the main loop takes it for its report.
    pub(crate) last_online: Option<PfnRange>,
}

/// The maximal number of bytes that the engine writes to add a section and put it online.
const ONLINE_BYTES: u64 = 40;

impl KernelHooks {
    /// Makes the hooks of a kernel without a balloon.
    pub(crate) fn new(options: &Options) -> Self {
        let workload = Workload::new(options);
        KernelHooks { workload, balloon: None, vetoes: options.vetoes, last_online: None }
    }

    fn veto_if_requested(&mut self) -> Result<(), Veto> {
        let vetoes = self.vetoes.checked_sub(1);
        vetoes.map_or(Ok(()), |remaining| {
            self.vetoes = remaining;
            Err(Veto("the command line asks for a veto"))
        })
    }
}

// SAFETY: `map` and `remap` map all of the range, or stop the guest. `unmap` clears the entries and
// flushes all TLBs. The offset of the direct map never changes. A device has plugged memory before
// the memory is added, and nothing else uses RAM that the engine manages.
unsafe impl Map for KernelMapping {
    fn base(&self) -> *mut u8 {
        virt(0)
    }

    fn mappable_range(&self) -> PfnRange {
        PfnRange::ALL
    }

    fn table_reserve(&self) -> u64 {
        TABLE_RESERVE
    }

    fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto> {
        Ok(tables_needed(range))
    }

    unsafe fn map(&mut self, range: PfnRange, take_frame: &mut dyn FnMut() -> Option<Pfn>) {
        let mapped = self.space.direct_map_mut().map(range, Caching::WriteBack, take_frame);
        // `take_frame` returns `tables_needed` frames, and regions beyond the direct map were
        // refused, so `map` cannot fail.
        let mapped = mapped.unwrap_or_else(|error| give_up(error));
        let words = Bytes(range.chunks(SECTION_FRAMES as u64).count() as u64 * ONLINE_BYTES);
        self.bytes_described = self.bytes_described + mapped + words;
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        // `hide` does not flush the TLBs: `unmap` below does.
        if let Some(map) = self.map_of_ram() {
            map.hide(map.pages_to_unmap(range));
        }
        if let Err(stopped) = self.space.direct_map_mut().unmap(range) {
            give_up(format_args!("{range} was not unmapped: {stopped}"));
        }
    }

    fn remap_tables_needed(&self, _: PfnRange) -> u64 {
        0 // `unmap` keeps the page tables.
    }

    unsafe fn remap(&mut self, range: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {
        // The page tables exist, because `unmap` of the same range has kept them.
        if let Err(error) = self.space.direct_map_mut().map(range, Caching::WriteBack, || None) {
            give_up(error);
        }
        if let Some(map) = self.map_of_ram() {
            map.show(map.pages_to_unmap(range));
        }
    }

    unsafe fn release_tables(
        &mut self,
        range: PfnRange,
        free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    ) {
        self.space.direct_map_mut().release_tables(range, |table| free_taken(table, free));
    }

    fn descriptors(&mut self) -> Option<&mut dyn Describe> {
        if self.has_descriptors { Some(self) } else { None }
    }
}

// SAFETY: `describe` writes the descriptors of `range` and nothing else, and takes frames for them
// and for the page tables that map them. `undescribe` passes each of these frames to `free` once,
// after it has unmapped them and flushed all TLBs.
unsafe impl Describe for KernelMapping {
    fn frames_needed(&self, range: PfnRange) -> u64 {
        self.space.descriptor_map().frames_needed(range)
    }

    fn pageblocks_needed(&self, _: PfnRange) -> u64 {
        LAYOUT.descriptors.frames_per_section() / PAGEBLOCK_FRAMES as u64
    }

    unsafe fn describe(&mut self, range: PfnRange, take_frame: &mut dyn FnMut() -> Option<Pfn>) {
        // `take_frame` returns `frames_needed` frames, and nothing is mapped where they lie, so
        // `write` cannot fail.
        let _ = self.write(range, &RAM_OWNER, take_frame);
    }

    unsafe fn undescribe(
        &mut self,
        range: PfnRange,
        free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    ) {
        let map = self.space.descriptor_map_mut();
        map.unmap_ram(range, &mut |frame| free_taken(frame, free));
    }
}

/// Frees a frame that was taken for a page table or for descriptors. Stops the guest if the engine
/// refuses the frame, because the frame then does not belong to this kernel.
fn free_taken(frame: Pfn, free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>) {
    free(frame).unwrap_or_else(|refused| give_up(refused));
}

impl Hooks for KernelHooks {
    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        self.veto_if_requested()
    }

    fn onlined(&mut self, range: PfnRange) {
        self.last_online = Some(range);
    }

    fn going_offline(&mut self, _: PfnRange) -> Result<(), Veto> {
        self.veto_if_requested()
    }

    fn discard(&mut self, within: PfnRange) {
        self.workload.discard(within);
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        let balloon = self.balloon.as_mut().and_then(|balloon| balloon.migrate(used));
        let answer = balloon.or_else(|| self.workload.migrate(used));
        let answer = answer.or_else(|| heap::migrate(used));
        if let Some(answer) = answer.or_else(|| moving_pages::migrate(used)) {
            return answer;
        }
        if other_cpus() > 0 {
            quiesce::free_frames_of_other_cpus();
            return Migration::Freed;
        }
        Migration::Unmovable("in use by the kernel")
    }
}
