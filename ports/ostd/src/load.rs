//! Chooses the load of the kernel: a single CPU fills all memory, several CPUs allocate and free
//! continuously.

mod churn;
mod fill;

use churn::Churn;
use fill::Fill;

/// A load.
pub enum Load {
    /// The only CPU fills memory, and also carries out the host's requests.
    Fill(Fill),
    /// All CPUs except the first allocate and free.
    Churn(Churn),
}

impl Load {
    /// Starts the load.
    pub fn start() -> Load {
        if ostd::cpu::num_cpus() == 1 {
            Load::Fill(Fill::start())
        } else {
            Load::Churn(Churn::start())
        }
    }

    /// Uses plugged memory. Frees the memory afterwards unless `keep` is set.
    pub fn use_memory(&mut self, keep: bool) {
        if let Load::Fill(fill) = self {
            fill.use_memory(keep);
        }
    }

    /// Frees the kept memory. Returns whether there was any.
    pub fn free(&mut self) -> bool {
        match self {
            Load::Fill(fill) => fill.free(),
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
