//! Writes page descriptors (Linux: `struct page`), one for each frame, for kernels that keep
//! descriptors.
//!
//! The engine needs no descriptors, but a kernel may keep a descriptor of its own type for each frame
//! of a device. A device of 100 GB needs 1.6 GB of descriptors of 64 bytes, and nearly all of these
//! bytes repeat. So a kernel defines once what a descriptor contains ([`Describe::words`]), and a
//! [`Memmap`] writes all descriptors at memory speed: it computes the constant difference between a
//! descriptor and the next, and writes the descriptors with stores that bypass the caches. The tails
//! of compounds that are all equal need not be written, because they can share one frame
//! ([`Memmap::sharing_tails`]).
//!
//! For descriptors of RAM a kernel implements `hotmem::Describe`, by which the engine says when
//! memory becomes RAM and when it no longer is.
//!
//! ```
//! use core::mem::MaybeUninit;
//! use hotmem_memmap::{
//!     Bytes, Compound, Describe, Frame, Kind, Memmap, PfnRange, Role, SectionField, Slots,
//! };
//!
//! #[repr(C, align(64))]
//! struct Page {
//!     flags: u64,
//!     compound: u64,
//!     refcount: u64,
//!     device: u64,
//!     driver_data: [u64; 4],
//! }
//!
//! struct Device {
//!     id: u64,
//! }
//!
//! const SECTION: SectionField = SectionField::at(38);
//!
//! impl Describe for Device {
//!     type Descriptor = Page;
//!     type Words = [u64; 8];
//!
//!     fn words(&self, frame: &Frame) -> [u64; 8] {
//!         let (flags, compound) = match frame.role {
//!             Role::Single(pfn) => (SECTION.set(0, pfn), 0),
//!             Role::Head { pfn, compound } => (SECTION.set(1, pfn), u64::from(compound.order())),
//!             Role::Tail { pfn, head, .. } => (SECTION.set(2, pfn), head.number()),
//!             Role::SharedTail { .. } => (3, 0),
//!         };
//!         [flags, compound, frame.refcount.into(), self.id, 0, 0, 0, 0]
//!     }
//! }
//!
//! let range = PfnRange::from_bytes(4 << 30, Bytes::mib(4))?;
//! let mut map: Vec<MaybeUninit<Page>> = Vec::with_capacity(1024);
//! map.resize_with(1024, MaybeUninit::uninit);
//!
//! let device = Device { id: 7 };
//! let memmap = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &device);
//! let written = memmap.describe(Slots::of(range, &mut map)?)?;
//! assert_eq!(written, Bytes(64 << 10));
//! // SAFETY: every slot of the range has been written, and any words are a valid `Page`.
//! let (head, tail) = unsafe { (map[512].assume_init_ref(), map[513].assume_init_ref()) };
//! assert_eq!((head.refcount, head.compound), (1, 9));
//! assert_eq!((tail.refcount, tail.compound), (0, range.start().number() + 512));
//! # assert_eq!((tail.device, tail.flags & 3, tail.driver_data), (7, 2, [0; 4]));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]

mod altmap;
mod describe;
mod kind;
mod layout;
mod slots;
#[cfg(all(test, not(any(loom, hotmem_geometry = "small"))))]
mod tests;
mod words;
mod write;

pub use altmap::{Altmap, AltmapError};
pub use describe::{Describe, Frame, Role, SectionField};
pub use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
pub use hotmem_stream::Stores;
pub use kind::{Compound, Kind};
pub use layout::{Backing, MapLayout, MapPage, ShareError};
pub use slots::{Slots, SlotsError};
pub use words::Words;
pub use write::{DescribeError, Memmap};

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
