//! Models memory that goes offline, and comes online again on another node, during an allocation.

use super::machine::{BLOCK, SECTION, range};
use super::{Machine, model_preemptions};
use crate::frames::{AllocRequest, NodeChoice};
use crate::hotplug::OnlineType;
use crate::words::NodeId;

/// Checks that `request`, which is for one node only, never gets memory that has moved to another
/// node.
fn check_that_no_memory_of_another_node_is_allocated(request: AllocRequest) {
    model_preemptions(1, move || {
        let machine = Machine::new(1);
        let all = range(0, SECTION);
        let other_thread = machine.spawn_on(1, move |machine| {
            let is_offline = machine.take_offline(all);
            if is_offline {
                machine.words().move_model(all, NodeId(1));
                machine.add_lasting_bitmaps(0);
                machine.online(all, OnlineType::Kernel);
            }
            is_offline
        });
        let mine = machine.try_alloc(request.node(NodeChoice::Only(NodeId::ZERO))).ok();
        let is_others = other_thread.join().unwrap();
        assert!(!is_others || mine.is_none());
        machine.check();
        mine.into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
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
