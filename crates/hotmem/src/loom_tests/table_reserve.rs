//! Models the table reserve: additions that are dropped put frames into it while the control path
//! takes frames out of it.

use super::model;
use crate::addr::Pfn;
use crate::frames::reserve::table_reserve::TableReserve;
use crate::sync::begin_thread;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

/// A reserve, and what its frames contain.
struct Machine {
    reserve: TableReserve,
    contents: [UnsafeCell<u64>; 3],
}

// SAFETY: loom checks that accesses to the contents are ordered.
unsafe impl Sync for Machine {}

impl Machine {
    fn new(size: u64) -> Arc<Machine> {
        let reserve = TableReserve::empty();
        reserve.set_size(size);
        Arc::new(Machine { reserve, contents: core::array::from_fn(|_| UnsafeCell::new(0)) })
    }

    /// Writes to a frame, as its owner.
    fn write(&self, frame: Pfn) {
        let contents = &self.contents[usize::try_from(frame.number()).unwrap()];
        // SAFETY: loom reports accesses of two owners.
        contents.with_mut(|contents| unsafe { *contents += 1 });
    }

    /// Puts a frame into the reserve. Returns it if no frame is missing.
    fn put(&self, frame: Pfn) -> Option<Pfn> {
        self.write(frame);
        (!self.reserve.put(frame)).then_some(frame)
    }

    fn take(&self) -> Option<Pfn> {
        self.reserve.take().inspect(|&frame| self.write(frame))
    }
}

fn pfn(number: u64) -> Pfn {
    Pfn::new(number).unwrap()
}

#[test]
fn a_frame_is_put_while_another_is_taken() {
    model(|| {
        let machine = Machine::new(2);
        assert_eq!(machine.put(pfn(0)), None);
        let other = machine.clone();
        let thread = thread::spawn(move || {
            begin_thread(1);
            other.put(pfn(1))
        });
        let taken = [(); 2].map(|()| machine.take());
        assert_eq!(thread.join().unwrap(), None, "a frame is missing");
        let rest = machine.reserve.frames();
        let mut frames: Vec<u64> =
            taken.into_iter().flatten().chain(rest).map(Pfn::number).collect();
        frames.sort_unstable();
        assert_eq!(frames, [0, 1], "each frame has one owner");
    });
}

#[test]
fn two_frames_are_put_where_one_is_missing() {
    model(|| {
        let machine = Machine::new(1);
        let other = machine.clone();
        let thread = thread::spawn(move || {
            begin_thread(1);
            other.put(pfn(1))
        });
        let returned = [machine.put(pfn(0)), thread.join().unwrap()];
        let mut frames: Vec<u64> =
            { returned.into_iter().flatten() }.chain(machine.take()).map(Pfn::number).collect();
        frames.sort_unstable();
        assert_eq!(frames, [0, 1], "each frame has one owner");
        assert_eq!(machine.reserve.count_missing(), 1);
    });
}
