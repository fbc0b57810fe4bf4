//! pseries partitions on hosted machines. A device tree or arguments describe the LMBs. The
//! hypervisor is simulated.

pub mod drmgr;
mod partition;

pub use partition::{Description, DescriptionError, Partition, PartitionStorage};
