//! Copies and fills memory by stores that bypass the caches.
//!
//! Memory that is read much later than it is written need not pass through the caches. A
//! *non-temporal* store does not read the cache line that it overwrites, and evicts no other line.
//! But such stores are weakly ordered, so they must be *drained* before the data are published. The
//! interface enforces the drain: [`stream`] opens a stream for a closure and drains it after the
//! closure has returned. The destinations stay borrowed until then.
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
//!     // Write 1000 records. The second word of a record exceeds that of the previous one by 64.
//!     stream.fill(records_out, &first, &step);
//! });
//! assert_eq!(header, [1; 64]);
//! // SAFETY: `fill` has initialised all records.
//! assert_eq!(unsafe { records[10].assume_init() }, [7, 0x1000 + 640, 0, 0, 0, 0, 0, 1]);
//! ```
//!
//! All kinds of [`Stores`] write the same bytes. They differ only in time. The crate is `no_std` and
//! uses no heap. Each call costs one branch on an enum. With `--cfg hotmem_stores="ordinary"` all
//! stores are ordinary stores, so that tools can trace them.
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
