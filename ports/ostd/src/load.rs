//! How the kernel uses its memory: one CPU fills all of it, several allocate and free all the time.

mod churn;
mod fill;

use churn::Churn;
use fill::Fill;

/// What uses memory.
pub enum Load {
    /// Nobody but the CPU that follows the host's requests.
    Fill(Fill),
    /// All other CPUs.
    Churn(Churn),
}

impl Load {
    /// Begins.
    pub fn start() -> Load {
        if ostd::cpu::num_cpus() == 1 {
            Load::Fill(Fill::start())
        } else {
            Load::Churn(Churn::start())
        }
    }

    /// Uses what has come. Frees it again, unless it is to be kept.
    pub fn use_memory(&mut self, keep: bool) {
        if let Load::Fill(fill) = self {
            fill.use_memory(keep);
        }
    }

    /// Frees what was kept. Returns whether there was anything.
    pub fn free(&mut self) -> bool {
        match self {
            Load::Fill(fill) => fill.free(),
            Load::Churn(_) => false,
        }
    }

    /// Ends.
    pub fn end(self) {
        if let Load::Churn(churn) = self {
            churn.end();
        }
    }
}
