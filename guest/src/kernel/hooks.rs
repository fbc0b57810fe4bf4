//! What the engine asks of this kernel: the direct map, and moving the workload's frames.

use super::balloon::BalloonMemory;
use super::fatal::give_up;
use super::flush::flush_all;
use super::heap;
use super::memory::{AddressSpace, virt};
use super::quiesce;
use super::signal::others;
use super::workload::Workload;
use super::writers;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{Bytes, Hooks, Mapping, Migration, Pfn, PfnRange, Veto, Zone};
use hotmem_directmap::Caching;
use hotmem_guest::descriptor::Owner;
use hotmem_guest::layout::DESCRIPTORS;

/// The direct map and the descriptors of RAM.
pub(crate) struct KernelMapping {
    pub(crate) space: AddressSpace,
    /// Bytes that were written to describe memory that came.
    pub(crate) written: Bytes,
    /// Whether RAM has descriptors.
    pub(crate) described: bool,
}

/// The kernel's part in putting memory online and taking it offline.
pub(crate) struct KernelHooks {
    pub(crate) workload: Workload,
    /// What a balloon device has, if there is one.
    pub(crate) balloon: Option<BalloonMemory>,
    /// How often memory is refused to come online or to go offline from now on.
    pub(crate) vetoes: u32,
    /// Memory that came online last, until somebody takes note of it.
    pub(crate) came: Option<PfnRange>,
}

/// What the engine writes at most to add a section and put it online.
const ONLINE_BYTES: u64 = 40;

impl KernelHooks {
    fn agree(&mut self) -> Result<(), Veto> {
        let vetoes = self.vetoes.checked_sub(1);
        vetoes.map_or(Ok(()), |left| {
            self.vetoes = left;
            Err(Veto("the kernel was told to refuse it"))
        })
    }
}

// SAFETY: `map` and `remap` write an entry for all of the range, or the machine stops; `unmap`
// clears them and flushes every TLB. The offset of the direct map never changes. What is added was
// plugged by a device before, and nothing else uses RAM that the engine has.
unsafe impl Mapping for KernelMapping {
    fn base(&self) -> *mut u8 {
        virt(0)
    }

    fn tables_needed(&self, range: PfnRange) -> u64 {
        self.space.tables().tables_needed(range)
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        let mapped = self.space.tables_mut().map(range, Caching::WriteBack, take);
        // `tables_needed` frames are there, and a region that does not fit was refused: this
        // cannot fail.
        let mapped = mapped.unwrap_or_else(|error| give_up(error));
        let words = Bytes(range.sections().count() as u64 * ONLINE_BYTES);
        self.written = self.written + mapped + words;
    }

    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        let map = self.described.then(|| self.space.descriptor_map());
        map.map_or(0, |map| map.frames_needed(range))
    }

    fn keeps(&self, _: PfnRange) -> u64 {
        if self.described { DESCRIPTORS.frames_kept() / PAGEBLOCK_FRAMES as u64 } else { 0 }
    }

    unsafe fn describe(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        if self.described {
            // As in `map`: the frames are there, and there was nothing behind these descriptors.
            let _ = self.write(range, &Owner::RAM, take);
        }
    }

    unsafe fn undescribe(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        if let Some(map) = self.map_of_ram() {
            map.unmap_ram(range, flush_all, free);
        }
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        // What is hidden is flushed with the rest.
        if let Some(map) = self.map_of_ram() {
            map.hide(map.pages_with(range));
        }
        if let Err(stopped) = self.space.tables_mut().unmap(range) {
            give_up(format_args!("{range} was not unmapped: {stopped}"));
        }
    }

    unsafe fn remap(&mut self, range: PfnRange) {
        // The tables are there: nothing but what was unmapped together is mapped again together.
        if let Err(error) = self.space.tables_mut().map(range, Caching::WriteBack, || None) {
            give_up(error);
        }
        if let Some(map) = self.map_of_ram() {
            map.show(map.pages_with(range));
        }
    }

    unsafe fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.space.tables_mut().release_tables(range, free);
    }
}

impl Hooks for KernelHooks {
    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        self.agree()
    }

    fn onlined(&mut self, range: PfnRange) {
        self.came = Some(range);
    }

    fn going_offline(&mut self, _: PfnRange) -> Result<(), Veto> {
        self.agree()
    }

    fn discard(&mut self, within: PfnRange) {
        self.workload.discard(within);
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        let balloon = self.balloon.as_mut().and_then(|balloon| balloon.migrate(used));
        let answer = balloon.or_else(|| self.workload.migrate(used));
        let answer = answer.or_else(|| heap::migrate(used));
        if let Some(answer) = answer.or_else(|| writers::migrate(used)) {
            return answer;
        }
        if others() > 0 {
            quiesce::release_all();
            return Migration::Gone;
        }
        Migration::Pinned("in use by the kernel")
    }
}
