#![doc = include_str!("../README.md")]
//!
//! # In detail
//!
//! Dynamic memory of PAPR logical partitions: the *pseries* machine of PowerVM and QEMU.
//!
//! One device tree property lists all memory that can ever be added, as logical memory blocks
//! (LMBs) of 16 MiB or 256 MiB each. An LMB is added and removed through its dynamic
//! reconfiguration connector. This crate reads the properties ([`DynamicMemory`], [`LookupArrays`],
//! [`Numa`]), keeps the state of all LMBs ([`Table`]), and carries out the requests of `drmgr`
//! ([`Request`], which [`Dlpar`] holds while it is open) by ordinary calls of the engine. The crate
//! avoids searches: the node of an LMB is stored with the LMB. Neighbouring LMBs are handled as one
//! range. Only the platform's calls are made for each LMB.
//!
//! The crate is `no_std` and uses no heap, because the caller lends the storage. The crate follows
//! PAPR (Power Architecture Platform Requirements) 2.9, sections 13 and C.6. Where PAPR leaves a
//! choice, the crate follows the behaviour of Linux and QEMU.
//!
//! | file | contents |
//! |---|---|
//! | `property/`, `associativity.rs` | the device tree's properties, checked |
//! | `tree.rs` | finds the properties in a flattened device tree (feature `fdt`) |
//! | `table/` | all LMBs, by position, address and DRC index |
//! | `write.rs` | writes the properties as they are after a request |
//! | `description.rs`, `outcome.rs` | what a request is for; its progress and its results |
//! | `connectors.rs`, `exchange.rs` | the calls of the hypervisor; their sequence for one connector |
//! | `request/` | additions and removals: all or nothing, resumable |
//! | `hypervisor.rs` | a simulated hypervisor, which can fail any call |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![forbid(unsafe_code)]

mod associativity;
mod connector_error;
mod connectors;
mod description;
mod exchange;
pub mod hypervisor;
mod outcome;
mod property;
mod request;
mod table;
#[cfg(feature = "fdt")]
mod tree;
mod write;

pub use associativity::{Affinity, LookupArrays, Numa};
pub use connector_error::{BUSY, Call, ConnectorError, ConnectorFailure};
pub use connectors::{Connectors, MAX_LIST_LEN};
pub use description::{Change, LmbSelection, Request};
pub use outcome::{Error, Failure, FinalState, Progress, RefusedLmb, Summary, Wait};
pub use property::{
    DrcIndex, DynamicMemory, FLAG_AI_INVALID, FLAG_ASSIGNED, FLAG_DRC_INVALID, FLAG_RESERVED,
    LmbSet, LmbSize, Property, PropertyError, Version,
};
pub use request::{Dlpar, Machine, PollState};
pub use table::{Group, Lmb, Needs, Run, Storage, Table, TableError};
#[cfg(feature = "fdt")]
pub use tree::{Tree, TreeError};
pub use write::PropertyValue;
