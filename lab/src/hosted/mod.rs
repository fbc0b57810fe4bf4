//! A machine in this process, on which the unmodified engine runs.
//!
//! The process reserves one range of addresses for the machine's memory, and a physical address is
//! an offset into that range. The host commits a page when the page is first accessed, so a laptop
//! can run a machine of 64 TiB. Boot memory starts at physical address 0. The *hotplug range*, in
//! which memory may be plugged, lies above it. The machine's MMU is simulated.
//!
//! ```
//! use hotmem::{Budget, Bytes, OnlineType, Progress, Shrink, AllocRequest};
//! use hotmem_lab::hosted::Hosted;
//!
//! // A machine of 128 MiB, into which 64 GiB can be plugged.
//! let builder = Hosted::builder().boot_memory(Bytes::mib(128));
//! let machine = builder.hotplug_size(Bytes::gib(64)).build()?;
//! let mut hotplug = machine.boot()?;
//! let mut hooks = machine.hooks();
//!
//! // The 64 GiB are plugged.
//! let range = machine.hotplug_range();
//! hotplug.announce(range)?;
//! hotplug.add(range)?;
//! hotplug.online(range, OnlineType::Movable, &mut hooks)?;
//!
//! // A huge page is allocated and freed.
//! let huge_page = machine.frames().alloc(AllocRequest::order(9).movable())?;
//! assert!(range.covers(huge_page.range()));
//! drop(huge_page);
//!
//! // The 64 GiB are unplugged.
//! let mut shrink = Shrink::new(range);
//! while let Progress::Ready(removal) = shrink.poll(&mut hotplug, &mut hooks, Budget::UNLIMITED) {
//!     hotplug.commit_remove(removal);
//! }
//! assert_eq!(machine.frames().counts().present, machine.boot_memory().frames());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address_space;
mod cpu_number;
mod error;
mod mmu;
mod reporter;
mod reservation;
mod waker;

pub use address_space::{AddressSpace, HostKernel, MapError};
pub use error::HostedError;
pub use reporter::{HostReporter, Running};
pub(crate) use reservation::HostPages;

use hotmem::{
    BootError, BootMap, BootRange, Bytes, Describe, Frames, Hotplug, Map, NodeId, Pfn, PfnRange,
    Platform, RangeError, TABLE_RESERVE, Veto,
};
use mmu::Mmu;
use reservation::Reservation;
use rustix::io::Errno;
use std::{
    cell::Cell,
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};
use waker::Waker;

/// The alignment of the start of the hotplug range. A PC's hotplugged memory also starts above a
/// hole that ends at 4 GiB.
const HOTPLUG_ALIGN: Bytes = Bytes::gib(4);

/// A machine in this process.
pub struct Hosted {
    // `frames` is declared before `memory`, so that it is dropped before `memory`.
    frames: Frames<ThreadCpus>,
    mmu: OnceLock<Mmu>,
    memory: Reservation,
    /// Whether `memory` covers the hotplug range.
    is_backed: bool,
    boot_memory: PfnRange,
    low_end: Pfn,
    hotplug_range: PfnRange,
}

/// The configuration of a [`Hosted`] machine.
#[derive(Clone, Copy, Debug)]
#[must_use = "`build` reserves the memory"]
pub struct Builder {
    boot_memory: Bytes,
    low_end: Pfn,
    hotplug_size: Bytes,
    is_backed: bool,
}

/// The number of CPUs of a machine.
const CPUS: u32 = 256;

impl Hosted {
    /// Returns the default configuration: 128 MiB of boot memory, and an empty hotplug range.
    pub const fn builder() -> Builder {
        let (boot_memory, hotplug_size) = (Bytes::mib(128), Bytes::ZERO);
        Builder { boot_memory, low_end: Pfn::ZERO, hotplug_size, is_backed: true }
    }

