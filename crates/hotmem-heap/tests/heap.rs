//! Tests the heap against a record of its allocations, from one thread and from several.

use hotmem::{
    AllocRequest, Blocker, BlockerKind, Bytes, Frames, Hooks, Migration, PfnRange, Platform,
};
use hotmem_heap::Heap;
use hotmem_port::LinearMap;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Validated as _, boot, free_or_metadata, range};
use proptest::prelude::*;
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::mpsc;

/// The number of frames of the tests' memory.
const MEMORY_FRAMES: u64 = if cfg!(miri) { 4 * PAGEBLOCK } else { SECTION };

type Lock = spin::mutex::SpinMutex<()>;

/// A platform on which each thread chooses its CPU number.
struct Threads;

thread_local!(static CPU: Cell<usize> = const { Cell::new(0) });

impl Platform for Threads {
    fn cpu(&self) -> usize {
        CPU.get()
    }
}

/// An allocation whose bytes all have the same value.
struct Object {
    memory: NonNull<u8>,
    layout: Layout,
    value: u8,
}

// SAFETY: an `Object` is the only owner of its memory.
unsafe impl Send for Object {}

impl Object {
    fn new(heap: &Heap<'_, Threads, Lock>, layout: Layout, value: u8) -> Option<Object> {
        let memory = heap.alloc(layout)?;
        assert_eq!(memory.addr().get() % layout.align(), 0, "{layout:?}");
        // SAFETY: `layout.size()` bytes were allocated.
        unsafe { memory.write_bytes(value, layout.size()) };
        Some(Object { memory, layout, value })
    }

    fn resize(&mut self, heap: &Heap<'_, Threads, Lock>, size: usize) {
        self.check(self.layout.size());
        // SAFETY: the object was allocated from this heap with this layout.
        let Some(memory) = (unsafe { heap.resize(self.memory, self.layout, size) }) else { return };
        self.memory = memory;
        let old = self.layout.size();
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        self.check(old.min(size));
        // SAFETY: the allocation has `size` bytes now.
        unsafe { self.memory.write_bytes(self.value, size) };
    }

    fn free(self, heap: &Heap<'_, Threads, Lock>) {
        self.check(self.layout.size());
        // SAFETY: the object was allocated from this heap with this layout, and is not used any more.
        unsafe { heap.free(self.memory, self.layout) };
    }

    /// Checks that the first `bytes` bytes still have the value that was written, so that no other
    /// allocation overlaps with them.
    fn check(&self, bytes: usize) {
        // SAFETY: at least `bytes` bytes were allocated and written.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), bytes) };
        // The bytes are compared in one call, because Miri is slow for single bytes.
        assert!(bytes == vec![self.value; bytes.len()], "{:?}", self.layout);
    }
}

/// Runs `test` with a heap. Checks that all frames of the heap are free afterwards.
fn with_heap(test: impl FnOnce(&Heap<'_, Threads, Lock>, &Frames<Threads>)) {
    let memory = Memory::new(MEMORY_FRAMES);
    let frames = Frames::new(Threads);
    // The memory starts at physical address 0 and is aligned, so layouts of more than a frame get
    // their alignment in virtual addresses as well.
    let _hotplug = boot(&frames, &memory, MEMORY_FRAMES);
    let before = free_or_metadata(&frames);
    let heap = Heap::new(&frames, LinearMap::new(memory.start()));
    test(&heap, &frames);
    heap.trim();
    assert_eq!(free_or_metadata(&frames), before);
    assert_eq!(heap.trim(), Bytes::ZERO);
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
    Trim,
    /// The number of the pageblock.
    Vacate(u64),
    /// The number of the CPU.
    RunOn(usize),
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0_usize..400, 3 => 400_usize..5000, 1 => 5000_usize..70_000]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (size(), 0_u32..12).prop_map(|(size, align)| Operation::Alloc(size, align)),
        2 => (any::<usize>(), size()).prop_map(|(index, size)| Operation::Resize(index, size)),
        6 => any::<usize>().prop_map(Operation::Free),
        1 => Just(Operation::Trim),
        1 => (0..MEMORY_FRAMES / PAGEBLOCK).prop_map(Operation::Vacate),
        1 => (0_usize..40).prop_map(Operation::RunOn),
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
    fn objects_keep_their_contents_and_the_heap_frees_all_frames_at_the_end(
        steps in proptest::collection::vec(operation(), 1..300)
    ) {
        with_heap(|heap, _| {
            let mut objects: Vec<Object> = Vec::new();
            for (number, operation) in steps.into_iter().enumerate() {
                match operation {
                    Operation::Alloc(size, align) => {
                        let layout = Layout::from_size_align(size, 1 << align).unwrap();
                        let number = u8::try_from(number % 251).unwrap();
                        objects.push(Object::new(heap, layout, number).unwrap());
                    }
                    Operation::Resize(index, size) if !objects.is_empty() => {
                        let index = index % objects.len();
                        objects[index].resize(heap, size);
                    }
                    Operation::Free(index) if !objects.is_empty() => {
                        objects.swap_remove(index % objects.len()).free(heap);
                    }
                    Operation::Trim => drop(heap.trim()),
                    Operation::Vacate(block) => heap.vacate(range(block * PAGEBLOCK, PAGEBLOCK)),
                    Operation::RunOn(number) => CPU.set(number),
                    Operation::Resize(..) | Operation::Free(_) => {}
                }
            }
            objects.into_iter().for_each(|object| object.free(heap));
        });
    }
}

