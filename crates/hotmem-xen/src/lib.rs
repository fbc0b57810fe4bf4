//! Changes the page tables of a Xen PV guest in batches of hypercalls.
//!
//! A PV guest maps its page tables read-only, because Xen checks every change. If its kernel clears
//! an entry by an ordinary exchange, the instruction traps and Xen emulates it, which takes tens of
//! thousands of cycles. [`XenPv`] is an [`Mmu`](hotmem_pgtable::Mmu) that changes entries by batches
//! of hypercalls:
//!
//! - To clear an entry whose Accessed and Dirty bits are needed, it uses
//!   `MMU_PT_UPDATE_PRESERVE_AD` with value 0, which clears all other bits by a compare-exchange.
//!   Then it reads the two bits. The two steps together are an atomic get-and-clear,
//!   because the processor sets no bits of an entry that is not present. Every Xen since 2008 supports
//!   this command, for up to 512 entries in a hypercall.
//! - It unhooks whole tables, which then become ordinary memory.
//! - To tear down an address space, it unpins all tables, then maps all of them writable, and then
//!   reads their entries as ordinary memory.
//!
//! Address spaces of 64-bit guests have two roots (see [`Space::user_root`]), and the kernel pins
//! both. This crate changes both roots, and a teardown turns both into ordinary memory.
//!
//! This crate does not map or move pages: `PageTables::map` and `PageTables::move_pages` are for
//! [`Native`] tables only, and do not compile for [`XenPv`]. A PV kernel maps pages by its own calls
//! of `mmu_update`, because these calls must name the domain that owns the frames.
//!
//! ```compile_fail,E0599
//! # use hotmem_pgtable::{Owner, PageTables, Run};
//! # use hotmem_xen::{Hypervisor, MachineTables, XenPv};
//! fn map<H: Hypervisor, T: MachineTables>(
//!     tables: &mut PageTables<'_, XenPv<'_, H, T>>,
//!     run: Run,
//!     owner: &mut impl Owner<Format>,
//! ) {
//!     let _ = tables.map(run, owner);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! # use hotmem_pgtable::PageTables;
//! # use hotmem_xen::{Hypervisor, MachineTables, XenPv};
//! fn move_pages<H: Hypervisor, T: MachineTables>(tables: PageTables<'_, XenPv<'_, H, T>>) {
//!     let _ = tables.move_pages([0], |_| ());
//! }
//! ```
//!
//! [`Space::user_root`]: hotmem_pgtable::x86_64::Space::user_root
//! [`Native`]: hotmem_pgtable::Native
//!
//! [`Hypervisor`] declares the hypercalls with the types of Xen's public headers;
//! [`SyscallHypervisor`] makes them.
#![no_std]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("hotmem-xen is for 64-bit guests: 32-bit guests have a different interface to Xen");

mod abi;
mod config;
pub mod domain;
mod fault;
mod hypervisor;
mod mmu;
#[cfg(target_arch = "x86_64")]
mod syscall_hypervisor;
pub mod vectors;

pub use abi::{Command, DomId, Errno, MmuExtOp, MmuUpdate, Multicall, features};
pub use config::{Config, GrantDetection};
pub use fault::{Fault, HypercallPurpose};
pub use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
pub use hypervisor::{BatchRefused, Hypervisor};
pub use mmu::{HypercallBuffer, MachineTables, XenPv};
#[cfg(target_arch = "x86_64")]
pub use syscall_hypervisor::SyscallHypervisor;

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
