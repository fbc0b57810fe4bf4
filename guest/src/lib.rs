//! Contains the parts of the reference kernel that do not access hardware: the formats that the
//! kernel reads and writes, and data structures. They are built and tested on any host. `main.rs`
//! is the kernel itself.
#![cfg_attr(not(test), no_std)]

pub mod cmdline;
pub mod command;
pub mod cxl;
pub mod descriptor;
pub mod device_tree;
pub mod elf;
pub mod event;
pub mod fixed_list;
pub mod frame_words;
pub mod fw_cfg;
pub mod late_memory;
pub mod layout;
pub mod limits;
pub mod loader_table;
pub mod machine_check;
pub mod memory_map;
pub mod mmio_window;
pub mod mp_table;
pub mod nfit;
pub mod owned;
pub mod pattern;
pub mod pci_functions;
pub mod pvh;
pub mod raised_lines;
pub mod redistributor;
pub mod report;
pub mod signal;
pub mod slot;
pub mod tables;
pub mod virtio_mmio;
pub mod watchdog;
pub mod zero_page;

/// Converts addresses and sizes of a 64-bit machine to `usize`.
#[must_use]
pub const fn to_usize(n: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    #[expect(clippy::cast_possible_truncation, reason = "the widths are equal, see above")]
    {
        n as usize
    }
}