/// Returns whether the first `bytes` bytes at `memory` all have this value.
///
/// # Safety
/// As many bytes were allocated and written.
unsafe fn all_bytes_are(memory: NonNull<u8>, bytes: usize, value: u8) -> bool {
    // SAFETY: by the caller's promise.
    let contents = unsafe { std::slice::from_raw_parts(memory.as_ptr(), bytes) };
    contents == vec![value; bytes]
}

#[test]
fn zeroed_memory_is_zero_whatever_was_there_before() {
    with_heap(|heap, _| {
        for size in [1, 40, 700, 3000, 4096, 5000, 40_000] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            for value in [0xa5, 0x5a] {
                let zeroed = heap.alloc_zeroed(layout).unwrap();
                // SAFETY: the bytes were allocated with this layout, and are not used after the free.
                unsafe {
                    assert!(all_bytes_are(zeroed, size, 0), "{size} bytes");
                    zeroed.write_bytes(value, size);
                    heap.free(zeroed, layout);
                }
            }
        }
    });
}

#[test]
fn no_zeroes_are_written_to_frames_that_the_engine_knows_to_be_zero() {
    with_heap(|heap, frames| {
        hotmem_testkit::keep_zero_marks(frames);
        let bytes = usize::try_from(PAGEBLOCK * 4096).unwrap();
        let layout = Layout::from_size_align(bytes, 8).unwrap();
        let alloc_all = || std::iter::from_fn(|| heap.alloc_zeroed(layout)).collect::<Vec<_>>();
        // SAFETY: the bytes were allocated with this layout, and are not used after the free.
        let free = |block: NonNull<u8>| unsafe {
            block.write_bytes(7, bytes);
            heap.free(block, layout);
        };
        let all = alloc_all();
        all.iter().copied().for_each(free);
        let one = frames.alloc(AllocRequest::frames(PAGEBLOCK)).unwrap().into_raw();
        // SAFETY: the frames were allocated above, and nothing uses them. They are not zero, against the
        // promise, so that the test sees whether zeroes are written. Nothing relies on their contents.
        unsafe { frames.free_zeroed_raw(one) }.unwrap();
        let again = alloc_all();
        assert_eq!(again.len(), all.len());
        let holds_only = |block: NonNull<u8>, value| {
            // SAFETY: the bytes were allocated and written.
            unsafe { all_bytes_are(block, bytes, value) }
        };
        let count = |value| again.iter().filter(|block| holds_only(**block, value)).count();
        assert_eq!((count(7), count(0)), (1, all.len() - 1));
        again.into_iter().for_each(free);
    });
}

