//! Overflows a stack on purpose, for a test of the pages below the stacks.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use hotmem_guest::cmdline::StackOf;

/// Whether the stack of each other CPU overflows when it starts. Relaxed: the start of the CPU orders the
/// accesses.
static OVERFLOWS_OTHER_CPUS: AtomicBool = AtomicBool::new(false);

/// Overflows the stack of the calling CPU, which is the first one, or lets the other CPUs overflow
/// theirs.
pub(crate) fn plan_overflow(of: Option<StackOf>) {
    match of {
        None => {}
        Some(StackOf::FirstCpu) => {
            overflow_stack(0);
        }
        Some(StackOf::OtherCpu) => OVERFLOWS_OTHER_CPUS.store(true, Relaxed),
    }
}

/// Overflows the stack of the calling CPU, which is not the first one, if that is planned.
pub(super) fn overflow_if_planned() {
    if OVERFLOWS_OTHER_CPUS.load(Relaxed) {
        overflow_stack(0);
    }
}

/// Calls itself until the stack overflows.
#[inline(never)]
fn overflow_stack(depth: u64) -> u64 {
    let words = core::hint::black_box([depth; 32]);
    if depth == u64::MAX { 0 } else { overflow_stack(depth + 1) + words[0] }
}
