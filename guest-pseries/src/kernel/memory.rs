//! Starts the engine, and allocates and frees the machine's frames.

use super::boot::Machine;
use super::exit::{give_up, must};
use core::fmt;
use hotmem::{
    AllocRequest, Allocation, AlwaysMapped, BootMap, BootRange, Bytes, Frames, Hotplug, NodeId,
    OneCpu, Pfn, PfnRange,
};
use hotmem_guest::frame_words::FrameWords;

pub(super) static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

/// Access to frames as words. The MMU is off, so addresses are physical.
pub(super) const FRAME_WORDS: FrameWords = FrameWords::at_offset(0);

unsafe extern "C" {
    static __image_end: u8;
}

/// Starts the engine with all boot memory. Reserves the exception vectors and the kernel.
pub(super) fn start(machine: &Machine) -> Hotplug<'static, OneCpu> {
    const EMPTY: BootRange = BootRange { start: 0, len: Bytes::ZERO };
    const NONE: (BootRange, NodeId) = (EMPTY, NodeId::ZERO);
    let mut ram = [EMPTY; super::boot::MAX_BOOT_RANGES];
    let mut nodes = [NONE; super::boot::MAX_BOOT_RANGES];
    for ((ram, ram_node), (range, node)) in ram.iter_mut().zip(&mut nodes).zip(machine.memory) {
        *ram = BootRange { start: range.start().phys_addr(), len: range.bytes() };
        *ram_node = (*ram, node);
    }
    let end = (&raw const __image_end) as u64;
    let reserved = [BootRange { start: 0, len: Bytes(end) }];
    let map = BootMap { reserved: &reserved, nodes: &nodes, ..BootMap::from(&ram) };
    // SAFETY: the MMU is off, so memory lies at its physical address. Memory that is in use is
    // reserved. Memory is acquired from the hypervisor before it is added.
    let started = unsafe {
        let mapping = AlwaysMapped::new(core::ptr::with_exposed_provenance_mut(0), PfnRange::ALL);
        Hotplug::bootstrap(&FRAMES, mapping, map)
    };
    must("the engine", started.map_err(DebugText))
}

/// Displays a value by its `Debug` implementation.
struct DebugText<T>(T);

impl<T: fmt::Debug> fmt::Display for DebugText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Allocates movable frames anywhere.
pub(super) fn alloc(frames: u64) -> Option<PfnRange> {
    FRAMES.alloc(AllocRequest::frames(frames).movable()).ok().map(Allocation::into_raw)
}

/// Allocates exactly the movable frames from `start` on.
pub(super) fn alloc_at(start: Pfn, frames: u64) -> Option<PfnRange> {
    FRAMES.alloc(AllocRequest::frames(frames).movable().at(start)).ok().map(Allocation::into_raw)
}

/// Allocates one unmovable frame for a node of the set of owned frames.
pub(super) fn alloc_table_frame() -> Option<Pfn> {
    FRAMES.alloc(AllocRequest::frames(1)).ok().map(|frame| frame.into_raw().start())
}

/// Allocates contiguous unmovable frames.
pub(super) fn alloc_contiguous(frames: u64) -> Option<PfnRange> {
    FRAMES.alloc(AllocRequest::frames(frames)).ok().map(Allocation::into_raw)
}

/// Frees frames that one of the functions above has allocated. The caller does not use them any
/// more.
pub(super) fn free(frames: PfnRange) {
    // SAFETY: the functions above have allocated the frames, and the callers do not use them any
    // more.
    if let Err(error) = unsafe { FRAMES.fill_and_free_raw(frames) } {
        give_up(format_args!("the engine refused to take frames back: {error}"));
    }
}

/// Returns the amounts of online and of free memory.
pub(super) fn online_and_free() -> (Bytes, Bytes) {
    let counts = FRAMES.counts();
    let bytes = |frames: u64| Bytes(frames << 12);
    (bytes(counts.online), bytes(counts.free))
}

/// Checks that the engine is consistent.
pub(super) fn validate() -> Result<(), impl fmt::Display> {
    // SAFETY: there is one CPU, and no interrupt handler that allocates.
    unsafe { FRAMES.validate() }.map(drop).map_err(DebugText)
}
