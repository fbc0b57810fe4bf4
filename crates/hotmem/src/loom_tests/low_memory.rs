//! Models allocations that fall back to low memory while memory above it is freed. Low memory goes
//! last: once the free has ended, no hint and no cursor may lead the CPU to low memory.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, SECTION};
use super::{Instance, model, model_preemptions};
use crate::frames::{AllocRequest, NodeChoice};
use crate::words::NodeId;
use std::sync::Arc;
use std::vec::Vec;

/// A run of half a pageblock.
const HALF_BLOCK: AllocRequest = AllocRequest::frames(BLOCK / 2);

/// Makes an instance of two sections, of which the first is low memory.
fn instance() -> Arc<Instance> {
    Instance::with_low_memory(2, 1)
}

fn is_low(held: &Held) -> bool {
    held.range().start().number() < SECTION
}

/// Allocates `request` on this CPU while CPU 1 frees `freed`, which lies above low memory and can
/// serve the request once. No other memory above low memory is free.
fn allocate_during_a_free(instance: &Arc<Instance>, request: AllocRequest, freed: Held) -> Held {
    let other_thread = instance.spawn_on(1, |instance| instance.free(freed));
    let during = instance.alloc(request);
    other_thread.join().unwrap();
    let after = instance.alloc(request);
    assert!(!is_low(&during) || !is_low(&after), "the CPU stays in low memory");
    instance.free(after);
    during
}

fn free_all(instance: &Instance, held: impl IntoIterator<Item = Held>) {
    held.into_iter().for_each(|held| instance.free(held));
    instance.check_empty();
}

/// A pageblock above low memory is freed during an allocation of `request`.
fn a_pageblock_is_freed_during(request: AllocRequest) {
    model(move || {
        let instance = instance();
        let [first, second] = [instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK)];
        assert!(!is_low(&first) && !is_low(&second));
        let during = allocate_during_a_free(&instance, request, second);
        free_all(&instance, [first, during]);
    });
}

#[test]
fn a_pageblock_is_freed_during_the_allocation_of_a_pageblock() {
    a_pageblock_is_freed_during(ONE_BLOCK);
}

#[test]
fn a_pageblock_is_freed_during_the_allocation_of_a_frame() {
    a_pageblock_is_freed_during(ONE_FRAME);
}

#[test]
fn a_pageblock_is_freed_during_the_allocation_of_a_run() {
    a_pageblock_is_freed_during(HALF_BLOCK);
}

/// CPU 1 holds all memory above low memory in single frames, and frees frame `nth` while CPU 0
/// allocates a frame. CPU 0 holds this many frames already, all of low memory, so that it has a hint
/// there, unless it holds none.
fn a_frame_is_freed(nth: usize, low_frames: usize) {
    model_preemptions(1, move || {
        let instance = instance();
        let mut high: Vec<Held> =
            instance.run_as(1, |instance| instance.alloc_singles::<8>()).into();
        assert!(!high.iter().any(is_low));
        let low: Vec<Held> = (0..low_frames).map(|_| instance.alloc(ONE_FRAME)).collect();
        let freed = high.remove(nth);
        let during = allocate_during_a_free(&instance, ONE_FRAME, freed);
        free_all(&instance, high.into_iter().chain(low).chain([during]));
    });
}

#[test]
fn a_frame_of_another_pageblock_is_freed() {
    a_frame_is_freed(0, 0);
}

#[test]
fn a_frame_of_the_hint_is_freed() {
    a_frame_is_freed(4, 0);
}

#[test]
fn a_frame_of_the_word_at_the_cursor_is_freed() {
    a_frame_is_freed(7, 0);
}

#[test]
fn a_frame_of_another_pageblock_clears_a_hint() {
    a_frame_is_freed(0, 1);
}

#[test]
fn a_frame_of_the_hint_clears_a_hint() {
    a_frame_is_freed(4, 1);
}

#[test]
fn a_frame_of_the_word_at_the_cursor_clears_a_hint() {
    a_frame_is_freed(7, 1);
}

#[test]
fn a_cursor_moves_in_low_memory_while_its_hint_is_cleared() {
    a_frame_is_freed(0, 2);
}

/// CPU 1 holds all memory above low memory in single frames, and frees the first one while CPU 0
/// allocates a frame near the node. CPU 0 holds this many such frames already, all of low memory.
fn a_frame_is_freed_during_a_request_near_the_node(low_frames: usize) {
    model_preemptions(1, move || {
        let instance = instance();
        let near = ONE_FRAME.node(NodeChoice::Near(NodeId::ZERO));
        let mut high: Vec<Held> =
            instance.run_as(1, |instance| instance.alloc_singles::<8>()).into();
        assert!(!high.iter().any(is_low));
        let low: Vec<Held> = (0..low_frames).map(|_| instance.alloc(near)).collect();
        let freed = high.remove(0);
        let during = allocate_during_a_free(&instance, near, freed);
        free_all(&instance, high.into_iter().chain(low).chain([during]));
    });
}

#[test]
fn a_frame_is_freed_before_a_request_near_the_node_sets_a_hint() {
    a_frame_is_freed_during_a_request_near_the_node(0);
}

#[test]
fn a_frame_is_freed_while_the_cursor_of_the_node_leads_to_low_memory() {
    a_frame_is_freed_during_a_request_near_the_node(1);
}

/// The next request moves the cursor to the next word.
#[test]
fn a_frame_is_freed_while_the_cursor_of_the_node_moves_in_low_memory() {
    a_frame_is_freed_during_a_request_near_the_node(2);
}

/// CPU 1 holds all memory above low memory in runs, and frees run `nth` while CPU 0 allocates a run.
/// CPU 0 has a hint in low memory, whose frames are all free.
fn a_run_is_freed(nth: usize) {
    model_preemptions(1, move || {
        let instance = instance();
        let mut high: Vec<Held> =
            instance.run_as(1, |instance| (0..4).map(|_| instance.alloc(HALF_BLOCK)).collect());
        assert!(!high.iter().any(is_low));
        let low = instance.alloc(HALF_BLOCK);
        assert!(is_low(&low));
        instance.free(low);
        let freed = high.remove(nth);
        let during = allocate_during_a_free(&instance, HALF_BLOCK, freed);
        free_all(&instance, high.into_iter().chain([during]));
    });
}

#[test]
fn a_run_of_the_hint_is_freed_while_another_cpu_uses_low_memory() {
    a_run_is_freed(3);
}

#[test]
fn a_run_of_another_pageblock_is_freed_while_another_cpu_uses_low_memory() {
    a_run_is_freed(0);
}

#[test]
fn a_long_run_of_the_hint_is_freed_while_another_cpu_uses_low_memory() {
    model_preemptions(1, || {
        let instance = instance();
        let long_run = AllocRequest::frames(BLOCK - 1);
        let mut high: Vec<Held> =
            instance.run_as(1, |instance| (0..2).map(|_| instance.alloc(long_run)).collect());
        assert!(!high.iter().any(is_low));
        let low = instance.alloc(HALF_BLOCK);
        assert!(is_low(&low));
        instance.free(low);
        let during = allocate_during_a_free(&instance, HALF_BLOCK, high.remove(1));
        free_all(&instance, high.into_iter().chain([during]));
    });
}
