//! Holds the frame allocator, the heap and the control path, and starts the engine with boot
//! memory.

use axconfig::plat::PHYS_VIRT_OFFSET;
use axerrno::{AxError, AxResult};
use core::alloc::Layout;
use core::mem::take;
use core::ptr::{NonNull, without_provenance};
use hotmem::{
    AllocError, AllocRequest, BootMap, Bytes, Frames, Hotplug, NoHooks, Pfn, PfnRange, ZonePart,
};
use hotmem_heap::Heap;
use hotmem_port::lock_api::Mutex;
use hotmem_port::{
    AllocRetry, BootRanges, ConfigurablePlatform, Interrupts, IrqLock, LateMapping, LinearMap,
    add_late_memory,
};
use kernel_guard::{BaseGuard, NoPreemptIrqSave};

type Lock = IrqLock<Cpu>;
type Mapping = LateMapping<'static, ConfigurablePlatform, Lock>;
type ControlPath = Hotplug<'static, ConfigurablePlatform, &'static Mapping>;

/// The frame allocator.
pub static FRAMES: Frames<ConfigurablePlatform> = Frames::new(ConfigurablePlatform::new());
/// The control path, which is set at the first allocation. Its lock disables interrupts, which is
/// possible only because the mapper flushes no TLBs of other CPUs: a kernel that does needs a lock
/// that keeps interrupts on, or two CPUs wait for each other.
pub static HOTPLUG: Mutex<Lock, Option<ControlPath>> = Mutex::new(None);
/// The linear map.
// SAFETY: ArceOS's boot code maps the first 512 GiB of physical memory at `PHYS_VIRT_OFFSET`, and
// ArceOS passes only free memory to `global_init`.
pub static MAPPING: Mapping = unsafe { LateMapping::new(&FRAMES, LINEAR, MAPPABLE) };

pub(crate) const LINEAR: LinearMap = LinearMap::at_address(PHYS_VIRT_OFFSET);
const MAPPABLE: PfnRange = PfnRange::with_len(Pfn::ZERO, Bytes::gib(512).frames()).unwrap();
/// The heap.
pub static HEAP: Heap<ConfigurablePlatform, Lock> = Heap::new(&FRAMES, LINEAR);
/// Free boot memory, until the engine is started with it.
static BOOT_MEMORY: Mutex<Lock, BootRanges<16>> = Mutex::new(BootRanges::new());

/// The interrupts of the calling CPU, for [`IrqLock`].
pub struct Cpu;

impl Interrupts for Cpu {
    type State = <NoPreemptIrqSave as BaseGuard>::State;

    fn disable() -> Self::State {
        NoPreemptIrqSave::acquire()
    }

    fn restore(state: Self::State) {
        NoPreemptIrqSave::release(state);
    }
}

/// Adds a range of free memory, at boot or later. `start` is a virtual address in the linear map.
pub fn global_add_memory(start: usize, size: usize) -> AxResult {
    let start = (start - PHYS_VIRT_OFFSET) as u64;
    if let Some(hotplug) = &mut *HOTPLUG.lock() {
        let range = PfnRange::from_bytes(start, Bytes(size as u64));
        let range = range.map_err(|_| AxError::InvalidInput)?;
        // SAFETY: ArceOS has passed only free memory, all of which the linear map maps.
        let added = unsafe { add_late_memory(hotplug, range, &mut NoHooks) };
        return added.map(|_| ()).map_err(|_| AxError::NoMemory);
    }
    BOOT_MEMORY.lock().add(start..start + size as u64).map_err(|_| AxError::NoMemory)
}

/// Starts the engine with the free boot memory. Returns false if it was started before.
#[cold]
fn boot() -> bool {
    let ram = take(&mut *BOOT_MEMORY.lock());
    if ram.is_empty() {
        return false;
    }
    // SAFETY: ArceOS has passed only free memory, all of which the linear map maps. ArceOS boots on
    // one CPU, so the engine is started once.
    let hotplug = unsafe { Hotplug::bootstrap(&FRAMES, &MAPPING, BootMap::from(ram.as_slice())) };
    *HOTPLUG.lock() = Some(hotplug.expect("the engine accepts the memory that ArceOS has found"));
    true
}

pub(crate) fn alloc(layout: Layout) -> Option<NonNull<u8>> {
    HEAP.alloc(layout).or_else(|| if boot() { HEAP.alloc(layout) } else { None })
}

/// Frees an object.
///
/// # Safety
/// As for [`Heap::free`].
pub(crate) unsafe fn free(object: NonNull<u8>, layout: Layout) {
    // SAFETY: the caller keeps the promises of `Heap::free`.
    unsafe { HEAP.free(object, layout) };
}

pub(crate) fn alloc_frames(request: AllocRequest) -> AxResult<usize> {
    // The first allocation finds no memory, because the engine is not started yet.
    let boot_and_retry = |error| if boot() { FRAMES.alloc_retry(request) } else { Err(error) };
    let frames = FRAMES.alloc_retry(request).or_else(boot_and_retry);
    let frames = frames.map_err(|error| match error {
        AllocError::OutOfMemory => AxError::NoMemory,
        AllocError::Busy | AllocError::NotFree(_) => AxError::ResourceBusy,
        AllocError::Bad(_) => AxError::InvalidInput,
    })?;
    Ok(LINEAR.pointer(frames.into_raw().start()).addr())
}

pub(crate) fn used_frames() -> usize {
    FRAMES.allocated_frames().expect("`ConfigurablePlatform` counts allocated frames") as usize
}

pub(crate) fn online_frames() -> usize {
    let hotplug = HOTPLUG.lock();
    let Some(hotplug) = &*hotplug else { return 0 };
    let zones = hotplug.nodes().flat_map(|node| ZonePart::ALL.map(|part| hotplug.zone(node, part)));
    zones.map(|zone| zone.present as usize).sum()
}

pub(crate) fn free_frames(start: usize, pages: usize) {
    let frames = LINEAR.frames(without_provenance(start), pages << 12).expect("linearly mapped");
    // SAFETY: ArceOS frees only pages that it has allocated. ArceOS's interface requires this,
    // although `dealloc_pages` is not an unsafe function.
    unsafe { FRAMES.free_raw(frames) }.expect("the freed pages are allocated");
}
