//! Streams, which drain their stores when they close.

use crate::{Stores, arch};
use core::{fmt, marker::PhantomData, mem::MaybeUninit, slice};

/// An open stream of stores. Its destinations stay borrowed until the stream is drained, so code
/// cannot read them before the drain:
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
/// A stream cannot move to another thread, because the drain waits for the stores of one CPU only.
/// If a kernel moves the thread to another CPU in the middle of a stream, the locked instructions of
/// the context switch drain the stream.
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
    /// Makes the type invariant in `'env`, so that a destination is borrowed until the drain.
    destinations: PhantomData<fn(&'env ()) -> &'env ()>,
    /// Makes the stream neither `Send` nor `Sync`.
    thread: PhantomData<*mut ()>,
}

/// Opens a stream, runs `body`, and drains the stream. After this function has returned or unwound,
/// all stores of the stream are ordered before the caller's later stores, like ordinary stores.
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

/// Drains the stream when it is dropped. Only [`stream`] makes this value, so it is always dropped.
struct Drain(Stores);

impl Drop for Drain {
    #[inline(always)]
    fn drop(&mut self) {
        arch::drain(self.0.kind());
    }
}

impl<'env> Stream<'env> {
    /// Returns the kind of the stream's stores.
    #[must_use]
    pub const fn stores(&self) -> Stores {
        self.stores
    }

    /// Copies `src` to `dst`, in the order of addresses, without reading `dst` into the caches. If
    /// the length is a constant, the copy compiles to a few inline instructions.
    ///
    /// If `dst` is not aligned to 8 bytes, or the length is not a multiple of 8, the copy uses
    /// ordinary stores.
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

    /// Copies like [`copy`](Self::copy), to memory that may be uninitialised. Initialises all of
    /// `dst`.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    #[inline(always)]
    pub fn copy_uninit(&self, dst: &'env mut [MaybeUninit<u8>], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "source and destination differ in length");
        arch::copy(self.stores.kind(), dst, src);
    }

    /// Writes records of whole words, in the order of addresses. Record `i` has the words
    /// `first[w] + i × step[w]`, modulo 2^64. Initialises all of `dst`.
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

    /// Prefetches the cache line of `slot` for ordinary stores in the middle of the stream. Without
    /// the prefetch these stores would wait for memory, and the stream would wait for these stores.
    #[inline(always)]
    pub fn prefetch_for_stores<T>(&self, slot: *const T) {
        arch::prefetch_for_stores(self.stores.kind(), slot.cast());
    }
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.stores).finish()
    }
}
