//! Tests that the next user of a `Dlpar` finds a request that its caller has abandoned half-way,
//! and can continue or cancel the request.

use crate::elsewhere::half_way;
use crate::plain::{ADD, REMOVE};
use crate::world::{new, with};
use hotmem::Budget;
use hotmem_dlpar::{Error, Which};

#[test]
fn the_next_caller_finds_the_open_request_and_continues_it() {
    with(|world| {
        // The function that begins the request returns without keeping anything of it.
        half_way(world);
        let refused = world.dlpar.begin(new(ADD, Which::Count(1))).expect_err("one is open");
        let open = world.dlpar.request().expect("one is open");
        assert_eq!(refused, Error::InProgress(open));
        assert_eq!(refused.to_string(), "a request to remove 4 LMBs is open");
        assert_eq!((open.change(), open.which()), (REMOVE, Which::Count(4)));
        let (in_hand, wanted) = world.dlpar.progress();
        assert!(in_hand > 0 && wanted == 4);
        let done = world.poll_to_the_end(Budget::UNLIMITED, |_| false).expect("nothing in the way");
        assert_eq!((done.lmbs, world.dlpar.progress()), (4, (0, 0)));
        world.request(ADD, Which::Count(1)).expect("nothing is open");
    });
}

#[test]
fn the_next_caller_cancels_the_open_request() {
    with(|world| {
        let before = world.snapshot();
        half_way(world);
        world.dlpar.cancel();
        let failure = world.poll_to_the_end(Budget::UNLIMITED, |_| false).expect_err("cancelled");
        assert_eq!((failure, world.snapshot()), (Error::Cancelled.into(), before));
        world.request(ADD, Which::Count(1)).expect("nothing is open");
    });
}
