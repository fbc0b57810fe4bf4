//! The machine's boot memory, frame allocator, heap and control path.

use axconfig::plat::PHYS_VIRT_OFFSET;
use axerrno::{AxError, AxResult};
use core::alloc::Layout;
use core::mem::take;
use core::ptr::{NonNull, without_provenance};
use hotmem::{AllocRequest, BootMap, Bytes, Frames, Hotplug, Pfn, PfnRange};
use hotmem_heap::Heap;
use hotmem_port::lock_api::Mutex;
use hotmem_port::{
    AllocOrNone, BootRanges, Interrupts, IrqLock, LateMapping, LatePlatform, LinearMap,
};
use kernel_guard::{BaseGuard, NoPreemptIrqSave};

type Lock = IrqLock<Cpu>;
type Mapping = LateMapping<'static, LatePlatform, Lock>;
type Machine = Hotplug<'static, LatePlatform, &'static Mapping>;

/// The frame allocator.
pub static FRAMES: Frames<LatePlatform> = Frames::new(LatePlatform::new());
/// The control path, which is set at the first allocation.
pub static HOTPLUG: Mutex<Lock, Option<Machine>> = Mutex::new(None);
/// The linear map.
// SAFETY: ArceOS's boot code maps 512 GiB there, and passes only free memory to `global_init`.
pub static MAPPING: Mapping = unsafe { LateMapping::new(&FRAMES, LINEAR, REACH) };

pub(crate) const LINEAR: LinearMap = LinearMap::at_address(PHYS_VIRT_OFFSET);
const REACH: PfnRange = PfnRange::with_len(Pfn::ZERO, Bytes::gib(512).frames()).unwrap();
/// The heap.
pub static HEAP: Heap<LatePlatform, Lock> = Heap::new(&FRAMES, LINEAR);
/// Free boot memory, until the engine is started with it.
static BOOT: Mutex<Lock, BootRanges<16>> = Mutex::new(BootRanges::new());

/// The calling CPU.
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

pub(crate) fn add_boot_memory(start: usize, size: usize) -> AxResult {
    let start = (start - PHYS_VIRT_OFFSET) as u64;
    BOOT.lock().add(start..start + size as u64).map_err(|_| AxError::NoMemory)
}

/// Starts the engine with the free boot memory. Returns false if it was started before.
#[cold]
fn boot() -> bool {
    let ram = take(&mut *BOOT.lock());
    if ram.is_empty() {
        return false;
    }
    let map = BootMap::of_ram(ram.as_slice());
    // SAFETY: ArceOS has passed only free memory, all of which is mapped here, and boots on one
    // CPU.
    let machine = unsafe { Hotplug::bootstrap(&FRAMES, &MAPPING, &map) };
    *HOTPLUG.lock() = Some(machine.expect("memory that ArceOS has found"));
    true
}

pub(crate) fn alloc(layout: Layout) -> Option<NonNull<u8>> {
    HEAP.alloc(layout).or_else(|| if boot() { HEAP.alloc(layout) } else { None })
}

/// # Safety
/// As for [`Heap::free`].
pub(crate) unsafe fn free(object: NonNull<u8>, layout: Layout) {
    // SAFETY: the caller guarantees it.
    unsafe { HEAP.free(object, layout) };
}

pub(crate) fn alloc_frames(request: AllocRequest) -> AxResult<usize> {
    let again = || if boot() { FRAMES.alloc_or_none(request) } else { None };
    let frames = FRAMES.alloc_or_none(request).or_else(again).ok_or(AxError::NoMemory)?;
    Ok(LINEAR.pointer(frames.into_raw().start()).addr())
}

pub(crate) fn free_frames(start: usize, pages: usize) {
    let frames = LINEAR.frames(without_provenance(start), pages << 12).expect("mapped pages");
    // SAFETY: ArceOS frees only pages that it has allocated. Its interface does not mark this
    // requirement as unsafe.
    unsafe { FRAMES.free_raw(frames) }.expect("pages that are allocated");
}
