//! Tests of the reference guest under QEMU. `cargo xtask test` installs QEMU and runs them.

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
