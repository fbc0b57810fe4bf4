//! The kernel mappings that memory hotplug needs: a direct map that grows and shrinks with the
//! memory, a map of page descriptors, and windows of pages whose frames can be replaced.
//!
//! - [`DirectMap`] maps memory at one offset, in pages of 1 GiB and 2 MiB. If a part of a 1 GiB
//!   page is removed, the map splits that page. Unmapping needs no new frame, because the table for
//!   a split is reserved when the page is mapped.
//! - [`DescriptorMap`] is an array with an element for the descriptor of every possible frame. Only
//!   the parts that describe existing frames are mapped. RAM that is added in whole sections [holds
//!   its own descriptors](DescriptorMap::map_ram).
//! - [`Window`] maps single pages in a virtual area of its own, and can replace the frame behind a
//!   page while the page is in use.
//!
//! All three change page tables through [`hotmem_pgtable`]. A kernel provides access to the frames
//! that hold its page tables ([`Tables`](hotmem_pgtable::Tables)) and a TLB flush of all processors
//! ([`Flusher`](hotmem_pgtable::Flusher)).
//!
//! ```
//! use core::sync::atomic::AtomicU64;
//! use hotmem_directmap::{Area, Bytes, Caching, DirectMap, Pfn, PfnRange, tables_needed};
//! use hotmem_pgtable::{ENTRIES, Flush, Table, Tables};
//!
//! /// Frames that can be page tables. A kernel reaches such frames in its direct map.
//! struct Frames(Vec<Table>);
//!
//! impl Tables for &Frames {
//!     fn table(&self, frame: Pfn) -> Option<&Table> {
//!         self.0.get(usize::try_from(frame.number()).ok()?)
//!     }
//! }
//!
//! let table = || core::array::from_fn::<_, ENTRIES, _>(|_| AtomicU64::new(0));
//! let frames = Frames((0..8).map(|_| table()).collect());
//! let mut free = (1..8).filter_map(Pfn::new);
//!
//! let area = Area::new(0xffff_8000_0000_0000, Bytes::gib(64 << 10))?;
//! let mut map = DirectMap::new(&frames, Pfn::ZERO, area, true, |_: Flush| {});
//! let memory = PfnRange::from_bytes(4 << 30, Bytes::gib(2))?;
//! assert_eq!(tables_needed(memory), 3);
//! map.map(memory, Caching::WriteBack, || free.next())?;
//! let (first, rest) = memory.split_at(memory.start().align_down(512).checked_add(512).unwrap());
//! map.unmap(first)?;
//! assert!(!map.is_mapped(first.start()) && map.is_mapped(rest.start()));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod area;
#[cfg(test)]
mod arena;
mod descriptor_map;
mod direct_map;
mod error;
mod flush;
mod ram_descriptors;
mod tables;
mod window;

pub use area::{Area, AreaError};
pub use descriptor_map::{
    Access, BadDescriptorSize, DescriptorLayout, DescriptorMap, DescriptorMapError,
};
pub use direct_map::{DirectMap, tables_needed};
pub use error::DirectMapError;
pub use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
pub use hotmem_pgtable::{Attributes, Caching};
pub use window::{PAGE_BYTES, Window, WindowError};

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
