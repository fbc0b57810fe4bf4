//! Implements OSTD's frame allocator interface by Hotmem.
#![no_std]

mod boot_map;
mod required_cpu;

use core::alloc::Layout;
use core::mem::take;
use core::ops::Range;
use core::ptr::with_exposed_provenance_mut;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{
    AllocRequest, AlwaysMapped, BootMap, Frames, Hotplug, NoHooks, Pfn, PfnRange, Platform,
};
use hotmem_port::{AllocRetry, BootRanges, add_late_memory};
use ostd::cpu::CpuId;
use ostd::mm::frame::GlobalFrameAllocator;
use ostd::mm::{KERNEL_VADDR_RANGE, Paddr};
use ostd::sync::{LocalIrqDisabled, SpinLock};
use ostd::util::id_set::Id;

/// The type of the control path.
pub type ControlPath = Hotplug<'static, Cpus, AlwaysMapped>;

/// The frame allocator.
pub static FRAMES: Frames<Cpus> = Frames::new(Cpus);
/// The control path, which is set at the first allocation. Its lock disables interrupts, which is
/// possible only because this mapping never unmaps anything: a kernel that flushes the TLBs of other
/// CPUs needs a lock that keeps interrupts on, or two CPUs wait for each other.
pub static HOTPLUG: SpinLock<Option<ControlPath>, LocalIrqDisabled> = SpinLock::new(None);

/// Free boot memory, until the engine is started with it.
static BOOT_MEMORY: SpinLock<BootRanges<16>, LocalIrqDisabled> = SpinLock::new(BootRanges::new());

/// A platform with OSTD's CPU numbers.
#[derive(Debug)]
pub struct Cpus;

impl Platform for Cpus {
    fn cpu(&self) -> usize {
        CpuId::current_racy().as_usize()
    }
}

/// OSTD's frame allocator.
#[derive(Debug)]
pub struct FrameAllocator;

impl GlobalFrameAllocator for FrameAllocator {
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        let request = AllocRequest::frames(layout.size() as u64 / FRAME_SIZE)
            .aligned(layout.align() as u64 / FRAME_SIZE);
        let frames = match FRAMES.alloc_retry(request) {
            Ok(frames) => frames,
            // The first allocation finds no memory, because the engine is not started yet. OSTD's
            // interface has one error only.
            Err(_) => boot().then(|| FRAMES.alloc_retry(request).ok())??,
        };
        Some(frames.into_raw().start().phys_addr() as Paddr)
    }

    fn dealloc(&self, addr: Paddr, size: usize) {
        let first = Pfn::containing(addr as u64).expect("the address is physical");
        let frames = PfnRange::with_len(first, size as u64 / FRAME_SIZE).expect("physical memory");
        // SAFETY: OSTD frees only frames that it has allocated, and frames that it has taken at
        // boot; the latter are reserved in the boot map. OSTD's interface requires this, although
        // `dealloc` is not an unsafe function.
        unsafe { FRAMES.free_raw(frames) }.expect("the freed frames are allocated");
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        // This is OSTD's first call of this crate after it has a console.
        required_cpu::check();
        let (start, end) = (addr as u64, (addr + size) as u64);
        let region = boot_map::region();
        let mut hotplug = HOTPLUG.lock();
        let mut free = BOOT_MEMORY.lock();
        // Leave out the device's region. The driver announces that region, and memory of it is
        // added when the device plugs it.
        let parts = [start..end.min(region.start), start.max(region.end)..end];
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            match hotplug.as_mut() {
                None => free.add(part).expect("16 ranges of free memory are enough"),
                Some(hotplug) => add_late(hotplug, part),
            }
        }
    }
}

/// Adds free memory that OSTD has found after the engine was started, as it does on TDX.
fn add_late(hotplug: &mut ControlPath, bytes: Range<u64>) {
    let frames = PfnRange::try_from(bytes).expect("OSTD adds whole frames");
    // SAFETY: OSTD has passed only free memory, and all memory is mapped.
    let added = unsafe { add_late_memory(hotplug, frames, &mut NoHooks) };
    added.expect("the memory was reserved at boot, or is unknown");
}

/// Starts the engine with the free boot memory. Returns false if it was started before.
#[cold]
fn boot() -> bool {
    let free = take(&mut *BOOT_MEMORY.lock());
    if free.is_empty() {
        return false;
    }
    let mut ram = BootRanges::<64>::new();
    boot_map::ram().for_each(|range| ram.add(range).expect("the shim copies at most 64 ranges"));
    let reserved = ram.without(&free).expect("64 reserved ranges are enough");
    let map = BootMap { reserved: reserved.as_slice(), ..BootMap::from(ram.as_slice()) };
    let end = boot_map::ram().map(|range| range.end).chain([boot_map::region().end]).max();
    let end = end.and_then(Pfn::containing).expect("the memory's end is a physical address");
    let mappable = PfnRange::new(Pfn::ZERO, end).expect("0 is not above the memory's end");
    let base = with_exposed_provenance_mut(KERNEL_VADDR_RANGE.start);
    // SAFETY: OSTD has mapped at `base` all memory up to the end of the last entry of the boot map.
    let mapping = unsafe { AlwaysMapped::new(base, mappable) };
    // SAFETY: OSTD has passed only free memory; all other RAM is reserved. OSTD boots on one CPU,
    // so the engine is started once.
    let hotplug = unsafe { Hotplug::bootstrap(&FRAMES, mapping, map) };
    *HOTPLUG.lock() = Some(hotplug.expect("the engine accepts the memory that OSTD has found"));
    true
}
