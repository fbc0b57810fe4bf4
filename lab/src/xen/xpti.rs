//! Xen's page-table isolation (XPTI).

use std::fmt;

/// Whether Xen unmaps its own memory while a guest's user mode runs, as a mitigation of Meltdown.
/// With XPTI, Xen switches page tables in each trap and hypercall.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Xpti {
    /// With XPTI, as on processors that have Meltdown
    On,
    /// Without XPTI, as on processors that do not have Meltdown
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
