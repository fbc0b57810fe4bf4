//! The hosted machine: the engine, unmodified, on memory reserved in this process.
//!
//! Physical addresses are offsets into one reservation of address space, of which the host commits
//! only the pages that are touched. So a machine of 64 TiB fits into a laptop. Boot memory lies at
//! the bottom, and the *room* above it is where memory may be plugged. Its MMU is simulated.
//!
//! ```
//! use hotmem::{Budget, Bytes, OnlineType, Progress, Shrink, AllocRequest};
//! use hotmem_lab::hosted::Hosted;
//!
//! // A machine of 128 MiB with room for 64 GiB more.
//! let machine = Hosted::builder().boot_memory(Bytes::mib(128)).room(Bytes::gib(64)).build()?;
//! let mut hotplug = machine.boot()?;
//! let mut hooks = machine.hooks();
//!
//! // All of the room is plugged.
//! let room = machine.room();
//! hotplug.announce(room)?;
//! hotplug.add(room)?;
//! hotplug.online(room, OnlineType::Movable, &mut hooks)?;
//!
//! // Some of it is used.
//! let huge_page = machine.frames().alloc(AllocRequest::order(9).movable())?;
//! assert!(room.covers(huge_page.range()));
//! drop(huge_page);
//!
//! // All of it is unplugged again, in one piece.
//! let mut shrink = Shrink::new(room);
//! while let Progress::Ready(removal) = shrink.poll(&mut hotplug, &mut hooks, Budget::UNLIMITED) {
//!     hotplug.commit_remove(removal).expect("it is this machine's");
//! }
//! assert_eq!(machine.frames().counts().present, machine.boot_memory().frames());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address_space;
pub mod demo;
mod error;
mod mmu;
mod reporter;
mod reservation;
mod waker;

pub use address_space::{AddressSpace, HostKernel, MapError};
pub use error::HostedError;
pub use reporter::{HostReporter, Running};

use hotmem::{
    BootError, BootMap, BootRange, Bytes, Frames, Hotplug, Mapping, NodeId, Pfn, PfnRange, Platform,
};
use mmu::Mmu;
use reservation::Reservation;
use std::{
    cell::Cell,
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};
use waker::Waker;

/// The room for plugged memory starts at a multiple of this, as on machines with a 4 GiB hole.
const ROOM_ALIGN: Bytes = Bytes::gib(4);

/// A machine in this process.
pub struct Hosted {
    // Declared before `memory`, so that it is dropped first.
    frames: Frames<Threads>,
    mmu: OnceLock<Mmu>,
    memory: Reservation,
    backed: bool,
    boot_memory: PfnRange,
    low_end: Pfn,
    room: PfnRange,
}

/// The configuration of a [`Hosted`] machine.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is reserved before it is built"]
pub struct Builder {
    boot_memory: Bytes,
    low_end: Pfn,
    room: Bytes,
    backed: bool,
}

/// The number of threads that each have a CPU number of their own.
const CPUS: u32 = 256;

impl Hosted {
    /// Returns the default configuration: 128 MiB of boot memory, and no room for more.
    pub const fn builder() -> Builder {
        let boot_memory = Bytes::mib(128);
        Builder { boot_memory, low_end: Pfn::ZERO, room: Bytes::ZERO, backed: true }
    }