/// Threads send their allocations to other threads, which free them.
#[test]
fn a_cpu_can_free_objects_that_another_cpu_has_allocated() {
    let (threads, rounds) = if cfg!(miri) { (3, 60) } else { (4, 20_000) };
    with_heap(|heap, _| {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..threads).map(|_| mpsc::channel::<Object>()).unzip();
        std::thread::scope(|scope| {
            for (cpu, receiver) in receivers.into_iter().enumerate() {
                let senders = senders.clone();
                scope.spawn(move || {
                    // Two threads have the same CPU number.
                    CPU.set(cpu / 2);
                    for round in 0..rounds {
                        let size = (round * 37 + cpu * 11) % 1200;
                        let layout = Layout::from_size_align(size, 8).unwrap();
                        let number = u8::try_from(round % 256).unwrap();
                        let object = Object::new(heap, layout, number).unwrap();
                        senders[(cpu + round) % threads].send(object).unwrap();
                        receiver.try_iter().for_each(|object| object.free(heap));
                    }
                    drop(senders);
                    receiver.iter().for_each(|object| object.free(heap));
                });
            }
            drop(senders);
        });
    });
}

#[test]
fn all_cpus_share_the_slabs_of_one_shard() {
    let rounds = if cfg!(miri) { 100 } else { 100_000 };
    let memory = Memory::new(MEMORY_FRAMES);
    let frames = Frames::new(Threads);
    let _hotplug = boot(&frames, &memory, MEMORY_FRAMES);
    let before = free_or_metadata(&frames);
    let heap: Heap<'_, Threads, Lock, 1> = Heap::new(&frames, LinearMap::new(memory.start()));
    std::thread::scope(|scope| {
        for size in [16, 48, 700] {
            let (heap, layout) = (&heap, Layout::from_size_align(size, 8).unwrap());
            scope.spawn(move || {
                for round in 0..rounds {
                    let objects = [(); 3].map(|()| heap.alloc(layout).unwrap());
                    for object in objects {
                        // SAFETY: the object was allocated above, and nothing else uses it.
                        unsafe {
                            object.cast::<usize>().write(round);
                            assert_eq!(object.cast::<usize>().read(), round);
                            heap.free(object, layout);
                        }
                    }
                }
            });
        }
    });
    heap.trim();
    assert_eq!(free_or_metadata(&frames), before);
}

#[test]
fn large_allocations_grow_and_shrink_in_place() {
    with_heap(|heap, _| {
        let mut object = Object::new(heap, Layout::from_size_align(8192, 8).unwrap(), 7).unwrap();
        let address = object.memory;
        for size in [40_960, 12_288, 4097] {
            object.resize(heap, size);
            assert_eq!(object.memory, address, "{size}");
        }
        object.resize(heap, 100);
        assert_ne!(object.memory, address);
        object.free(heap);
    });
}

#[test]
fn an_object_of_size_zero_has_any_alignment() {
    with_heap(|heap, _| {
        for shift in 0..=12 {
            let layout = Layout::from_size_align(0, 1 << shift).unwrap();
            let mut object = Object::new(heap, layout, 0).unwrap();
            object.resize(heap, 5000);
            object.resize(heap, 0);
            object.free(heap);
        }
    });
}

#[test]
fn an_allocation_without_free_memory_returns_none() {
    with_heap(|heap, frames| {
        // Allocates nearly all frames at once, and then objects until no memory is free.
        let frame = Layout::from_size_align(4096, 8).unwrap();
        let large_layout =
            Layout::from_size_align(usize::try_from(MEMORY_FRAMES - PAGEBLOCK).unwrap() * 4096, 8)
                .unwrap();
        let large = heap.alloc(large_layout).map(|memory| (memory, large_layout)).unwrap();
        let layout = Layout::from_size_align(3000, 8).unwrap();
        let objects: Vec<_> = std::iter::from_fn(|| Object::new(heap, layout, 3)).collect();
        assert!(objects.len() > 400 && frames.counts().free < 32, "{}", objects.len());
        // SAFETY: the memory was allocated above with this layout.
        unsafe { heap.free(large.0, large.1) };
        Object::new(heap, frame, 1).unwrap().free(heap);
        let huge = Layout::from_size_align(1 << 40, 8).unwrap();
        assert!(heap.alloc(huge).is_none());
        objects.into_iter().for_each(|object| object.free(heap));
    });
}

