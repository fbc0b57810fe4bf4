//! Tests the count of the frames that callers have.

use hotmem::*;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, pfn, range};
use hotmem_testkit::{RawRanges as _, Validated as _};

const BOOT_FRAMES: u64 = 4 * SECTION;

fn allocated(frames: &Frames<Cpus>) -> u64 {
    frames.allocated_frames().expect("this platform counts")
}

#[test]
fn each_call_counts_the_frames_that_it_allocates_or_frees() {
    let (frames, memory) = (Frames::new(Cpus), Memory::new(BOOT_FRAMES));
    let _hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    assert_eq!(allocated(&frames), 0);
    Cpus::run_on(1);
    let one = frames.alloc(AllocRequest::frames(1)).unwrap();
    let three = frames.alloc(AllocRequest::frames(3)).unwrap();
    let blocks = frames.alloc(AllocRequest::frames(2 * PAGEBLOCK)).unwrap();
    let odd = frames.alloc_contiguous(AllocRequest::frames(PAGEBLOCK + 1)).unwrap();
    assert_eq!(allocated(&frames), 1 + 3 + 2 * PAGEBLOCK + PAGEBLOCK + 1);
    // Another CPU frees them.
    Cpus::run_on(2);
    drop((blocks, odd));
    assert_eq!(allocated(&frames), 4);
    let (two, last) = three.split_at(pfn(one.range().start().number() + 3));
    assert_eq!(allocated(&frames), 4, "a split changes nothing");
    drop((two, last));
    frames.fill_and_free_range(one.into_raw()).unwrap();
    assert_eq!(allocated(&frames), 0);

    let mut many = [Pfn::ZERO; 100];
    assert_eq!(frames.alloc_many(AllocRequest::frames(1), &mut many), Ok(100));
    assert_eq!(allocated(&frames), 100);
    // SAFETY: the test owns the frames, and does not use them. The second call must refuse them.
    unsafe {
        frames.free_many(&many).unwrap();
        assert_eq!(allocated(&frames), 0);
        assert!(frames.free_many(&many).is_err());
    }
    assert!(frames.free_range(range(many[0].number(), 1)).is_err());
    assert_eq!(allocated(&frames), 0, "a refused free changes nothing");

    let frame = frames.alloc_range(AllocRequest::frames(1)).unwrap();
    let fast = frames.alloc_frame_fast(2).expect("the cursor has free frames");
    assert_eq!(allocated(&frames), 2);
    for frame in [frame.start(), pfn(fast)] {
        // SAFETY: the test owns the frame, and does not use it.
        match unsafe { frames.free_frame_fast(frame, 2) } {
            FastFree::Complete => {}
            FastFree::Incomplete => frames.complete_free(frame),
            FastFree::Nothing => frames.free_range(range(frame.number(), 1)).unwrap(),
        }
    }
    assert_eq!(allocated(&frames), 0);
    frames.validated().unwrap();
}

#[test]
fn lent_memory_is_allocated_by_its_lender() {
    let (frames, memory) = (Frames::new(Cpus), Memory::new(BOOT_FRAMES));
    let _hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    let mut lent = LentMemory::new(&frames);
    let run = lent.allocate(AllocRequest::frames(40), &[]).unwrap();
    assert_eq!(allocated(&frames), 40);
    // The allocation is undone that must not be lent.
    assert!(lent.allocate(AllocRequest::frames(1).at(pfn(5)), &[range(0, 9)]).is_err());
    assert_eq!(allocated(&frames), 40);
    lent.free(run).unwrap();
    assert_eq!(allocated(&frames), 0);
}

#[test]
fn the_kernel_has_the_memory_that_boot_reserved_until_it_frees_it() {
    let (frames, memory) = (Frames::new(Cpus), Memory::new(BOOT_FRAMES));
    let ram = [BootRange { start: 0, len: range(0, BOOT_FRAMES).bytes() }];
    let kernel = range(SECTION + 10, PAGEBLOCK + 20);
    let reserved = [BootRange { start: kernel.start().phys_addr(), len: kernel.bytes() }];
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    let mapping = memory.direct_map();
    // SAFETY: the test uses no frame of the memory itself.
    let _hotplug = unsafe { Hotplug::bootstrap(&frames, mapping, map) }.unwrap();
    assert_eq!(allocated(&frames), kernel.frames());
    let (code, data) = kernel.split_at(pfn(SECTION + 14));
    frames.free_range(code).unwrap();
    assert_eq!(allocated(&frames), data.frames());
    frames.free_range(data).unwrap();
    assert_eq!(allocated(&frames), 0);
}

/// Tests what reading the count costs. The boot memory of the small geometry has no space for the
/// words of large machines.
#[cfg(not(hotmem_geometry = "small"))]
mod cost {
    use super::*;
    use crate::instruction_count;

    /// The environment variable with the number of GiB of the machine.
    const GIB_VARIABLE: &str = "HOTMEM_ALLOCATED_GIB";

    #[inline(never)]
    fn read_allocated_frames(frames: &Frames<Cpus>) -> Option<u64> {
        frames.allocated_frames()
    }

    /// Reads the count on a machine with this much memory. Ends the process then.
    fn count_and_exit(gib: u64) {
        let (frames, memory) = (Frames::new(Cpus), Memory::new(BOOT_FRAMES));
        let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
        let above = range(1 << 22, Bytes::gib(gib).frames());
        hotmem_testkit::plug(&mut hotplug, above);
        let _one = frames.alloc(AllocRequest::frames(1)).unwrap().into_raw();
        assert_eq!(read_allocated_frames(&frames), Some(1));
        std::process::exit(0);
    }

    #[test]
    fn reading_the_count_costs_at_most_500_instructions_at_any_size() {
        if let Ok(gib) = std::env::var(GIB_VARIABLE) {
            return count_and_exit(gib.parse().unwrap());
        }
        if !instruction_count::can_count() {
            return;
        }
        let test = "allocated::cost::reading_the_count_costs_at_most_500_instructions_at_any_size";
        let [small, large] = ["1", "2048"].map(|gib| {
            instruction_count::instructions(test, "read_allocated_frames", (GIB_VARIABLE, gib))
        });
        println!("{small:.0} instructions with 1 GiB, {large:.0} with 2 TiB");
        assert!(small > 10.0 && large == small, "{small:.0} with 1 GiB, {large:.0} with 2 TiB");
        // Without optimisation, each call of an iterator is a call.
        assert!(cfg!(debug_assertions) || large <= 500.0, "{large:.0} instructions");
    }
}
