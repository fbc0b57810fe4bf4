//! What the pseries kernel knows without touching hardware: what it says to the firmware and how it
//! reads the answers. It builds and is tested on any host; `main.rs` is the kernel around it.
//!
//! | file | contents |
//! |---|---|
//! | `event_log.rs` | RTAS event logs: what the host asks for |
//! | `rtas.rs` | RTAS calls, by the tokens of the device tree |
//! | `work_area.rs` | the answers of `ibm,configure-connector` |
//! | `connectors.rs` | [`hotmem_dlpar::Connectors`] by these calls |
//! | `faults.rs` | firmware that answers calls wrongly, for tests on the machine |
//! | `support.rs` | what the kernel says it supports (`ibm,client-architecture-support`) |
//! | `pci.rs` | PCI host bridges, and RTAS for their configuration space |
//! | `options.rs` | the kernel's command line |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod connectors;
pub mod event_log;
pub mod faults;
pub mod options;
pub mod pci;
pub mod rtas;
pub mod support;
pub mod work_area;
