//! A stream: writes between its opening and its drain.

use crate::{Stores, arch};
use core::{fmt, marker::PhantomData, mem::MaybeUninit, slice};

/// An open stream of writes. What it is given to write to stays borrowed until the stream has been
/// drained. So it cannot be looked at before:
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
/// Nor can it be something that goes before, or that is lent again meanwhile:
///
/// ```compile_fail,E0597
/// # use hotmem_stream::{Stores, stream};
/// stream(Stores::best(), |stream| {
///     let mut line = [0_u8; 64];
///     stream.copy(&mut line, &[1; 64]);
/// });
/// ```
///
/// It is bound to its thread, whose stores the drain waits for. (A kernel that moves a thread to
/// another CPU in the middle of a stream drains by the locked instructions on the way.)
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
    /// Invariant, so that no destination can be borrowed for less than the whole stream.
    destinations: PhantomData<fn(&'env ()) -> &'env ()>,
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*mut ()>,
}

/// Opens a stream, runs `body`, and drains: when this returns, or unwinds, everything written is
/// ordered before what the caller does next, as with ordinary stores.
///
/// Cost: one store fence, about as long as the memory takes for what is under way.
#[inline(always)]
pub fn stream<'env, R>(stores: Stores, body: impl FnOnce(&Stream<'env>) -> R) -> R {
    let stream = Stream { stores, destinations: PhantomData, thread: PhantomData };
    let drain = Drain(stores);
    let result = body(&stream);
    drop(drain);
    result
}

/// Drains when it is dropped. Nobody but [`stream`] ever has one, so it is always dropped.
struct Drain(Stores);

impl Drop for Drain {
    #[inline(always)]
    fn drop(&mut self) {
        arch::drain(self.0.kind());
    }
}

impl<'env> Stream<'env> {
    /// The instructions that it writes with.
    #[must_use]
    pub const fn stores(&self) -> Stores {
        self.stores
    }

    /// Copies `src` to `dst`, in the order of addresses, without reading `dst` into the caches.
    /// With a length known to the compiler it becomes a handful of instructions in place.
    ///
    /// Destinations that are not aligned to 8 bytes and lengths that are no multiple of 8 are
    /// copied by ordinary stores.
    ///
    /// # Panics
    /// If the lengths differ, as `copy_from_slice` does.
    #[inline(always)]
    pub fn copy(&self, dst: &'env mut [u8], src: &[u8]) {
        // SAFETY: the same bytes; only initialised ones are written, so that all of them still
        // are when the borrow ends.
        let dst = unsafe { slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) };
        self.copy_uninit(dst, src);
    }

    /// [`copy`](Self::copy) to memory that may be uninitialised; all of it is initialised then.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    pub fn copy_uninit(&self, dst: &'env mut [MaybeUninit<u8>], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "source and destination differ in length");
        arch::copy(self.stores.kind(), dst, src);
    }

    /// Writes records of whole words, in the order of addresses: record `i` has the words
    /// `first[w] + i × step[w]`, modulo 2^64. So a template is repeated where `step` is zero, and
    /// patched where it is not. All of `dst` is initialised then.
    ///
    /// At the memory's own speed for records of 64 bytes that are aligned to as many.
    #[inline(always)]
    pub fn fill<const WORDS: usize>(
        &self,
        dst: &'env mut [MaybeUninit<[u64; WORDS]>],
        first: &[u64; WORDS],
        step: &[u64; WORDS],
    ) {
        arch::fill(self.stores.kind(), dst, first, step);
    }

    /// Fetches the line of `slot`, to which ordinary stores are about to go in the midst of the
    /// stream: without it they would wait for memory, and the stream behind them.
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
