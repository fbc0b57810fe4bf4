//! Streams, which drain their stores when they close.

use crate::{Stores, arch};
use core::{fmt, marker::PhantomData, mem::MaybeUninit, slice};

/// An open stream of stores. Its destinations stay borrowed until the stream has been drained, so
/// they cannot be read before:
///
/// ```compile_fail,E0502
/// # use hotmem_stream::{Stores, stream};
/// let mut line = [0_u8; 64];
/// let out = &mut line;
/// stream(Stores::best(), move |stream| {
///     stream.copy(&mut *out, &[1; 64]);
///     assert_eq!(out[0], 1);
/// });
/// ```
///
/// A destination cannot be dropped, or borrowed again, before the drain either:
///
/// ```compile_fail,E0597
/// # use hotmem_stream::{Stores, stream};
/// stream(Stores::best(), |stream| {
///     let mut line = [0_u8; 64];
///     stream.copy(&mut line, &[1; 64]);
/// });
/// ```
///
/// A stream cannot move to another thread, because the drain waits for the stores of one CPU. (When
/// a kernel moves a thread to another CPU in the middle of a stream, the locked instructions of the
/// context switch drain it.)
///
/// ```compile_fail,E0277
/// # use hotmem_stream::{Stores, stream};
/// # let mut line = [0_u8; 64];
/// # let out = &mut line;
/// stream(Stores::best(), move |stream| {
///     std::thread::scope(|scope| drop(scope.spawn(|| stream.copy(out, &[1; 64]))));
/// });
/// ```
pub struct Stream<'env> {
    stores: Stores,
    /// Invariant in `'env`, so that no destination can be borrowed for less than the whole stream.
    destinations: PhantomData<fn(&'env ()) -> &'env ()>,
    /// Makes the stream neither `Send` nor `Sync`.
    thread: PhantomData<*mut ()>,
}

/// Opens a stream, runs `body`, and drains. When this returns or unwinds, all stores are ordered
/// before the caller's next ones, like ordinary stores.
///
/// Cost: one store fence, which waits for the outstanding stores to reach memory.
#[inline(always)]
pub fn stream<'env, R>(stores: Stores, body: impl FnOnce(&Stream<'env>) -> R) -> R {
    let stream = Stream { stores, destinations: PhantomData, thread: PhantomData };
    let drain = Drain(stores);
    let result = body(&stream);
    drop(drain);
    result
}

/// Drains when it is dropped. Only [`stream`] makes one, so it is always dropped.
struct Drain(Stores);

impl Drop for Drain {
    #[inline(always)]
    fn drop(&mut self) {
        arch::drain(self.0.kind());
    }
}

impl<'env> Stream<'env> {
    /// Returns the instructions that it writes with.
    #[must_use]
    pub const fn stores(&self) -> Stores {
        self.stores
    }

    /// Copies `src` to `dst`, in the order of addresses, without reading `dst` into the caches. A
    /// constant length compiles to a few inline instructions.
    ///
    /// Ordinary stores copy to destinations that are not aligned to 8 bytes, and lengths that are
    /// not a multiple of 8.
    ///
    /// # Panics
    /// Panics if the lengths differ, as `copy_from_slice` does.
    #[inline(always)]
    pub fn copy(&self, dst: &'env mut [u8], src: &[u8]) {
        // SAFETY: the slice covers the same bytes. Only initialised bytes are written, so all of
        // them are initialised when the borrow ends.
        let dst = unsafe { slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) };
        self.copy_uninit(dst, src);
    }

    /// [`copy`](Self::copy) to memory that may be uninitialised, and initialises all of it.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    #[inline(always)]
    pub fn copy_uninit(&self, dst: &'env mut [MaybeUninit<u8>], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "source and destination differ in length");
        arch::copy(self.stores.kind(), dst, src);
    }

    /// Writes records of whole words, in the order of addresses. Record `i` has the words
    /// `first[w] + i × step[w]`, modulo 2^64. A zero in `step` repeats a word of the template; any
    /// other value changes it from record to record. Initialises all of `dst`.
    ///
    /// Records of 64 bytes that are aligned to 64 are written at memory speed.
    #[inline(always)]
    pub fn fill<const WORDS: usize>(
        &self,
        dst: &'env mut [MaybeUninit<[u64; WORDS]>],
        first: &[u64; WORDS],
        step: &[u64; WORDS],
    ) {
        arch::fill(self.stores.kind(), dst, first, step);
    }

    /// Prefetches the cache line of `slot`, which ordinary stores are about to write in the middle
    /// of the stream. Without the prefetch those stores would wait for memory, and the stream would
    /// wait for them.
    #[inline(always)]
    pub fn expect_stores<T>(&self, slot: *const T) {
        arch::expect_stores(self.stores.kind(), slot.cast());
    }
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.stores).finish()
    }
}
