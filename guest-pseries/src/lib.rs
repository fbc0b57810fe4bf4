//! Contains the parts of the pseries kernel that do not access hardware: the firmware's requests
//! and answers, and the command line. They are built and tested on any host. `main.rs` is the
//! kernel itself.
//!
//! | file | contents |
//! |---|---|
//! | `event_log.rs` | RTAS event logs, which contain the host's requests |
//! | `rtas.rs` | RTAS calls, by the tokens of the device tree |
//! | `work_area.rs` | the answers of `ibm,configure-connector` |
//! | `connectors.rs` | [`hotmem_dlpar::Connectors`] by these calls |
//! | `faults.rs` | injects wrong answers of the firmware, for tests on the machine |
//! | `support.rs` | the features that the kernel supports (`ibm,client-architecture-support`) |
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
