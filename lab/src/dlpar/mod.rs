//! pseries partitions on the hosted machine: LMBs as a device tree lists them or as they are
//! described, and a hypervisor in memory.

pub mod drmgr;
mod machine;

pub use machine::{Description, DescriptionError, Partition, Parts};
