//! Chooses the load of the kernel: a single CPU fills all memory, or runs a mixed load if the command
//! line says so. Several CPUs allocate and free continuously.

#[path = "../../arceos/src/load/checked_memory.rs"]
mod checked_memory;
mod churn;
mod fill;
#[path = "../../arceos/src/load/mixed.rs"]
mod mixed;

use alloc::vec::Vec;
use checked_memory::CheckedMemory;
use churn::Churn;
use fill::Fill;
use hotmem_ostd_allocator::FRAMES;
use ostd::prelude::println;

/// The word of the kernel's command line that selects the mixed load.
const MIXED: &str = "hotmem.load=mixed";

/// A load.
pub enum Load {
    /// The only CPU fills memory, and also carries out the host's requests.
    Fill(Fill),
    /// As `Fill`, but the CPU allocates and frees objects of all sizes. These allocations stay in
    /// use.
    Mixed(Vec<CheckedMemory>),
    /// All CPUs except the first allocate and free.
    Churn(Churn),
}

impl Load {
    /// Starts the load.
    pub fn start() -> Load {
        let mut words = ostd::boot::boot_info().kernel_cmdline.split(' ');
        if ostd::cpu::num_cpus() > 1 {
            Load::Churn(Churn::start())
        } else if words.any(|word| word == MIXED) {
            Load::Mixed(Vec::new())
        } else {
            Load::Fill(Fill::start())
        }
    }

    /// Uses plugged memory. Frees the memory afterwards unless `keep` is set. A mixed load frees all
    /// but the allocations that stay in use.
    pub fn use_memory(&mut self, keep: bool) {
        match self {
            Load::Fill(fill) => fill.use_memory(keep),
            Load::Mixed(allocations) => {
                let words = mixed::run(allocations, FRAMES.counts().free);
                println!(r#"{{"event":"verified","bytes":{}}}"#, words * size_of::<usize>());
            }
            Load::Churn(_) => {}
        }
    }

    /// Checks and frees the memory that is in use. Returns whether there was any.
    pub fn free(&mut self) -> bool {
        match self {
            Load::Fill(fill) => fill.free(),
            Load::Mixed(allocations) => {
                allocations.iter().for_each(CheckedMemory::check);
                !core::mem::take(allocations).is_empty()
            }
            Load::Churn(_) => false,
        }
    }

    /// Ends the load.
    pub fn end(self) {
        if let Load::Churn(churn) = self {
            churn.end();
        }
    }
}
