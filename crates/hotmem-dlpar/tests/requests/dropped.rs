//! A caller gives a request up half-way: whoever has the LMBs finds it, and goes on with it or
//! undoes it.

use crate::elsewhere::half_way;
use crate::plain::{ADD, REMOVE};
use crate::world::{new, with};
use hotmem::Budget;
use hotmem_dlpar::{Error, Which};

#[test]
fn the_next_caller_is_told_which_request_is_open_and_goes_on_with_it() {
    with(|world| {
        // What begins the request returns, and keeps nothing of it.
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
fn the_next_caller_undoes_it() {
    with(|world| {
        let before = world.snapshot();
        half_way(world);
        world.dlpar.cancel();
        let failure = world.poll_to_the_end(Budget::UNLIMITED, |_| false).expect_err("cancelled");
        assert_eq!((failure, world.snapshot()), (Error::Cancelled.into(), before));
        world.request(ADD, Which::Count(1)).expect("nothing is open");
    });
}
