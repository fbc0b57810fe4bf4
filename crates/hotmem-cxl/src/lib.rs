#![doc = include_str!("../README.md")]
//!
//! # In detail
//!
//! CXL memory devices, for kernels that have no driver for them yet. The crate does no I/O.
//!
//! 1. [`cedt::structures`] lists the host bridges and the windows of a platform, and [`Platform`]
//!    collects those that contradict neither each other nor RAM.
//! 2. [`config::locate`] finds the registers of a device, for which the kernel implements
//!    [`Registers`].
//! 3. [`plan::Plan`] computes how the decoders of bridges and devices are set, and [`plan::Execution`]
//!    commits them or frees them again. [`Decoders::commit`] does the same for one decoder.
//! 4. [`DeviceRegisters`] reads the state of a device, and [`Mailbox`] sends it the commands of
//!    [`command`].
//! 5. [`DynamicCapacity`] keeps account of the memory that a device offers and asks back.
//!
//! All that tables and registers say is input from outside: nothing in it causes a panic, and what is
//! impossible is refused by an error that names it. References are to the CXL specification, revision
//! 3.1.
#![no_std]
#![forbid(unsafe_code)]

mod capacity;
pub mod cedt;
pub mod command;
pub mod config;
mod decoder;
mod device;
mod fields;
mod interleave;
pub mod plan;
mod platform;
mod registers;

pub use capacity::{CapacityError, DynamicCapacity, RequestKind};
pub use cedt::COMPONENT_BYTES;
pub use decoder::{
    COMMIT_LIMIT, Capability, DecoderError, DecoderState, Decoders, Destination, MAX_PORTS,
    Occupancy, Role, Setting, Transition,
};
pub use device::{
    COMMAND_LIMIT, DeviceError, DeviceRegisters, EventLog, Mailbox, MailboxError, MemoryState,
    READY_LIMIT,
};
pub use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
pub use interleave::{Granularity, UNIT, Ways};
pub use platform::{Platform, PlatformError};
pub use registers::{Config, Registers};
