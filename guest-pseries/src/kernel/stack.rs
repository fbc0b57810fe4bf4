//! Detects an overflow of the stack. The MMU is off, so no page can be left unmapped: the words below the
//! stack have a value that an overflow overwrites.

use super::exit::give_up;

const GUARD_WORDS: usize = 4096 / 8;
const GUARD: u64 = 0x0067_7561_7264_2121;

unsafe extern "C" {
    static mut __stack_guard: [u64; GUARD_WORDS];
}

/// Writes the value below the stack.
pub(super) fn guard() {
    for word in words() {
        // SAFETY: `link.ld` reserves the words, and only this module accesses them.
        unsafe { word.write_volatile(GUARD) };
    }
}

/// Ends the run if the stack has overflowed since [`guard`] was called.
pub(super) fn check() {
    // SAFETY: as above.
    if words().any(|word| unsafe { word.read_volatile() } != GUARD) {
        give_up("the stack has overflowed");
    }
}

fn words() -> impl Iterator<Item = *mut u64> {
    let first = (&raw mut __stack_guard).cast::<u64>();
    (0..GUARD_WORDS).map(move |word| first.wrapping_add(word))
}

/// Uses at least this many bytes of stack, for a test of [`check`].
#[inline(never)]
pub(super) fn take(bytes: usize) -> u64 {
    let words = core::hint::black_box([bytes as u64; 64]);
    if bytes < size_of_val(&words) { 0 } else { take(bytes - size_of_val(&words)) + words[0] }
}
