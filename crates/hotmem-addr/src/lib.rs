//! Physical frame numbers, ranges of frames and sizes in bytes as types, and the geometry that
//! Hotmem's crates share.
//!
//! Every value is checked when it is made, so that later arithmetic cannot wrap. A [`Pfn`] is at most
//! [`Pfn::LIMIT`], which is the end of the last possible range and no frame. A [`PfnRange`] never ends
//! before it starts. Arithmetic that could leave these bounds returns an `Option`.
//!
//! ```
//! use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
//!
//! let range = PfnRange::from_bytes(1 << 30, Bytes::mib(6))?;
//! assert_eq!(range.frames(), 1536);
//! assert_eq!(Pfn::containing((1 << 30) + 5000), range.start().checked_add(1));
//! assert_eq!(range.to_string(), "0x0000000040000000-0x00000000405fffff");
//! # Ok::<(), AddrError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod bytes;
pub mod geometry;
mod pfn;
mod range;

pub use bytes::Bytes;
pub use pfn::Pfn;
pub use range::{AddrError, PfnRange};

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
