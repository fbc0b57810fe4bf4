//! x86-64 page tables of four or five levels: unmapped, protected, moved and taken down in
//! batches.
//!
//! What is mapped is known by its page tables alone, and other CPUs go on using them, setting
//! Accessed and Dirty bits, until the last moment. So an entry is taken out by an atomic *get and
//! clear*, whose result holds the final bits. Here its unit is a batch, because where each entry
//! costs a trap (a guest of Xen without hardware paging) a batch costs one hypercall; and whole
//! tables are unhooked with one entry, flushed, and then read as the ordinary memory they have
//! become. An address space may have two roots, the kernel's and user mode's ([`Space`]): both are
//! kept the same. Cost: what is mapped and the tables that map it; what is not mapped is skipped by the
//! cache line or, above it, by the table.
//!
//! - [`PageTables`]: [`unmap_range`](PageTables::unmap_range), [`protect`](PageTables::protect),
//!   [`teardown`](PageTables::teardown) on every machine; [`map`](PageTables::map) and
//!   [`move_pages`](PageTables::move_pages) on [`Native`] alone;
//! - [`Mmu`]: the machine, whose operations are batches; [`Native`] is a processor by itself;
//! - [`Owner`]: to whom the runs of pages and the tables go.
//!
//! `no_std`, no heap, no `unsafe`: the kernel says where tables are by [`Tables`].
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
