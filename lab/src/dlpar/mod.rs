//! pseries partitions on the hosted machine. A device tree or arguments describe the LMBs, and the
//! hypervisor is simulated.

pub mod drmgr;
mod machine;

pub use machine::{Description, DescriptionError, Partition, Parts};