    /// Brings the boot memory online. A second call fails with
    /// [`AlreadyStarted`](BootError::AlreadyStarted).
    ///
    /// # Errors
    /// [`BootError`].
    pub fn boot(&self) -> Result<HostedHotplug<'_>, BootError> {
        self.boot_with(self.backed)
    }

    /// Boots like [`boot`](Self::boot), but never returns unmapped memory to the host, for benches
    /// that measure the engine alone.
    ///
    /// # Errors
    /// [`BootError`].
    pub(crate) fn boot_without_returning_memory(&self) -> Result<HostedHotplug<'_>, BootError> {
        self.boot_with(false)
    }

    fn boot_with(&self, gives_back: bool) -> Result<HostedHotplug<'_>, BootError> {
        let ram = [BootRange { start: 0, len: self.boot_memory.bytes() }];
        let mapped_below = self.boot_memory.end();
        let low_end = self.low_end;
        let map = BootMap { mapped_below, low_end, cpus: CPUS, ..BootMap::of_ram(&ram) };
        let mapping = HostMemory { machine: self, gives_back };
        // SAFETY: all of boot memory is readable and writable. It is accessed only through
        // `frames`, by this module, and by unsafe code that uses pointers from `address_of`.
        unsafe { Hotplug::bootstrap(&self.frames, mapping, &map) }
    }

    /// Returns the allocator.
    #[must_use]
    pub fn frames(&self) -> &Frames<Threads> {
        &self.frames
    }

    /// Returns the boot memory.
    #[must_use]
    pub fn boot_memory(&self) -> PfnRange {
        self.boot_memory
    }

    fn waker(&self) -> &Waker {
        &self.frames.platform().waker
    }

    /// Returns the range in which memory may be plugged. The caller announces all or a part of it.
    #[must_use]
    pub fn room(&self) -> PfnRange {
        self.room
    }

    /// Returns the memory of an unused part of the room to the host.
    pub(crate) fn give_back(&self, range: PfnRange) {
        let range = range.intersection(self.room);
        // If the host refuses, as it does for locked memory, the pages stay committed, which only
        // costs memory.
        let _ = self.memory.discard(range.start().phys_addr(), range.bytes());
    }

    /// Returns the address of a frame. A caller may access it only while it owns the frame.
    #[must_use]
    pub fn address_of(&self, frame: Pfn) -> Option<NonNull<u8>> {
        self.memory.at(frame.phys_addr())
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

    /// Sets the size of the room for plugged memory. It costs nothing until memory is plugged and
    /// touched.
    pub const fn room(self, room: Bytes) -> Builder {
        Builder { room, ..self }
    }

    /// Reserves no addresses for the room.
    ///
    /// # Safety
    /// Plugged memory is never accessed. So that the engine does not access it either, boot memory
    /// must always have a free frame in a divided pageblock for the frame bitmaps of each section.
    pub(crate) const unsafe fn unbacked(self) -> Builder {
        Builder { backed: false, ..self }
    }

    /// Reserves the addresses.
    ///
    /// # Errors
    /// [`HostedError`].
    pub fn build(self) -> Result<Hosted, HostedError> {
        let too_large = HostedError::TooLarge(self.boot_memory, self.room);
        let room_at = self.boot_memory.0.checked_next_multiple_of(ROOM_ALIGN.0).ok_or(too_large)?;
        let range = |start, len| PfnRange::from_bytes(start, len).map_err(|_| too_large);
        for size in [self.boot_memory, self.room] {
            if !size.0.is_multiple_of(Bytes::mib(2).0) {
                return Err(HostedError::Unaligned(size));
            }
        }
        let (boot_memory, room) = (range(0, self.boot_memory)?, range(room_at, self.room)?);
        let end = if self.backed { room.end() } else { boot_memory.end() };
        let memory = Reservation::new(Bytes(end.phys_addr()))?;
        let frames = Frames::new(Threads::default());
        let Builder { backed, low_end, .. } = self;
        Ok(Hosted { frames, mmu: OnceLock::new(), memory, backed, boot_memory, low_end, room })
    }
}

/// A platform whose CPUs are threads. A thread gets its CPU number at its first allocation.
#[derive(Debug, Default)]
pub struct Threads {
    waker: Waker,
}

thread_local! {
    static NODE: Cell<NodeId> = const { Cell::new(NodeId::ZERO) };
    /// The thread's CPU number, from 1 on; 0 until it has one.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

impl Threads {
    /// Lets the calling thread belong to `node` from now on. A new thread belongs to node 0.
    pub fn run_on(node: NodeId) {
        NODE.set(node);
    }

    /// Lets the calling thread be CPU `cpu` from now on. One thread can be several CPUs in turn,
    /// and two threads may be the same CPU.
    pub fn run_as(cpu: usize) {
        NUMBER.set(cpu + 1);
    }
}

impl Platform for Threads {
    #[inline]
    fn cpu(&self) -> usize {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        NUMBER.with(|number| {
            if number.get() == 0 {
                // Relaxed: the numbers only need to differ.
                number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            }
            number.get() - 1
        })
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
pub type HostedHotplug<'m> = Hotplug<'m, Threads, HostMemory<'m>>;

/// The mapping of a hosted machine: all memory is always mapped. The host commits a page when it is
/// touched, and gets it back when the machine unmaps it.
#[derive(Clone, Copy)]
pub struct HostMemory<'m> {
    machine: &'m Hosted,
    gives_back: bool,
}

// SAFETY: frame 0 is the first byte of the reservation, which covers boot memory and room
// (`Builder::unbacked` answers for a reservation without the room), is readable and writable, and
// lives as long as `frames`. Memory that was returned to the host reads as zeros.
unsafe impl Mapping for HostMemory<'_> {
    fn base(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.machine.memory.address())
    }

    fn reach(&self) -> PfnRange {
        let (boot, room) = (self.machine.boot_memory, self.machine.room);
        PfnRange::new(boot.start(), boot.end().max(room.end())).unwrap_or(boot)
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        if self.gives_back {
            self.machine.give_back(range);
        }
    }
}

#[cfg(test)]
mod tests;
