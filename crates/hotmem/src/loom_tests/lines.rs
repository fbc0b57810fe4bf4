//! Where a section's lines come from, and when they go.

use super::machine::{BLOCK, SECTION, range};
use super::{Machine, model};
use crate::frames::Want;

const ONE: Want = Want::frames(1);
const WHOLE: Want = Want::frames(BLOCK);

#[test]
fn first_splits_meet() {
    model(|| {
        let machine = Machine::without_lines(1);
        let other = machine.on_cpu(1, |machine| machine.alloc(ONE));
        let mine = machine.alloc(ONE);
        let other = other.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check();
    });
}

#[test]
fn a_first_split_meets_a_first_whole_allocation() {
    model(|| {
        let machine = Machine::without_lines(2);
        let other = machine.on_cpu(1, |machine| machine.alloc(WHOLE));
        let mine = machine.alloc(ONE);
        let other = other.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check();
    });
}

#[test]
fn lines_go_when_nothing_else_is_left() {
    model(|| {
        let machine = Machine::without_lines(1);
        let [a] = machine.singles();
        let token = machine.isolate(range(0, SECTION)).unwrap();
        let other = machine.on_cpu(1, |machine| machine.free(a));
        let drained = token.in_use().is_none();
        other.join().unwrap();
        assert!(drained || token.in_use().is_none());
        machine.overwrite(token.range());
        token.release();
        machine.check();
    });
}
