//! What the engine asks of this kernel: the direct map, and moving the workload's frames.

use super::balloon::BalloonMemory;
use super::churn;
use super::give_up;
use super::heap;
use super::memory::AddressSpace;
use super::smp;
use super::workload::Workload;
use super::writers;
use hotmem::{Bytes, Hooks, Migration, Pfn, PfnRange, Spare, Veto, Zone};
use hotmem_guest::described;
use hotmem_guest::direct_map::Caching;

/// The kernel's part in adding and removing memory.
pub(crate) struct KernelHooks {
    pub(crate) space: AddressSpace,
    pub(crate) workload: Workload,
    /// What a balloon device has, if there is one.
    pub(crate) balloon: Option<BalloonMemory>,
    /// Bytes that were written to describe memory that came.
    pub(crate) written: Bytes,
    /// Whether RAM has descriptors.
    pub(crate) described: bool,
    /// How often memory is refused to come online or to go offline from now on.
    pub(crate) vetoes: u32,
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

impl Hooks for KernelHooks {
    fn tables_needed(&self, range: PfnRange) -> u64 {
        self.space.tables().tables_needed(range)
    }

    fn map(&mut self, range: PfnRange, spare: &mut Spare) {
        let mapped = self.space.tables_mut().map(range, Caching::WriteBack, || spare.take());
        // `tables_needed` frames are there, and a region that does not fit was refused: this
        // cannot fail. If it did, the first access would fault and name the address.
        let words = Bytes(range.sections().count() as u64 * ONLINE_BYTES);
        self.written = self.written + mapped.unwrap_or_default() + words;
    }

    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        let map = self.described.then(|| self.space.descriptor_map());
        map.map_or(0, |map| described::needed(map, range))
    }

    fn keeps(&self, _: PfnRange) -> u64 {
        if self.described { described::KEPT } else { 0 }
    }

    fn describe(&mut self, range: PfnRange, spare: &mut Spare) {
        if self.described {
            // As in `map`: the frames are there, and there was nothing behind these descriptors.
            let _ = self.write(range, || spare.take());
        }
    }

    fn undescribe(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        if let Some(map) = self.map_of_ram() {
            described::unmap(map, range, smp::flush_all, free);
        }
    }

    fn unmap(&mut self, range: PfnRange) {
        // What is hidden is flushed with the rest.
        if let Some(map) = self.map_of_ram() {
            map.hide(described::pages_with(map, range));
        }
        if let Err(stopped) = self.space.tables_mut().unmap(range) {
            give_up(format_args!("{range} was not unmapped: {stopped}"));
        }
    }

    fn remap(&mut self, range: PfnRange) {
        // The tables are there: nothing but what was unmapped together is mapped again together.
        if let Err(error) = self.space.tables_mut().map(range, Caching::WriteBack, || None) {
            give_up(error);
        }
        if let Some(map) = self.map_of_ram() {
            map.show(described::pages_with(map, range));
        }
    }

    fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.space.tables_mut().release_tables(range, free);
    }

    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        self.agree()
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
        if smp::others() > 0 {
            churn::release_all();
            return Migration::Gone;
        }
        Migration::Pinned("in use by the kernel")
    }
}
