//! Tests talc over the engine's frames against a record of its allocations.

use hotmem::{AllocRequest, Bytes, Frames, OneCpu};
use hotmem_heap::FrameSource;
use hotmem_port::LinearMap;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Validated as _, boot, free_or_metadata};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use talc::TalcLock;

/// The number of frames of the tests' memory.
const MEMORY_FRAMES: u64 = if cfg!(miri) { 4 * PAGEBLOCK } else { SECTION };

/// The size of talc's heaps, where the test chooses none.
const HEAP_FRAMES: u64 = 16;

type Heap<'f> = TalcLock<spin::mutex::SpinMutex<()>, FrameSource<'f, OneCpu>>;

/// An allocation whose bytes all have the same value.
struct Object {
    memory: *mut u8,
    layout: Layout,
    value: u8,
}

impl Object {
    fn new(heap: &Heap<'_>, layout: Layout, value: u8) -> Option<Object> {
        // SAFETY: the size of no test's object is 0.
        let memory = unsafe { heap.alloc(layout) };
        if memory.is_null() {
            return None;
        }
        assert_eq!(memory.addr() % layout.align(), 0, "{layout:?}");
        // SAFETY: `layout.size()` bytes were allocated.
        unsafe { memory.write_bytes(value, layout.size()) };
        Some(Object { memory, layout, value })
    }

    /// Changes the size, or leaves it as it is if no memory is free.
    fn resize(&mut self, heap: &Heap<'_>, size: usize) {
        self.check(self.layout.size());
        // SAFETY: the object was allocated from this heap with this layout.
        let memory = unsafe { heap.realloc(self.memory, self.layout, size) };
        if memory.is_null() {
            return;
        }
        let kept = self.layout.size().min(size);
        self.memory = memory;
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        self.check(kept);
        // SAFETY: the allocation has `size` bytes now.
        unsafe { self.memory.write_bytes(self.value, size) };
    }

    fn free(self, heap: &Heap<'_>) {
        self.check(self.layout.size());
        // SAFETY: the object was allocated from this heap with this layout, and is not used any more.
        unsafe { heap.dealloc(self.memory, self.layout) };
    }

