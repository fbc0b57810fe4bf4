//! The virtual machine monitors that `hotmem vm` can use.

use super::{Arch, Args};
use crate::microsandbox;
use crate::qemu::{Config, Error, Launch};
use anyhow::{Result, bail};
use hotmem::Bytes;

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

/// Checks that the VMM has the machine that the other arguments describe.
pub(super) fn check(args: &Args) -> Result<()> {
    if args.vmm == Vmm::Qemu {
        return Ok(());
    }
    if args.arch != Arch::X86 || !args.guest.is_reference() || args.dimms.is_some() {
        bail!("--vmm microsandbox: this VMM boots the reference guest on x86 without DIMMs");
    }
    if args.machine.counts_instructions() {
        bail!("--icount: only TCG counts instructions");
    }
    let boot_memory = args.machine.boot_memory_or(Bytes::mib(1));
    if !boot_memory.0.is_multiple_of(Bytes::mib(1).0) {
        bail!("--boot-memory {boot_memory}: this VMM has whole MiB");
    }
    if args.block_size != microsandbox::BLOCK_SIZE {
        bail!(
            "--block-size {}: this VMM has blocks of {}",
            args.block_size,
            microsandbox::BLOCK_SIZE
        );
    }
    Ok(())
}
