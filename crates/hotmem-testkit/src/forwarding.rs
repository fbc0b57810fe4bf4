//! Defines a mapping that forwards calls to a kernel that the test owns.
//!
//! The engine owns the mapping, but a test reads its kernel between two calls. So the mapping holds
//! a pointer to the kernel only during a call of [`with_kernel`].

use crate::{Memory, range, start};
use hotmem::*;
use std::fmt;
use std::ptr::{self, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

/// The argument by which a test's kernel frees the frames of page tables and descriptors.
pub type Free<'a> = dyn FnMut(Pfn) -> Result<(), RangeError> + 'a;

/// The methods of [`Map`] and [`Describe`] that a test's kernel may implement. They are safe because
/// the kernel maps nothing. The default methods do nothing, so that a test writes only what it tests.
pub trait TestMapping {
    /// Decides whether the range can be mapped, as [`Map::tables_needed`] does.
    ///
    /// # Errors
    /// A veto.
    fn can_map(&self, _: PfnRange) -> Result<(), Veto> {
        Ok(())
    }
    /// As [`Map::tables_needed`], for a range that can be mapped.
    fn tables_needed(&self, _: PfnRange) -> u64 {
        0
    }
    /// As [`Describe::frames_needed`].
    fn descriptors_needed(&self, _: PfnRange) -> u64 {
        0
    }
    /// As [`Describe::pageblocks_needed`].
    fn descriptor_pageblocks(&self, _: PfnRange) -> u64 {
        0
    }
    /// As [`Map::map`].
    fn map(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}
    /// As [`Describe::describe`].
    fn describe(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}
    /// As [`Describe::undescribe`].
    fn undescribe(&mut self, _: PfnRange, _: &mut Free<'_>) {}
    /// As [`Map::unmap`].
    fn unmap(&mut self, _: PfnRange) {}
    /// As [`Map::remap`].
    fn remap(&mut self, _: PfnRange) {}
    /// As [`Map::release_tables`].
    fn release_tables(&mut self, _: PfnRange, _: &mut Free<'_>) {}
}

impl TestMapping for NoHooks {}

/// A mapping of memory that is always mapped. During a call of [`with_kernel`], it forwards calls
/// to the kernel of that call.
pub struct ForwardingMapping<K> {
    memory: AlwaysMapped,
    kernel: Arc<AtomicPtr<K>>,
}

impl<K> ForwardingMapping<K> {
    /// Makes a mapping of this memory that forwards to no kernel yet.
    #[must_use]
    pub fn new(memory: AlwaysMapped) -> ForwardingMapping<K> {
        ForwardingMapping { memory, kernel: Arc::new(AtomicPtr::new(null_mut())) }
    }

    /// Calls `operation` with the kernel. Returns `default` if the mapping forwards to no kernel at the
    /// moment, or if this call comes from within another such call.
    fn with<R>(&self, default: R, operation: impl FnOnce(&mut K) -> R) -> R {
        let kernel = self.kernel.swap(null_mut(), SeqCst);
        // SAFETY: the pointer is null, or came from the exclusive reference of `with_kernel`, which
        // does not use the reference before it takes the pointer back. The swap above excludes a
        // second use.
        let result = unsafe { kernel.as_mut() }.map_or(default, operation);
        self.kernel.store(kernel, SeqCst);
        result
    }
}

/// Boots an instance with the first `boot_frames` frames of this memory, and a mapping that forwards to
/// the kernel that the test passes to [`with_kernel`].
///
/// # Panics
/// Panics if these frames are too few to boot.
pub fn boot_forwarding<'f, P: Platform, K: TestMapping>(
    frames: &'f Frames<P>,
    memory: &Memory,
    boot_frames: u64,
) -> Hotplug<'f, P, ForwardingMapping<K>> {
    let ram = [BootRange { start: 0, len: range(0, boot_frames).bytes() }];
    let mapping = ForwardingMapping::new(memory.direct_map());
    start(frames, mapping, &ram).expect("the memory is large enough to boot")
}

/// Calls `operation` while the mapping forwards to `kernel`. Its second argument forwards hooks
/// to the kernel.
pub fn with_kernel<'f, P: Platform, K: TestMapping, R>(
    hotplug: &mut Hotplug<'f, P, ForwardingMapping<K>>,
    kernel: &mut K,
    operation: impl FnOnce(&mut Hotplug<'f, P, ForwardingMapping<K>>, &mut ForwardingMapping<K>) -> R,
) -> R {
    let ForwardingMapping { memory, kernel: pointer } = hotplug.mapping();
    let mut forwarding = ForwardingMapping { memory: *memory, kernel: pointer.clone() };
    let before = forwarding.kernel.swap(ptr::from_mut(kernel), SeqCst);
    let result = operation(hotplug, &mut forwarding);
    forwarding.kernel.store(before, SeqCst);
    result
}

// SAFETY: all memory is mapped from the start, and the kernel's methods map nothing.
unsafe impl<K: TestMapping> Map for ForwardingMapping<K> {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn mappable_range(&self) -> PfnRange {
        PfnRange::ALL
    }

    /// Returns 0, because the mapping forwards to no kernel at boot.
    fn table_reserve(&self) -> u64 {
        0
    }

    fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto> {
        self.with(Ok(0), |kernel| kernel.can_map(range).map(|()| kernel.tables_needed(range)))
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        self.with((), |kernel| kernel.map(range, take));
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        self.with((), |kernel| kernel.unmap(range));
    }

    fn remap_tables_needed(&self, _: PfnRange) -> u64 {
        0
    }

    unsafe fn remap(&mut self, range: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {
        self.with((), |kernel| kernel.remap(range));
    }

    unsafe fn release_tables(&mut self, range: PfnRange, free: &mut Free<'_>) {
        self.with((), |kernel| kernel.release_tables(range, free));
    }

    fn descriptors(&mut self) -> Option<&mut dyn Describe> {
        Some(self)
    }
}

// SAFETY: the kernel's methods write no memory of the engine.
unsafe impl<K: TestMapping> Describe for ForwardingMapping<K> {
    fn frames_needed(&self, range: PfnRange) -> u64 {
        self.with(0, |kernel| kernel.descriptors_needed(range))
    }

    fn pageblocks_needed(&self, section: PfnRange) -> u64 {
        self.with(0, |kernel| kernel.descriptor_pageblocks(section))
    }

    unsafe fn describe(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        self.with((), |kernel| kernel.describe(range, take));
    }

    unsafe fn undescribe(&mut self, range: PfnRange, free: &mut Free<'_>) {
        self.with((), |kernel| kernel.undescribe(range, free));
    }
}

impl<K: Hooks> Hooks for ForwardingMapping<K> {
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
        self.with(Migration::Freed, |kernel| kernel.migrate(used))
    }
}

impl<K> fmt::Debug for ForwardingMapping<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardingMapping").finish_non_exhaustive()
    }
}