    /// Brings the boot memory online. A second call fails with
    /// [`AlreadyStarted`](BootError::AlreadyStarted).
    ///
    /// # Errors
    /// [`BootError`].
    pub fn boot(&self) -> Result<HostedHotplug<'_>, BootError> {
        self.boot_with(self.is_backed)
    }

    /// Boots like [`boot`](Self::boot), but does not return unmapped memory to the host. Benches
    /// call this to measure the engine without the host's system calls.
    ///
    /// # Errors
    /// [`BootError`].
    pub(crate) fn boot_without_returning_memory(&self) -> Result<HostedHotplug<'_>, BootError> {
        self.boot_with(false)
    }

    fn boot_with(&self, returns_memory: bool) -> Result<HostedHotplug<'_>, BootError> {
        let ram = [BootRange { start: 0, len: self.boot_memory.bytes() }];
        let mapped_below = self.boot_memory.end();
        let low_end = self.low_end;
        let map = BootMap { mapped_below, low_end, cpus: CPUS, ..BootMap::from(&ram) };
        let mapping = HostMemory { machine: self, returns_memory };
        // SAFETY: all of boot memory is readable and writable. It is accessed only through
        // `frames`, by this module, and by unsafe code that uses pointers from `address_of`.
        unsafe { Hotplug::bootstrap(&self.frames, mapping, map) }
    }

    /// Returns the allocator.
    #[must_use]
    pub fn frames(&self) -> &Frames<ThreadCpus> {
        &self.frames
    }

    /// Lets the engine keep marks of memory that is known to be zero.
    pub fn keep_zero_marks(&self) {
        // SAFETY: the host is this process, and memory that it has discarded reads as zero.
        unsafe { self.frames.keep_zero_marks() };
    }

    /// Returns the boot memory.
    #[must_use]
    pub fn boot_memory(&self) -> PfnRange {
        self.boot_memory
    }

    fn waker(&self) -> &Waker {
        &self.frames.platform().waker
    }

    /// Returns the range in which memory may be plugged. The caller announces the range or parts of
    /// it.
    #[must_use]
    pub fn hotplug_range(&self) -> PfnRange {
        self.hotplug_range
    }

    /// Gives back to the host the memory of `range`, as far as it lies in the hotplug range. The
    /// caller ensures that nothing uses this memory.
    pub(crate) fn return_to_host(&self, range: PfnRange) {
        let range = range.intersection(self.hotplug_range);
        // The host refuses, for example, if the pages are locked. The pages then stay committed,
        // and no other harm is done.
        let _ = self.memory.discard(range.start().phys_addr(), range.bytes());
    }

    /// Sets the pages by which the host backs the hotplug range, from the next time on that it
    /// backs them.
    ///
    /// # Errors
    /// The host refuses, for example because it was built without transparent huge pages.
    pub(crate) fn set_host_pages(&self, pages: HostPages) -> Result<(), Errno> {
        let range = self.hotplug_range;
        self.memory.set_host_pages(range.start().phys_addr(), range.bytes(), pages)
    }

    /// Returns the address of a frame. The caller may access the frame only while the caller owns
    /// it.
    #[must_use]
    pub fn address_of(&self, frame: Pfn) -> Option<NonNull<u8>> {
        self.memory.byte_at(frame.phys_addr())
    }
}

impl Builder {
    /// Sets the size of the boot memory.
    pub const fn boot_memory(self, boot_memory: Bytes) -> Builder {
        Builder { boot_memory, ..self }
    }

    /// Sets the end of low memory (4 GiB on a PC). By default there is no low memory.
    pub const fn low_end(self, low_end: Pfn) -> Builder {
        Builder { low_end, ..self }
    }

    /// Sets the size of the hotplug range. The host commits memory of it only when plugged memory
    /// is accessed.
    pub const fn hotplug_size(self, hotplug_size: Bytes) -> Builder {
        Builder { hotplug_size, ..self }
    }

    /// Reserves no addresses for the hotplug range.
    ///
    /// # Safety
    /// Plugged memory must never be accessed. The engine accesses plugged memory if it writes the
    /// frame bitmaps of a section there. Therefore boot memory must always have a free frame in a
    /// divided pageblock for the frame bitmaps of each section.
    pub(crate) const unsafe fn unbacked(self) -> Builder {
        Builder { is_backed: false, ..self }
    }

