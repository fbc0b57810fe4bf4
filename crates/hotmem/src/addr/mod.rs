//! Addresses and sizes as types: frame numbers, ranges of them, and bytes.
//!
//! Every value is checked where it is made, so that nothing further down can wrap: a [`Pfn`] is
//! below [`Pfn::LIMIT`] or equal to it where it ends a range, and a [`PfnRange`] never ends before
//! it starts. Arithmetic that could leave these bounds returns an `Option`.

mod bytes;
mod pfn;
mod range;

pub use bytes::Bytes;
pub use pfn::Pfn;
pub use range::{AddrError, PfnRange};
