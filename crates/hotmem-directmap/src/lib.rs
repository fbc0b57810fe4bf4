//! The kernel mappings that memory hotplug needs: a direct map that follows the memory, a map of
//! page descriptors, and windows of pages whose frames can be moved.
//!
//! - [`DirectMap`] maps memory at one offset, in pages of 1 GiB and 2 MiB. It splits a large page
//!   when a part of it is removed. Unmapping never fails, because the table for a split is put in
//!   reserve when the page is mapped.
//! - [`DescriptorMap`] is an array with room for a descriptor of every frame; only the parts in use
//!   are backed. RAM that is added in whole sections [holds its own
//!   descriptors](DescriptorMap::map_ram).
//! - [`Window`] maps single frames at addresses of its own and moves them while they are used.
//!
//! All of them change tables through [`hotmem_pgtable`]. A kernel provides access to the frames of
//! its tables ([`Tables`](hotmem_pgtable::Tables)) and a TLB flush of all processors
//! ([`Flusher`](hotmem_pgtable::Flusher)).
//!
//! ```
//! use core::sync::atomic::AtomicU64;
//! use hotmem_addr::{Bytes, Pfn, PfnRange};
//! use hotmem_directmap::{Area, Caching, DirectMap};
//! use hotmem_pgtable::{ENTRIES, Flush, Table, Tables};
//!
//! /// Frames for tables; a kernel reaches them in its direct map.
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
//! let area = Area::new(0xffff_8000_0000_0000, Bytes::tib(64))?;
//! let mut map = DirectMap::new(&frames, Pfn::ZERO, area, true, |_: Flush| {});
//! let memory = PfnRange::from_bytes(4 << 30, Bytes::gib(2))?;
//! assert_eq!(map.tables_needed(memory), 3);
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
mod ram_descriptors;
mod tables;
mod window;

pub use area::{Area, AreaError};
pub use descriptor_map::{
    Access, DescriptorLayout, DescriptorMap, DescriptorMapError, DescriptorSize,
};
pub use direct_map::{Caching, DirectMap, DirectMapError, tables_needed_at_first};
pub use window::{PAGE_BYTES, UNUSED, Window, WindowError};

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
