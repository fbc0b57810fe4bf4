//! Ordinary stores. All other kinds of stores must write the same bytes.

use core::{array, mem::MaybeUninit};

#[inline(always)]
pub(crate) fn copy(dst: &mut [MaybeUninit<u8>], src: &[u8]) {
    dst.write_copy_of_slice(src);
}

#[inline(always)]
pub(crate) fn fill<const WORDS: usize>(
    dst: &mut [MaybeUninit<[u64; WORDS]>],
    first: &[u64; WORDS],
    step: &[u64; WORDS],
) {
    let mut record = *first;
    for slot in dst {
        slot.write(record);
        record = next(&record, step, 1);
    }
}

/// Returns the record that comes `count` records after `record`.
#[inline(always)]
pub(crate) fn next<const WORDS: usize>(
    record: &[u64; WORDS],
    step: &[u64; WORDS],
    count: u64,
) -> [u64; WORDS] {
    array::from_fn(|i| record[i].wrapping_add(step[i].wrapping_mul(count)))
}
