//! Defines a mapping that forwards calls to a kernel that the test owns.
//!
//! The engine owns the mapping, but a test reads its kernel between two calls. So the mapping holds
//! a pointer to the kernel only during a call of [`with_kernel`].

use crate::{Memory, range, start};
use hotmem::RangeErrorKind;
use hotmem::*;
use std::fmt;
use std::ptr::{self, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

/// The methods of [`Mapping`] that a test's kernel may implement. They are safe because the kernel
/// maps nothing.
pub trait TestMapping {
    /// As [`Mapping::can_map`].
    ///
    /// # Errors
    /// A veto.
    fn can_map(&self, _: PfnRange) -> Result<(), Veto> {
        Ok(())
    }
    /// As [`Mapping::tables_needed`].
    fn tables_needed(&self, _: PfnRange) -> u64 {
        0
    }
    /// As [`Mapping::descriptors_needed`].
    fn descriptors_needed(&self, _: PfnRange) -> u64 {
        0
    }
    /// As [`Mapping::descriptor_pageblocks`].
    fn descriptor_pageblocks(&self, _: PfnRange) -> u64 {
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
    fn frame_refused(&mut self, _: Pfn, _: RangeErrorKind) {}
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
unsafe impl<K: TestMapping> Mapping for ForwardingMapping<K> {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Returns 0, because the mapping forwards to no kernel at boot.
    fn table_reserve(&self) -> u64 {
        0
    }

    fn can_map(&self, range: PfnRange) -> Result<(), Veto> {
        self.with(Ok(()), |kernel| kernel.can_map(range))
    }

    fn tables_needed(&self, range: PfnRange) -> u64 {
        self.with(0, |kernel| kernel.tables_needed(range))
    }

    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        self.with(0, |kernel| kernel.descriptors_needed(range))
    }

    fn descriptor_pageblocks(&self, section: PfnRange) -> u64 {
        self.with(0, |kernel| kernel.descriptor_pageblocks(section))
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

    unsafe fn remap(&mut self, range: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {
        self.with((), |kernel| kernel.remap(range));
    }

    unsafe fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.with((), |kernel| kernel.release_tables(range, free));
    }

    fn frame_refused(&mut self, frame: Pfn, reason: RangeErrorKind) {
        self.with((), |kernel| kernel.frame_refused(frame, reason));
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
