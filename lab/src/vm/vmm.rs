//! The virtual machine monitors that `hotmem vm` can use.

use crate::microsandbox;
use crate::qemu::{Config, Error, Launch};

/// A virtual machine monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Vmm {
    /// QEMU
    #[default]
    Qemu,
    /// The VMM of microsandbox, which needs KVM
    Microsandbox,
}

impl Vmm {
    /// Returns the start of this machine, or of the machine of another VMM that is most like it.
    ///
    /// # Errors
    /// The program that runs the other VMM cannot be built.
    pub(super) fn launch(self, config: &Config) -> Result<Launch, Error> {
        match self {
            Vmm::Qemu => Ok(Launch::from(config)),
            Vmm::Microsandbox => {
                Ok(Launch::from(&microsandbox::Config::like(config, microsandbox::find()?)))
            }
        }
    }
}