/// Replaces all objects one after the other, so that objects of each size exist at all times.
fn replace_all(heap: &Heap<'_, Threads, Lock>, objects: &mut [Object]) {
    for object in objects {
        let new = Object::new(heap, object.layout, object.value).unwrap();
        std::mem::replace(object, new).free(heap);
    }
}

/// Allocates seven objects of each of the five sizes.
fn objects_of_all_sizes(heap: &Heap<'_, Threads, Lock>) -> Vec<Object> {
    let sizes = [24, 100, 500, 3000, 9000].into_iter().flat_map(|size| [size; 7]);
    let layouts = sizes.map(|size| Layout::from_size_align(size, 8).unwrap());
    layouts.zip(0..).map(|(layout, number)| Object::new(heap, layout, number).unwrap()).collect()
}

#[test]
fn memory_is_vacated_while_objects_are_allocated_and_freed() {
    with_heap(|mut heap, frames| {
        let mut objects = objects_of_all_sizes(heap);
        let blocks =
            (0..MEMORY_FRAMES / PAGEBLOCK).map(|number| range(number * PAGEBLOCK, PAGEBLOCK));
        let mut vacated = 0;
        for isolation in blocks.flat_map(|block| frames.isolate(block)) {
            if let Some(Blocker { range: used, kind: BlockerKind::Allocated }) = isolation.in_use()
            {
                assert_eq!(heap.migrate(used), Migration::Unmovable("objects on the heap"));
                replace_all(heap, &mut objects);
                let blocker = isolation.in_use();
                let is_moved = blocker.is_none_or(|blocker| blocker.kind == BlockerKind::Metadata);
                assert!(is_moved, "{blocker:?}");
                vacated += 1;
            }
            isolation.release();
        }
        assert!(vacated >= 2, "single frames and runs do not lie in different pageblocks");
        objects.into_iter().for_each(|object| object.free(heap));
    });
}

#[test]
fn slabs_that_are_set_aside_are_used_if_no_other_memory_is_free() {
    with_heap(|heap, frames| {
        let layout = Layout::from_size_align(3000, 8).unwrap();
        let mut objects: Vec<_> = std::iter::from_fn(|| Object::new(heap, layout, 3)).collect();
        let all = objects.len();
        // Frees at least one object of each slab, and empties no slab.
        for index in (0..all).step_by(21).rev() {
            objects.swap_remove(index).free(heap);
        }
        let free = frames.counts().free;
        heap.vacate(range(0, MEMORY_FRAMES));
        objects.extend(std::iter::from_fn(|| Object::new(heap, layout, 4)));
        assert_eq!((objects.len(), frames.counts().free), (all, free));
        objects.into_iter().for_each(|object| object.free(heap));
    });
}

#[cfg(feature = "allocator-api2")]
#[test]
fn collections_can_use_the_heap() {
    use allocator_api2::{boxed::Box, vec::Vec};
    with_heap(|heap, _| {
        let mut numbers = Vec::new_in(heap);
        numbers.extend(0..10_000_u32);
        let boxes: std::vec::Vec<_> =
            numbers.iter().map(|&n| Box::new_in((n, 1_u64), heap)).collect();
        assert!(boxes.iter().zip(0..).all(|(object, n)| **object == (n, 1)));
    });
}

#[test]
fn the_hooks_of_a_heap_free_empty_slabs_and_report_objects_as_unmovable() {
    with_heap(|mut heap, frames| {
        let object = Object::new(heap, Layout::from_size_align(64, 8).unwrap(), 7).unwrap();
        object.free(heap);
        let free = frames.counts().free;
        assert_eq!(heap.migrate(PfnRange::EMPTY), Migration::Moved);
        assert!(frames.counts().free > free);
        let unmovable = Migration::Unmovable("objects on the heap");
        assert_eq!(heap.migrate(PfnRange::EMPTY), unmovable);

        Object::new(heap, Layout::from_size_align(64, 8).unwrap(), 7).unwrap().free(heap);
        heap.discard(PfnRange::EMPTY);
        assert!(frames.counts().free > free);
    });
}
