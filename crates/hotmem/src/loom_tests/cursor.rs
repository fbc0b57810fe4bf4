//! Models of cursors: which words they name when memory goes.

use super::machine::{BLOCK, range};
use super::{Machine, model};

#[test]
fn a_free_sets_a_cursor_while_its_pageblock_goes_offline() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d] = machine.singles();
        // It makes the pageblock the hint of CPU 1, which sets that CPU's cursor.
        let other = machine.on_cpu(1, |machine| machine.free(a));
        [b, c, d].into_iter().for_each(|frame| machine.free(frame));
        let is_gone = machine.take_offline(range(0, BLOCK));
        let is_final = machine.clear_cursors();
        other.join().unwrap();
        assert!(!(is_gone && is_final && machine.has_cursors()), "a cursor names what is gone");
        machine.validate();
    });
}
