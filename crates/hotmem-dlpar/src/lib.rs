//! Dynamic memory of PAPR logical partitions: the *pseries* machine of PowerVM and QEMU.
//!
//! The platform names all memory that can ever be added as logical memory blocks (LMBs, 16 MiB or
//! 256 MiB each) in one device tree property. An LMB is added and removed through its dynamic
//! reconfiguration connector. This crate reads the properties ([`DynamicMemory`], [`LookupArrays`],
//! [`Numa`]), keeps the LMBs ([`Table`]), and carries out what `drmgr` asks for ([`Request`], kept
//! by [`Dlpar`] while it is open) by the engine's ordinary calls. It searches for nothing that it
//! knows already: the node of an LMB comes from the LMB, neighbouring LMBs are handled as one range,
//! and nothing is done for each LMB beyond the platform's calls.
//!
//! `no_std`, no heap: the caller lends the storage. Facts are from PAPR (Power Architecture Platform
//! Requirements) 2.9, sections 13 and C.6, and from what Linux and QEMU do where PAPR leaves room.
//!
//! | file | what |
//! |---|---|
//! | `property/`, `associativity.rs` | what the device tree says, checked |
//! | `tree.rs` | the same out of a flattened device tree (feature `fdt`) |
//! | `table/` | all LMBs: by position, address and DRC index |
//! | `write.rs` | the properties as they are after a request |
//! | `connectors.rs`, `exchange.rs` | what the hypervisor is asked; the order of calls for one connector |
//! | `request/` | add and remove, all or nothing, resumable |
//! | `hypervisor.rs` | a simulated hypervisor, which can fail any call |
#![no_std]
#![forbid(unsafe_code)]

mod associativity;
mod connector_error;
mod connectors;
mod exchange;
pub mod hypervisor;
mod property;
mod request;
mod table;
#[cfg(feature = "fdt")]
mod tree;
mod write;

pub use associativity::{Affinity, LookupArrays, Numa};
pub use connector_error::{BUSY, Call, ConnectorError, Wrong};
pub use connectors::{Connectors, LONGEST_LIST};
pub use property::{
    DrcIndex, DynamicMemory, FLAG_AI_INVALID, FLAG_ASSIGNED, FLAG_DRC_INVALID, FLAG_RESERVED,
    LmbSet, LmbSize, Property, PropertyError, Version,
};
pub use request::{
    Between, Change, Dlpar, Error, Failure, Left, Machine, Next, Progress, Refused, Request,
    Summary, Wait, Which,
};
pub use table::{Group, Lmb, Needs, Run, Storage, Table, TableError};
#[cfg(feature = "fdt")]
pub use tree::{Tree, TreeError};
pub use write::Written;

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
