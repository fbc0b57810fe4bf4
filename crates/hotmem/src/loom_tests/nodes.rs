//! Models memory that goes offline and comes back on another node during an allocation.

use super::machine::{BLOCK, SECTION, range};
use super::{Machine, model_within};
use crate::frames::{AllocRequest, NodeChoice};
use crate::hotplug::OnlineType;
use crate::words::NodeId;

/// Checks that `request`, which is for one node only, never gets memory that has moved to another
/// node.
fn keeps_out_of_another_nodes_memory(request: AllocRequest) {
    model_within(1, move || {
        let machine = Machine::new(1);
        let all = range(0, SECTION);
        let other = machine.on_cpu(1, move |machine| {
            let gone = machine.take_offline(all);
            if gone {
                machine.words().move_model(all, NodeId(1));
                machine.give_bitmaps_from_outside(0);
                machine.online(all, OnlineType::Kernel);
            }
            gone
        });
        let mine = machine.try_alloc(request.node(NodeChoice::Only(NodeId::ZERO))).ok();
        let is_others = other.join().unwrap();
        assert!(!is_others || mine.is_none());
        machine.check();
        mine.into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_request_for_a_pageblock_gets_none_of_another_node() {
    keeps_out_of_another_nodes_memory(AllocRequest::frames(BLOCK));
}

#[test]
fn a_request_for_several_pageblocks_gets_none_of_another_node() {
    keeps_out_of_another_nodes_memory(AllocRequest::frames(SECTION));
}

#[test]
fn a_request_for_an_exact_place_fails_on_another_node() {
    keeps_out_of_another_nodes_memory(AllocRequest::frames(BLOCK).at(range(BLOCK, 1).start()));
}
