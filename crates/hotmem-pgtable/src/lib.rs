#![doc = include_str!("../README.md")]
//!
//! # In detail
//!
//! Changes page tables in batches: unmaps, protects and moves pages, and tears down address spaces.
//!
//! Until an entry is cleared, other CPUs use it, and set Accessed and Dirty in it. So an entry is
//! cleared by an atomic *get and clear*, whose result has the final bits. The unit of this
//! operation is a batch: if each cleared entry costs a trap, as in a Xen guest without hardware
//! paging, a batch costs one hypercall. A whole table is *unhooked*: the entry that points to it is
//! cleared, the TLBs are flushed, and then the table is read as ordinary memory. An address space
//! may have two roots, the kernel's and the user's ([`Space`]); each change is made in both. The
//! cost is proportional to the number of mapped pages and of the tables that map them: unmapped
//! parts are skipped by the cache line or, above L1, by the table.
//!
//! The [`Format`] of entries is a type: x86-64 with four or five levels, aarch64 with the 4 KiB
//! granule, or riscv64 with Sv39, Sv48 or Sv57. The modules [`x86_64`], [`aarch64`] and [`riscv64`]
//! name the types of each format. A kernel for several architectures uses [`target`], which is the
//! module of the architecture that it is compiled for.
//!
//! - [`PageTables`]: [`unmap_range`](PageTables::unmap_range), [`protect`](PageTables::protect),
//!   [`teardown`](PageTables::teardown) with every MMU; [`map`](PageTables::map) and
//!   [`move_pages`](PageTables::move_pages) only on [`Native`];
//! - [`Mmu`]: the MMU, which changes entries in batches; [`Native`] is a processor without a
//!   hypervisor's help;
//! - [`Owner`]: the kernel's record of pages, which receives unmapped pages and freed tables.
//!
//! The crate is `no_std` and has neither a heap nor `unsafe` code. The kernel provides access to
//! its tables by [`Tables`].
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod aliases;
mod batch;
mod entry;
mod error;
mod format;
mod level;
mod located;
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
mod run_builder;
mod space;
mod split;
mod sync;
mod teardown;
mod unmap;
mod walk;
mod well_formed;

pub use aliases::{aarch64, riscv64, target, x86_64};
pub use batch::Batch;
pub use entry::{Entry, EntryAddr};
pub use error::{StopReason, Stopped, StoppedBy};
pub use format::{Aarch64, Attributes, Caching, Format, Riscv64, X86_64};
pub use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
pub use hotmem_invariant::{Violations, violated_invariants};
pub use level::{ENTRIES, Kind, Level};
pub use located::{LocatedEntries, LocatedEntry};
pub use mmu::{BatchError, Change, Flush, Forbidden, Mmu, Table, entry_at};
pub use moving::{MoveError, MovedPages};
pub use native::{Flusher, Native, NativeFault, Split, Tables};
pub use owner::Owner;
pub use page_tables::PageTables;
pub use range::{VirtRange, VirtRangeError};
pub use run::Run;
pub use space::Space;
pub use sync::AtomicU64;
pub use unmap::{CoveredTables, Unmap};
pub use walk::{NoTable, each_table, find_entry, find_entry_from};
