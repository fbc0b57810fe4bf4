//! Tests of the reference guest under QEMU. `cargo xtask test` installs QEMU and runs them.

mod acpi_hot_add;
mod bad_input;
mod balloon;
mod boot;
mod churn;
mod command;
mod descriptors;
mod devices;
mod filled_frames;
mod heap;
mod hot_add;
mod interrupts;
mod live_migration;
mod migration;
mod mmio;
mod newer_qemu;
mod next_kernel;
mod nvdimm;
mod pci_roots;
mod pinned_memory;
mod resize;
mod small_guest;
mod support;
mod unusable_machines;
mod vetoes;
mod zones;
