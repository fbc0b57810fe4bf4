//! Tests that a mapper of the crate `x86_64` takes its page tables from a list of frames, and returns
//! them to it.

#![cfg(feature = "x86_64")]

use hotmem::{AllocRequest, Frames, OneCpu, PfnRange};
use hotmem_port::{LinearMap, TableFrames};
use hotmem_testkit::{Memory, SECTION, boot};
use x86_64::structures::paging::mapper::{CleanUp, MapToError};
use x86_64::structures::paging::{
    FrameAllocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame, Size4KiB,
};
use x86_64::{PhysAddr, VirtAddr};

const FLAGS: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::WRITABLE);

/// Returns the page with this number among the first pages of the upper half of the address space.
fn page(number: u64) -> Page {
    Page::containing_address(VirtAddr::new(0xffff_8000_0000_0000 + (number << 12)))
}

fn frame(number: u64) -> PhysFrame {
    PhysFrame::containing_address(PhysAddr::new(number << 12))
}

#[test]
#[cfg_attr(miri, ignore = "`x86_64` makes pointers to page tables from numbers")]
fn a_mapper_takes_and_returns_page_tables() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(OneCpu);
    let _hotplug = boot(&frames, &memory, SECTION);
    // Divide a pageblock first, because the engine then allocates a frame for bitmaps.
    drop(frames.alloc(AllocRequest::frames(5)).unwrap());
    let free = frames.counts().free;
    let map = LinearMap::new(memory.start());
    let mut table_frames = TableFrames::new(&frames, map);
    let mut reserve =
        frames.alloc(AllocRequest::frames(5)).unwrap().into_raw().chunks(1).map(PfnRange::start);
    // SAFETY: the frames were allocated above, are mapped linearly, and nothing else uses them.
    unsafe { table_frames.add_frames(&mut || reserve.next()) };

    let root = map.pointer(table_frames.take().unwrap()).cast::<PageTable>();
    // SAFETY: the frame was allocated for the root, and nothing else uses it.
    let root = unsafe { &mut *root };
    root.zero();
    // SAFETY: all memory of the machine is mapped at this offset.
    let mut mapper =
        unsafe { OffsetPageTable::new(root, VirtAddr::from_ptr(memory.start().cast_const())) };
    // The root and the first page's three tables use four of the five frames. A page 1 GiB above it
    // needs two more tables, but only one frame is left.
    // SAFETY: no processor uses these page tables.
    unsafe { mapper.map_to(page(0), frame(1), FLAGS, &mut table_frames) }.unwrap().ignore();
    // SAFETY: as above.
    let refused = unsafe { mapper.map_to(page(1 << 18), frame(2), FLAGS, &mut table_frames) };
    assert!(matches!(refused, Err(MapToError::FrameAllocationFailed)), "{refused:?}");
    assert_eq!(frames.counts().free, free - 5);

    mapper.unmap(page(0)).unwrap().1.ignore();
    // SAFETY: all tables below the root come from `table_frames`.
    unsafe { mapper.clean_up(&mut table_frames) };
    assert_eq!(table_frames.free_rest(), 4);
    assert_eq!(frames.counts().free, free - 1);
    assert_eq!(FrameAllocator::<Size4KiB>::allocate_frame(&mut table_frames), None);
}
