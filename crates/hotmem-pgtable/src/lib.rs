//! x86-64 page tables of four or five levels: unmapped, protected, moved and taken down in
//! batches.
//!
//! Other CPUs use page tables, and set Accessed and Dirty bits in them, until an entry is cleared.
//! So an entry is cleared by an atomic *get and clear*, whose result holds the final bits. The unit
//! of this operation is a batch: where each cleared entry costs a trap, as in a Xen guest without
//! hardware paging, a batch costs one hypercall. Whole tables are unhooked by clearing one entry,
//! flushed, and then read as ordinary memory. An address space may have two roots, the kernel's and
//! user mode's ([`Space`]), which are kept in step. Cost: proportional to the mapped pages and the
//! tables that map them. Unmapped parts are skipped by the cache line or, above L1, by the table.
//!
//! - [`PageTables`]: [`unmap_range`](PageTables::unmap_range), [`protect`](PageTables::protect),
//!   [`teardown`](PageTables::teardown) on every machine; [`map`](PageTables::map) and
//!   [`move_pages`](PageTables::move_pages) on [`Native`] alone;
//! - [`Mmu`]: the machine, which changes entries in batches; [`Native`] is a processor without a
//!   hypervisor's help;
//! - [`Owner`]: the kernel's record of pages, which receives unmapped pages and freed tables.
//!
//! The crate is `no_std` and has neither a heap nor `unsafe` code. The kernel provides access to
//! its tables by [`Tables`].
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod batch;
mod entry;
mod error;
#[cfg(all(loom, test))]
mod loom_tests;
mod map;
mod mmu;
mod moving;
mod native;
mod owner;
mod page_tables;
mod protect;
mod range;
mod run;
mod runs;
mod sound;
mod space;
mod split;
mod sync;
mod teardown;
mod unmap;
mod walk;

pub use batch::{Batch, Slot, Slots};
pub use entry::{ENTRIES, Entry, EntryAddr, Flags, Kind, Level};
pub use error::{Stopped, Why};
pub use mmu::{Change, Flush, Forbidden, Halted, Mmu, Table, entry_at};
pub use moving::{MoveError, Moving};
pub use native::{Flusher, Native, NativeFault, Split, Tables};
pub use owner::Owner;
pub use page_tables::PageTables;
pub use range::{RangeError, VirtRange};
pub use run::Run;
pub use space::Space;
pub use sync::AtomicU64;
pub use unmap::{Covered, Unmap};
pub use walk::{NoTable, each_table, slot_at, slot_from};

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
