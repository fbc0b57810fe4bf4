//! The setting of Xen's page-table isolation (XPTI).

use std::fmt;

/// Whether Xen hides its page tables from its guests' user mode (a mitigation of Meltdown), which
/// costs a switch of page tables for each trap and hypercall.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Xpti {
    /// Isolated, as on processors that need it
    On,
    /// Not isolated, as on processors that do not
    Off,
}

impl fmt::Display for Xpti {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Xpti::On => "xpti-on",
            Xpti::Off => "xpti-off",
        })
    }
}