    /// Checks that the first `bytes` bytes still have the value that was written.
    fn check(&self, bytes: usize) {
        // SAFETY: at least `bytes` bytes were allocated and written.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory, bytes) };
        // The bytes are compared in one call, because Miri is slow for single bytes.
        assert!(bytes == vec![self.value; bytes.len()], "{:?}", self.layout);
    }
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Runs `test` with a talc whose heaps have this many frames. Checks that afterwards only the first
/// heap, which has talc's lists, is allocated, and no more of it than is kept as a free end.
fn with_heap(heap_frames: u64, test: impl FnOnce(&Heap<'_>, &Frames<OneCpu>)) {
    with_source(|source, frames, _| {
        let before = free_or_metadata(frames);
        let heap = TalcLock::new(source.with_heap_size(Bytes(heap_frames * 4096)));
        test(&heap, frames);
        let kept = before - free_or_metadata(frames);
        assert!(kept <= heap_frames.div_ceil(4), "{kept} frames stay allocated");
    });
}

/// Runs `test` with a source, and checks the engine afterwards.
fn with_source(test: impl FnOnce(FrameSource<'_, OneCpu>, &Frames<OneCpu>, LinearMap)) {
    let memory = Memory::new(MEMORY_FRAMES);
    let frames = Frames::new(OneCpu);
    // The memory starts at physical address 0 and is aligned.
    let _hotplug = boot(&frames, &memory, MEMORY_FRAMES);
    let map = LinearMap::new(memory.start());
    test(FrameSource::new(&frames, map), &frames, map);
    frames.validated().unwrap();
}

#[derive(Clone, Debug)]
enum Operation {
    /// The size, and the base-2 logarithm of the alignment.
    Alloc(usize, u32),
    /// The index of the object, and the new size.
    Resize(usize, usize),
    /// The index of the object.
    Free(usize),
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1_usize..400, 3 => 400_usize..5000, 1 => 5000_usize..200_000]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (size(), 0_u32..15).prop_map(|(size, align)| Operation::Alloc(size, align)),
        2 => (any::<usize>(), size()).prop_map(|(index, size)| Operation::Resize(index, size)),
        6 => any::<usize>().prop_map(Operation::Free),
    ]
}

fn cases() -> u32 {
    match (cfg!(miri), std::env::var_os("HOTMEM_DEEP").is_some()) {
        (true, _) => 2,
        (_, true) => 5000,
        _ => 200,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn objects_keep_their_contents_and_all_heaps_but_the_first_are_freed(
        heap_frames in 1_u64..40,
        steps in proptest::collection::vec(operation(), 1..300),
    ) {
        with_heap(heap_frames, |heap, _| {
            let mut objects: Vec<Object> = Vec::new();
            for (number, operation) in steps.into_iter().enumerate() {
                match operation {
                    Operation::Alloc(size, align) => {
                        let number = u8::try_from(number % 251).unwrap();
                        objects.push(Object::new(heap, layout(size, 1 << align), number).unwrap());
                    }
                    Operation::Resize(index, size) if !objects.is_empty() => {
                        let index = index % objects.len();
                        objects[index].resize(heap, size);
                    }
                    Operation::Free(index) if !objects.is_empty() => {
                        objects.swap_remove(index % objects.len()).free(heap);
                    }
                    Operation::Resize(..) | Operation::Free(_) => {}
                }
            }
            objects.into_iter().for_each(|object| object.free(heap));
        });
    }
}

#[test]
fn all_memory_can_be_used_and_a_request_that_does_not_fit_changes_nothing() {
    for size in [500, 5000, 60_000, 300_000] {
        with_heap(HEAP_FRAMES, |heap, frames| {
            let new = || Object::new(heap, layout(size, 8), 5);
            let objects: Vec<Object> = std::iter::from_fn(new).collect();
            let heap_of_one = AllocRequest::frames(size.div_ceil(4096) as u64 + 1);
            assert!(frames.alloc(heap_of_one).is_err(), "objects of {size} bytes");
            let free = frames.counts().free;
            assert!(new().is_none());
            assert_eq!(frames.counts().free, free);
            objects.into_iter().for_each(|object| object.free(heap));
            let again = new().expect("all memory was freed");
            again.free(heap);
        });
    }
}

#[test]
fn when_a_whole_heap_is_not_free_talc_gets_as_many_frames_as_the_object_needs() {
    with_heap(PAGEBLOCK, |heap, frames| {
        let first = Object::new(heap, layout(1, 1), 1).unwrap();
        let taken: Vec<_> =
            std::iter::from_fn(|| frames.alloc(AllocRequest::frames(PAGEBLOCK)).ok()).collect();
        let objects: Vec<Object> =
            std::iter::from_fn(|| Object::new(heap, layout(20_000, 8), 2)).collect();
        assert!(objects.len() as u64 > PAGEBLOCK * 4096 / 20_000, "{} objects", objects.len());
        drop(taken);
        objects.into_iter().chain([first]).for_each(|object| object.free(heap));
    });
}

#[test]
fn objects_can_have_an_alignment_of_more_than_a_page() {
    with_heap(HEAP_FRAMES, |heap, frames| {
        for align in [4096, 1 << 14, 1 << 16, 1 << 21] {
            let before = free_or_metadata(frames);
            for size in [1, 100, 4096, 70_000, 1 << 21] {
                Object::new(heap, layout(size, align), 3).unwrap().free(heap);
            }
            let kept = before.saturating_sub(free_or_metadata(frames));
            assert!(kept <= HEAP_FRAMES / 4, "{kept} frames after objects aligned to {align}");
        }
    });
}

#[test]
fn a_layout_larger_than_any_memory_is_refused() {
    with_heap(HEAP_FRAMES, |heap, frames| {
        let free = frames.counts().free;
        for layout in [layout(1 << (usize::BITS - 2), 1), layout(1, 1 << (usize::BITS - 2))] {
            assert!(Object::new(heap, layout, 0).is_none(), "{layout:?}");
        }
        assert_eq!(frames.counts().free, free);
    });
}

#[test]
fn the_free_end_of_a_large_heap_is_freed_while_its_start_is_in_use() {
    with_heap(HEAP_FRAMES, |heap, frames| {
        let mut object = Object::new(heap, layout(4 << 20, 8), 1).unwrap();
        let free = frames.counts().free;
        object.resize(heap, 100);
        assert_eq!(frames.counts().free - free, 1024, "one frame is left of 4 MiB and the lists");
        object.free(heap);
    });
}

#[test]
fn a_small_region_of_the_kernel_may_be_the_first_heap_and_then_all_frames_are_freed() {
    with_source(|source, frames, _| {
        let before = free_or_metadata(frames);
        // A kernel has a static here, which it needs before it knows its memory.
        let region: &'static mut [u64; 512] = Box::leak(Box::new([0; 512]));
        let heap: Heap<'_> = TalcLock::new(source);
        // SAFETY: the region was leaked above, and only talc uses it.
        unsafe { heap.lock().claim(region.as_mut_ptr().cast(), size_of_val(region)) }.unwrap();
        let values = std::iter::repeat_n(0..250_u8, 8).flatten();
        let objects: Vec<_> =
            values.map(|value| Object::new(&heap, layout(64, 8), value).unwrap()).collect();
        assert!(free_or_metadata(frames) < before);
        objects.into_iter().for_each(|object| object.free(&heap));
        assert_eq!(free_or_metadata(frames), before);
    });
}

/// With debug assertions only: other builds count the violation, for all tests of this process.
#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "an invariant does not hold")]
fn a_heap_that_somebody_else_has_freed_is_noticed() {
    with_source(|source, frames, map| {
        let heap: Heap<'_> = TalcLock::new(source);
        let objects = [1, 2].map(|value| Object::new(&heap, layout(1 << 20, 8), value).unwrap());
        let freed = map.frames(objects[1].memory, 1).unwrap();
        // SAFETY: the frame is allocated. That talc still uses it is what the test is about.
        unsafe { frames.free_raw(freed) }.unwrap();
        objects.into_iter().for_each(|object| object.free(&heap));
    });
}
