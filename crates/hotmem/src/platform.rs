//! What the engine needs to know about the machine it runs on.

use crate::addr::Pfn;

/// The processor the caller runs on. A plain value, so that many machines live in one process.
pub trait Platform {
    /// The number of the CPU that runs the caller. **A hint only**: two CPUs may give the same
    /// number and a thread may move right after asking; a wrong answer costs speed, never
    /// correctness. Called from any context, often: make it cheap.
    fn cpu(&self) -> usize;
}

/// A machine with one CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCpu;

impl Platform for OneCpu {
    fn cpu(&self) -> usize {
        0
    }
}

/// Where the kernel reaches physical memory: virtual address = physical address + offset.
///
/// The engine touches memory only through this, only frames that it was given as RAM and has
/// claimed, and only to keep its own metadata there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectMap {
    offset: usize,
}

impl DirectMap {
    /// A direct map at this offset (wrapping).
    ///
    /// # Safety
    /// Every frame that the engine is given as boot memory, and every frame added later once
    /// [`Hooks::map`](crate::Hooks::map) has returned for it, is readable and writable at
    /// its physical address + `offset` until [`Hooks::unmap`](crate::Hooks::unmap), and is used by
    /// nobody but whoever the engine hands it to.
    #[must_use]
    pub const unsafe fn at_offset(offset: usize) -> DirectMap {
        DirectMap { offset }
    }

    pub(crate) const fn offset(self) -> usize {
        self.offset
    }

    pub(crate) const fn from_offset(offset: usize) -> DirectMap {
        DirectMap { offset }
    }

    /// Where the frame's first byte is mapped.
    #[allow(clippy::cast_possible_truncation, reason = "a direct map needs 64-bit addresses")]
    pub(crate) const fn pointer(self, pfn: Pfn) -> *mut u8 {
        self.offset.wrapping_add(pfn.phys_addr() as usize) as *mut u8
    }

    /// The frame that is mapped at `pointer`.
    pub(crate) fn frame_at(self, pointer: *mut u8) -> Option<Pfn> {
        Pfn::containing((pointer as usize).wrapping_sub(self.offset) as u64)
    }
}
