//! Models memory that goes offline, and comes online again on another node, during an allocation.

use super::instance::{BLOCK, SECTION, range};
use super::{Instance, model_preemptions};
use crate::frames::{AllocRequest, NodeChoice};
use crate::hotplug::OnlineType;
use crate::words::NodeId;

/// Checks that `request`, which is for one node only, never gets memory that has moved to another
/// node.
fn check_that_no_memory_of_another_node_is_allocated(request: AllocRequest) {
    model_preemptions(1, move || {
        let instance = Instance::new(1);
        let all = range(0, SECTION);
        let other_thread = instance.spawn_on(1, move |instance| {
            let is_offline = instance.take_offline(all);
            if is_offline {
                instance.words().move_model(all, NodeId(1));
                instance.add_lasting_bitmaps(0);
                instance.online(all, OnlineType::Kernel);
            }
            is_offline
        });
        let main_held = instance.try_alloc(request.node(NodeChoice::Only(NodeId::ZERO))).ok();
        let has_moved = other_thread.join().unwrap();
        assert!(!has_moved || main_held.is_none());
        instance.check();
        main_held.into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_request_for_a_frame_gets_none_of_another_node_at_a_cursor_of_its_node() {
    model_preemptions(1, || {
        let instance = Instance::new(1);
        let all = range(0, SECTION);
        let frame = AllocRequest::frames(1);
        // This CPU's cursor of the node leads to the first word. Pageblock 0 stays divided.
        instance.add_lasting_bitmaps(0);
        instance.free(instance.alloc(frame.node(NodeChoice::Near(NodeId::ZERO))));
        let other_thread = instance.spawn_on(1, move |instance| {
            instance.take_offline(all).then(|| {
                instance.words().move_model(all, NodeId(1));
                instance.online(all, OnlineType::Kernel);
                // Divides a pageblock, so that its words offer frames again.
                instance.alloc(frame)
            })
        });
        let main_held = instance.try_alloc_at_node_cursor(NodeId::ZERO);
        let other_held = other_thread.join().unwrap();
        assert!(other_held.is_none() || main_held.is_none());
        instance.check();
        main_held.into_iter().chain(other_held).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_request_for_a_pageblock_gets_none_of_another_node() {
    check_that_no_memory_of_another_node_is_allocated(AllocRequest::frames(BLOCK));
}

#[test]
fn a_request_for_several_pageblocks_gets_none_of_another_node() {
    check_that_no_memory_of_another_node_is_allocated(AllocRequest::frames(SECTION));
}

#[test]
fn a_request_for_an_exact_place_fails_on_another_node() {
    check_that_no_memory_of_another_node_is_allocated(
        AllocRequest::frames(BLOCK).at(range(BLOCK, 1).start()),
    );
}
