//! Write-once copies and fills that bypass the caches.
//!
//! Memory that is written once and read much later need not pass through the caches: a
//! *non-temporal* store neither reads the line that it replaces nor drives another one out. But
//! such stores are weakly ordered, so they must be *drained* before the data are published. The
//! interface enforces this: [`stream`] opens a stream for a closure, destinations are borrowed for
//! longer than the closure runs, and the drain happens when the closure has returned.
//!
//! ```
//! use core::mem::MaybeUninit;
//! use hotmem_stream::{Stores, stream};
//!
//! let mut records = [MaybeUninit::<[u64; 8]>::uninit(); 1000];
//! let mut header = [0_u8; 64];
//! let (first, step) = ([7, 0x1000, 0, 0, 0, 0, 0, 1], [0, 64, 0, 0, 0, 0, 0, 0]);
//! let (header_out, records_out) = (&mut header, &mut records);
//! stream(Stores::best(), move |stream| {
//!     stream.copy(header_out, &[1; 64]);
//!     // The same record a thousand times, its second word further by 64 each time.
//!     stream.fill(records_out, &first, &step);
//! });
//! assert_eq!(header, [1; 64]);
//! // SAFETY: all of them have been written.
//! assert_eq!(unsafe { records[10].assume_init() }, [7, 0x1000 + 640, 0, 0, 0, 0, 0, 1]);
//! ```
//!
//! All [`Stores`] write the same bytes; only the time differs. The crate is `no_std` and uses no
//! heap; each call costs one branch on an enum. With `--cfg hotmem_stores="ordinary"` all stores
//! are ordinary ones, for tools that trace them.
#![no_std]

#[cfg_attr(
    all(target_arch = "x86_64", not(any(miri, hotmem_stores = "ordinary"))),
    path = "x86_64/mod.rs"
)]
#[cfg_attr(
    all(target_arch = "aarch64", not(any(miri, hotmem_stores = "ordinary"))),
    path = "aarch64.rs"
)]
#[cfg_attr(
    not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(miri, hotmem_stores = "ordinary"))
    )),
    path = "portable.rs"
)]
mod arch;
mod ordinary;
mod stores;
mod stream;

pub use stores::Stores;
pub use stream::{Stream, stream};

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
