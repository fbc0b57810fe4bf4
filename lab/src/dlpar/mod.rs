//! pseries partitions on hosted machines. A device tree or arguments describe the LMBs. The
//! hypervisor is simulated.

pub mod drmgr;
mod machine;

pub use machine::{Description, DescriptionError, Partition, PartitionStorage};
