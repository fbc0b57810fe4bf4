//! A test's kernel behind the mapping of a machine.
//!
//! The engine owns the mapping, and a test wants to look at its kernel between two calls. So the
//! mapping only knows the way to the kernel, and that only while a call is made with [`lend`].

use crate::{Memory, range, start};
use hotmem::*;
use std::fmt;
use std::ptr::{self, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

/// What a test's kernel does of [`Mapping`]: the same, but safe, since it maps nothing.
pub trait Maps {
    /// As [`Mapping::tables_needed`].
    fn tables_needed(&self, _: PfnRange) -> u64 {
        0
    }
    /// As [`Mapping::descriptors_needed`].
    fn descriptors_needed(&self, _: PfnRange) -> u64 {
        0
    }
    /// As [`Mapping::keeps`].
    fn keeps(&self, _: PfnRange) -> u64 {
        0
    }
    /// As [`Mapping::map`].
    fn map(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}
    /// As [`Mapping::describe`].
    fn describe(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}
    /// As [`Mapping::undescribe`].
    fn undescribe(&mut self, _: PfnRange, _: &mut dyn FnMut(Pfn)) {}
    /// As [`Mapping::unmap`].
    fn unmap(&mut self, _: PfnRange) {}
    /// As [`Mapping::remap`].
    fn remap(&mut self, _: PfnRange) {}
    /// As [`Mapping::release_tables`].
    fn release_tables(&mut self, _: PfnRange, _: &mut dyn FnMut(Pfn)) {}
    /// As [`Mapping::frame_refused`].
    fn frame_refused(&mut self, _: Pfn, _: FreeErrorKind) {}
}

impl Maps for NoHooks {}

/// The mapping: all memory is there, and the kernel is told while it is lent.
pub struct Link<K> {
    memory: AlwaysMapped,
    kernel: Arc<AtomicPtr<K>>,
}

impl<K> Link<K> {
    /// A mapping of this memory, without a kernel.
    #[must_use]
    pub fn new(memory: AlwaysMapped) -> Link<K> {
        Link { memory, kernel: Arc::new(AtomicPtr::new(null_mut())) }
    }

    /// The kernel, if it is lent. It is taken meanwhile: a call from within finds none.
    fn with<R>(&self, default: R, act: impl FnOnce(&mut K) -> R) -> R {
        let kernel = self.kernel.swap(null_mut(), SeqCst);
        // SAFETY: `lend` has the only reference to it, and leaves it alone while it is lent.
        let done = unsafe { kernel.as_mut() }.map_or(default, act);
        self.kernel.store(kernel, SeqCst);
        done
    }
}

/// Boots a machine with the first `frames` of this memory, and a kernel to be lent.
///
/// # Panics
/// If these are too few.
pub fn boot_linked<'f, P: Platform, K: Maps>(
    machine: &'f Frames<P>,
    memory: &Memory,
    frames: u64,
) -> Hotplug<'f, P, Link<K>> {
    let ram = [BootRange { start: 0, len: range(0, frames).bytes() }];
    let link = Link::new(memory.direct_map());
    start(machine, link, &BootMap::of_ram(&ram)).expect("enough to boot")
}

/// Makes calls for which the mapping reaches `kernel`; the second argument has its hooks.
pub fn lend<'f, P: Platform, K: Maps, R>(
    hotplug: &mut Hotplug<'f, P, Link<K>>,
    kernel: &mut K,
    act: impl FnOnce(&mut Hotplug<'f, P, Link<K>>, &mut Link<K>) -> R,
) -> R {
    let Link { memory, kernel: place } = hotplug.mapping();
    let mut link = Link { memory: *memory, kernel: place.clone() };
    let before = link.kernel.swap(ptr::from_mut(kernel), SeqCst);
    let done = act(hotplug, &mut link);
    link.kernel.store(before, SeqCst);
    done
}

// SAFETY: all of the memory is there from the start; the kernel only takes note.
unsafe impl<K: Maps> Mapping for Link<K> {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn tables_needed(&self, range: PfnRange) -> u64 {
        self.with(0, |kernel| kernel.tables_needed(range))
    }

    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        self.with(0, |kernel| kernel.descriptors_needed(range))
    }

    fn keeps(&self, section: PfnRange) -> u64 {
        self.with(0, |kernel| kernel.keeps(section))
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        self.with((), |kernel| kernel.map(range, take));
    }

    unsafe fn describe(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        self.with((), |kernel| kernel.describe(range, take));
    }

    unsafe fn undescribe(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.with((), |kernel| kernel.undescribe(range, free));
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        self.with((), |kernel| kernel.unmap(range));
    }

    unsafe fn remap(&mut self, range: PfnRange) {
        self.with((), |kernel| kernel.remap(range));
    }

    unsafe fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.with((), |kernel| kernel.release_tables(range, free));
    }

    fn frame_refused(&mut self, frame: Pfn, why: FreeErrorKind) {
        self.with((), |kernel| kernel.frame_refused(frame, why));
    }
}

impl<K: Hooks> Hooks for Link<K> {
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        self.with(Ok(()), |kernel| kernel.going_online(range, zone))
    }

    fn online_cancelled(&mut self, range: PfnRange) {
        self.with((), |kernel| kernel.online_cancelled(range));
    }

    fn onlined(&mut self, range: PfnRange) {
        self.with((), |kernel| kernel.onlined(range));
    }

    fn node_appeared(&mut self, node: NodeId) {
        self.with((), |kernel| kernel.node_appeared(node));
    }

    fn node_vanished(&mut self, node: NodeId) {
        self.with((), |kernel| kernel.node_vanished(node));
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        self.with(Ok(()), |kernel| kernel.going_offline(range))
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        self.with((), |kernel| kernel.offline_cancelled(range));
    }

    fn offlined(&mut self, range: PfnRange) {
        self.with((), |kernel| kernel.offlined(range));
    }

    fn discard(&mut self, within: PfnRange) {
        self.with((), |kernel| kernel.discard(within));
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.with(Migration::Gone, |kernel| kernel.migrate(used))
    }
}

impl<K> fmt::Debug for Link<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}
