//! The reference guest on real QEMU. `cargo xtask test` runs these, with QEMU set up.

mod acpi_hot_add;
mod bad_input;
mod balloon;
mod boot;
mod churn;
mod command;
mod descriptors;
mod devices;
mod filled;
mod heap;
mod hot_add;
mod interrupts;
mod live_migration;
mod migration;
mod mmio;
mod newer;
mod next_kernel;
mod nvdimm;
mod pins;
mod resize;
mod roots;
mod small;
mod support;
mod unfit;
mod vetoes;
mod zones;
