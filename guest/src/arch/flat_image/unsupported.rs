//! Abilities that the kernel has on x86-64, and not on the architectures of flat images.

use core::convert::Infallible;
use core::fmt;
use hotmem::{Pfn, PfnRange};
use hotmem_guest::memory_map::MemoryMapEntry;
use hotmem_guest::pvh::Handover;

/// The kernel lacks this on the architecture.
pub(crate) struct Unsupported(&'static str);

/// A type without values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Never {}

/// An I/O port, which the CPU does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IoPort(Never);

impl IoPort {
    pub(crate) const fn new(_: u16) -> Option<Self> {
        None
    }

    pub(crate) fn checked_add(self, _: u16) -> Option<Self> {
        match self.0 {}
    }

    pub(crate) unsafe fn read_u8(self) -> u8 {
        match self.0 {}
    }

    pub(crate) unsafe fn read_u32(self) -> u32 {
        match self.0 {}
    }

    pub(crate) unsafe fn write_u8(self, _: u8) {
        match self.0 {}
    }

    pub(crate) unsafe fn write_u16(self, _: u16) {
        match self.0 {}
    }

    pub(crate) unsafe fn write_u32(self, _: u32) {
        match self.0 {}
    }
}

/// A kernel to start at the end, which this kernel cannot do.
pub(crate) struct NextKernel(Never);

impl NextKernel {
    pub(crate) fn prepare(
        _: &MemoryMapEntry,
        _: impl Iterator<Item = PfnRange>,
        _: Handover<'_>,
    ) -> Result<Self, Unsupported> {
        Err(Unsupported("start of another kernel"))
    }

    pub(crate) fn start(self) -> Infallible {
        match self.0 {}
    }
}

/// Refuses NMIs, which the CPU does not have.
pub(crate) fn handle_nmis(_: fn(usize)) -> Result<(), Unsupported> {
    Err(Unsupported("NMIs"))
}

/// Returns a bad frame that the CPU has reported. The kernel does not take such reports.
pub(crate) fn take_bad_frame() -> Option<Pfn> {
    None
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel has no {} on {}", self.0, crate::arch::NAME)
    }
}
