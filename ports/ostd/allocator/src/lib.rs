//! Hotmem behind OSTD's interface of a frame allocator.
#![no_std]

mod boot_map;

use core::alloc::Layout;
use core::mem::take;
use core::ptr::with_exposed_provenance_mut;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{AllocRequest, AlwaysMapped, BootMap, Frames, Hotplug, Pfn, PfnRange, Platform};
use hotmem_port::{AllocOrNone, BootRanges};
use ostd::cpu::CpuId;
use ostd::mm::frame::GlobalFrameAllocator;
use ostd::mm::{KERNEL_VADDR_RANGE, Paddr};
use ostd::sync::{LocalIrqDisabled, SpinLock};
use ostd::util::id_set::Id;

/// The control path of this machine.
pub type Machine = Hotplug<'static, Cpus, AlwaysMapped>;

/// All frames.
pub static FRAMES: Frames<Cpus> = Frames::new(Cpus);
/// The control path, from the first allocation on.
pub static HOTPLUG: SpinLock<Option<Machine>, LocalIrqDisabled> = SpinLock::new(None);

/// Boot memory that OSTD has named and that was not handed over yet.
static FREE: SpinLock<BootRanges<16>, LocalIrqDisabled> = SpinLock::new(BootRanges::new());

/// The CPUs, as OSTD counts them.
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
        let again = || if boot() { FRAMES.alloc_or_none(request) } else { None };
        let frames = FRAMES.alloc_or_none(request).or_else(again)?;
        Some(frames.into_raw().start().phys_addr() as Paddr)
    }

    fn dealloc(&self, addr: Paddr, size: usize) {
        let first = Pfn::containing(addr as u64).expect("an address of memory");
        let frames = PfnRange::with_len(first, size as u64 / FRAME_SIZE).expect("memory");
        // SAFETY: by the interface's contract, which OSTD does not mark as unsafe. What it frees and
        // has not allocated are frames that it took at boot, which are reserved.
        unsafe { FRAMES.free_raw(frames) }.expect("frames that are in use");
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        let (start, end) = (addr as u64, (addr + size) as u64);
        let region = boot_map::region();
        let mut free = FREE.lock();
        // The region is announced, and comes when the device plugs it.
        for part in [start..end.min(region.start), start.max(region.end)..end] {
            free.add(part).expect("16 ranges of free memory are enough");
        }
    }
}

/// Starts the machine with the memory that was named. Returns false if it runs already.
#[cold]
fn boot() -> bool {
    let free = take(&mut *FREE.lock());
    if free.is_empty() {
        return false;
    }
    let mut ram = BootRanges::<64>::new();
    boot_map::ram().for_each(|range| ram.add(range).expect("as many as the shim has copied"));
    let reserved = ram.without(&free).expect("not many more ranges");
    let map = BootMap { reserved: reserved.as_slice(), ..BootMap::of_ram(ram.as_slice()) };
    let end = boot_map::ram().map(|range| range.end).chain([boot_map::region().end]).max();
    let end = end.and_then(Pfn::containing).expect("an address of memory");
    let reach = PfnRange::new(Pfn::ZERO, end).expect("from 0");
    let base = with_exposed_provenance_mut(KERNEL_VADDR_RANGE.start);
    // SAFETY: OSTD has mapped all memory up to the end of the last entry of the boot map there.
    let mapping = unsafe { AlwaysMapped::new(base, reach) };
    // SAFETY: OSTD has named what is free and boots on one CPU.
    let machine = unsafe { Hotplug::bootstrap(&FRAMES, mapping, &map) };
    *HOTPLUG.lock() = Some(machine.expect("memory that OSTD has found"));
    true
}
