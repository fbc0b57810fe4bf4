//! Tests that the model of Xen agrees with the test vectors.

mod common;

use common::Xen;
use hotmem_addr::Pfn;
use hotmem_pgtable::x86_64::{Entry, Flags};
use hotmem_pgtable::{EntryAddr, Level};
use hotmem_xen::vectors::{
    Frames, NOT_OWNED, NOT_PINNED, REFUSED_AT_SECOND, VECTORS, refused_second,
};
use hotmem_xen::{BatchRefused, Command, MmuExtOp, MmuUpdate};

#[test]
fn the_model_of_xen_agrees_with_the_test_vectors() {
    let xen = Xen::new(64);
    let [same, other] = [xen.take_frame(), xen.take_frame()];
    let table = xen.new_table();
    for frame in [same, other] {
        xen.set_writable(frame, false);
    }
    let frames = Frames { same_frame: same, other_frame: other, table };
    use hotmem_xen::Hypervisor;
    (&xen).mmuext_op(&[MmuExtOp::pin(Level::L1, table).unwrap()]).unwrap();
    let addr = EntryAddr::new(table, 7);
    for vector in VECTORS {
        xen.updates(&[MmuUpdate::new(addr, Command::Normal, Entry::EMPTY)]).unwrap();
        xen.updates(&[MmuUpdate::new(addr, Command::Normal, vector.before(frames))]).unwrap();
        let result = xen.updates(&[vector.update(addr, frames)]);
        let refused = vector.new_flags.err().map(|errno| BatchRefused { entries_done: 0, errno });
        assert_eq!(result.err(), refused, "{vector:?}");
        assert_eq!(xen.entry(addr), vector.after(frames), "{vector:?}");
    }
    let foreign = MmuUpdate::new(EntryAddr::new(Pfn::ZERO, 3), Command::PreserveAd, Entry::EMPTY);
    assert_eq!(xen.updates(&[foreign]), Err(NOT_OWNED));
    let not_pinned = xen.new_table();
    assert_eq!((&xen).mmuext_op(&[MmuExtOp::unpin(not_pinned)]), Err(NOT_PINNED));
    let addr = [8, 9, 10].map(|index| EntryAddr::new(table, index));
    let batch = refused_second(addr, frames);
    assert_eq!(xen.updates(&batch), Err(REFUSED_AT_SECOND));
    assert_eq!(addr.map(|addr| xen.entry(addr)), [batch[0].value(), Entry::EMPTY, Entry::EMPTY]);
}

#[test]
#[should_panic(expected = "L1 terminal fault")]
fn a_frame_number_left_in_an_entry_crashes_the_domain() {
    let xen = Xen::new(64);
    let frame = xen.take_frame();
    let space = xen.new_space();
    xen.put(space, 0, Entry::new(frame, Flags::PRESENT), false);
    let addr = xen.find(space, 0).unwrap();
    let _ = xen.updates(&[MmuUpdate::new(
        addr,
        Command::PreserveAd,
        Entry::new(frame, Flags::empty()),
    )]);
}