    /// Reserves the addresses of the machine's memory.
    ///
    /// # Errors
    /// [`HostedError`].
    pub fn build(self) -> Result<Hosted, HostedError> {
        let Builder { boot_memory, low_end, hotplug_size, is_backed } = self;
        let too_large = HostedError::TooLarge(boot_memory, hotplug_size);
        let hotplug_start =
            boot_memory.0.checked_next_multiple_of(HOTPLUG_ALIGN.0).ok_or(too_large)?;
        let range = |start, len| PfnRange::from_bytes(start, len).map_err(|_| too_large);
        for size in [boot_memory, hotplug_size] {
            if !size.0.is_multiple_of(Bytes::mib(2).0) {
                return Err(HostedError::Unaligned(size));
            }
        }
        let (boot_memory, hotplug_range) =
            (range(0, boot_memory)?, range(hotplug_start, hotplug_size)?);
        let end = if is_backed { hotplug_range.end() } else { boot_memory.end() };
        let memory = Reservation::new(Bytes(end.phys_addr()))?;
        let (frames, mmu) = (Frames::new(ThreadCpus::default()), OnceLock::new());
        Ok(Hosted { frames, mmu, memory, is_backed, boot_memory, low_end, hotplug_range })
    }
}

/// A platform whose CPUs are threads. The first call of [`cpu`](Platform::cpu) by a thread assigns
/// a CPU number to the thread.
#[derive(Debug, Default)]
pub struct ThreadCpus {
    waker: Waker,
}

thread_local! {
    static NODE: Cell<NodeId> = const { Cell::new(NodeId::ZERO) };
}

impl ThreadCpus {
    /// Assigns the calling thread to `node`. A new thread is on node 0.
    pub fn run_on(node: NodeId) {
        NODE.set(node);
    }

    /// Returns the CPU as which the calling thread runs.
    #[inline]
    #[must_use]
    pub fn current() -> usize {
        match cpu_number::get() {
            usize::MAX => assign_cpu(),
            cpu => cpu,
        }
    }

    /// Makes the calling thread run as CPU `cpu`. One thread can run as several CPUs in turn, and
    /// two threads may run as the same CPU.
    pub fn run_as(cpu: usize) {
        cpu_number::set(cpu);
    }
}

/// Assigns a CPU number to the calling thread, and returns the number.
#[cold]
fn assign_cpu() -> usize {
    static NEXT_CPU: AtomicUsize = AtomicUsize::new(0);
    // Relaxed, because the numbers order no other memory accesses: each thread only needs another
    // number.
    let cpu = NEXT_CPU.fetch_add(1, Ordering::Relaxed);
    cpu_number::set(cpu);
    cpu
}

impl Platform for ThreadCpus {
    #[inline]
    fn cpu(&self) -> usize {
        ThreadCpus::current()
    }

    #[inline]
    fn node(&self) -> NodeId {
        NODE.get()
    }

    fn wake_reporter(&self) {
        self.waker.wake();
    }
}

/// The control path of a hosted machine.
pub type HostedHotplug<'m> = Hotplug<'m, ThreadCpus, HostMemory<'m>>;

/// The mapping of a hosted machine. All memory is always mapped. The host commits a page when the
/// page is first accessed. When the engine unmaps memory, its pages are returned to the host.
#[derive(Clone, Copy)]
pub struct HostMemory<'m> {
    machine: &'m Hosted,
    returns_memory: bool,
}

// SAFETY: frame 0 starts at the first byte of the reservation. The reservation is readable and
// writable, and exists as long as `frames`. It covers boot memory and the hotplug range, except
// after `Builder::unbacked`, whose caller ensures that the hotplug range is not accessed. Memory
// that was returned to the host reads as zeros.
unsafe impl Map for HostMemory<'_> {
    fn base(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.machine.memory.address())
    }

    fn mappable_range(&self) -> PfnRange {
        let (boot, hotplug) = (self.machine.boot_memory, self.machine.hotplug_range);
        PfnRange::new(boot.start(), boot.end().max(hotplug.end())).unwrap_or(boot)
    }

    fn table_reserve(&self) -> u64 {
        TABLE_RESERVE
    }

    fn tables_needed(&self, _: PfnRange) -> Result<u64, Veto> {
        Ok(0)
    }

    unsafe fn map(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}

    unsafe fn unmap(&mut self, range: PfnRange) {
        if self.returns_memory {
            self.machine.return_to_host(range);
        }
    }

    fn remap_tables_needed(&self, _: PfnRange) -> u64 {
        0
    }

    unsafe fn remap(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}

    unsafe fn release_tables(
        &mut self,
        _: PfnRange,
        _: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    ) {
    }

    fn descriptors(&mut self) -> Option<&mut dyn Describe> {
        None
    }
}

#[cfg(test)]
mod tests;
