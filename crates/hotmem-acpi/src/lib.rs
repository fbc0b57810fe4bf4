#![doc = include_str!("../README.md")]
//!
//! # In detail
//!
//! Memory hotplug by ACPI, for kernels without an AML interpreter. The crate does no I/O.
//!
//! QEMU, Cloud Hypervisor and their relatives show hot-plugged memory, such as a DIMM, by a small
//! block of registers. The AML of the DSDT drives these registers, and a kernel with an interpreter
//! sees only devices and notifications. The registers are documented, so a kernel can drive them itself:
//!
//! 1. [`aml::find_region`] finds the block of registers in the DSDT.
//! 2. [`MemorySlots`] reads the registers, and returns the changes of the slots: memory that was
//!    inserted, memory that the host asks back, memory that has gone.
//! 3. The kernel adds the memory and [accepts](MemorySlots::accept) it, or
//!    [rejects](MemorySlots::reject) it. It removes memory and [ejects](MemorySlots::eject) it, or
//!    [refuses](MemorySlots::refuse) to give it back. The host is told each of these answers.
//!
//! [`srat::memory_affinities`] lists the nodes of boot memory. The node of a DIMM is named by the
//! registers alone: QEMU's SRAT has one hot-pluggable range for all slots, on the last node.
//!
//! All that tables and registers say is input from outside: nothing in it causes a panic, and what is
//! impossible is refused by an error that names it.
#![no_std]
#![forbid(unsafe_code)]

pub mod aml;
mod fields;
mod slots;
pub mod srat;

pub use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
pub use slots::{
    Change, Dimm, EjectError, Fault, MemorySlots, Model, SlotRegisters, StatusWidth, TooManySlots,
    count_qemu_slots,
};
