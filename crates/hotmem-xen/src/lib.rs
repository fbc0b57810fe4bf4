//! Page tables of a Xen PV guest.
//!
//! A PV guest's page tables are read-only to it: Xen checks every change. A kernel that clears an
//! entry by an ordinary exchange traps, and Xen emulates the instruction: tens of thousands of
//! cycles each. [`XenPv`] is the [`Mmu`](hotmem_pgtable::Mmu) that changes them by batches:
//!
//! - an entry whose Accessed and Dirty bits matter by `MMU_PT_UPDATE_PRESERVE_AD` with value 0,
//!   which clears all but these two bits by a compare-exchange. They are read afterwards: together
//!   an atomic get-and-clear, 512 to a hypercall, on every Xen since 2008;
//! - whole tables by unhooking, after which they are ordinary memory;
//! - a dying address space by unpinning all, then mapping all writable, then plain reads.
//!
//! [`Hypervisor`] are the hypercalls, typed as Xen's public headers have them; [`Syscall`] makes
//! them.
#![no_std]

mod abi;
pub mod domain;
mod fault;
mod hypervisor;
mod mmu;
#[cfg(target_arch = "x86_64")]
mod syscall;
pub mod vectors;

pub use abi::{Command, DomId, Errno, MmuExtOp, MmuUpdate, Multicall, features};
pub use fault::{Call, Fault};
pub use hypervisor::{Hypervisor, Partly};
pub use mmu::{Config, MachineTables, Room, XenPv};
#[cfg(target_arch = "x86_64")]
pub use syscall::Syscall;
