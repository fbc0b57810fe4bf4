//! The arguments of `hotmem vm`, and which of them go together.

use super::vmm::Vmm;
use crate::{
    guest::{Guest, Machine, Policy},
    microsandbox::BLOCK_SIZE,
    out::ensure_writable,
    qemu::Architecture,
    size,
};
use anyhow::{Result, bail};
use hotmem::Bytes;
use std::path::PathBuf;

/// The maximal number of DIMMs. The guest knows 32 memory slots, and one DIMM more ends the run.
const MAX_DIMMS: i64 = 31;

/// A type of machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Arch {
    /// A PC with a virtio-mem device
    #[default]
    X86,
    /// QEMU's machine `virt` for aarch64, with a virtio-mem device
    Aarch64,
    /// QEMU's machine `virt` for riscv64. It has no virtio-mem device: the machine has the memory from
    /// the start, and the guest tells its engine of it after boot
    Riscv64,
    /// QEMU's pseries machine, to which memory is added as DIMMs
    Pseries,
}

/// Arguments of `hotmem vm`.
#[derive(clap::Args)]
pub struct Args {
    /// The machine to boot
    #[arg(long, value_enum, default_value_t)]
    pub(super) arch: Arch,
    /// The VMM that runs the machine
    #[arg(long, value_enum, default_value_t)]
    pub(super) vmm: Vmm,
    /// The guest to boot
    #[arg(long, value_enum, default_value_t)]
    pub(super) guest: Guest,
    /// Memory to plug while the guest runs
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) plug: Bytes,
    /// The policy by which plugged memory is brought online
    #[arg(long, value_enum, default_value_t)]
    pub(super) policy: Policy,
    /// Memory that the guest allocates and writes to, and checks before it frees the memory
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) touch: Option<Bytes>,
    /// Unplug the memory at the end
    #[arg(long)]
    pub(super) unplug: bool,
    /// Unplug the memory at the end, and plug it a second time
    #[arg(long)]
    pub(super) replug: bool,
    /// Add a balloon device with free page reporting, make the guest free the memory that it wrote
    /// to, and plot the guest's resident memory on the host
    #[arg(long)]
    pub(super) balloon: bool,
    /// The file to which the plot is written as SVG
    #[arg(long, value_name = "FILE", requires = "balloon")]
    pub(super) svg: Option<PathBuf>,
    /// The device's block size
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = size::parse)]
    pub(super) block_size: Bytes,
    /// Insert the memory as this number of DIMMs in ACPI's memory slots, instead of plugging it into a
    /// virtio-mem device
    #[arg(long, value_name = "NUMBER", conflicts_with = "balloon",
          value_parser = clap::value_parser!(u32).range(1..=MAX_DIMMS))]
    pub(super) dimms: Option<u32>,
    /// Add the memory as that of this number of CXL devices, between which addresses alternate, instead of
    /// plugging it into a virtio-mem device
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["balloon", "arch", "dimms"],
          value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(super) cxl: Option<u8>,
    /// The time limit of a step of Linux
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: u32,
    /// Show no live view of the memory in the terminal
    #[arg(long)]
    pub(super) plain: bool,
    /// The file to which the live view is written as an animated SVG, instead of to the terminal
    #[cfg(feature = "live")]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arch", "cxl"])]
    pub(super) record: Option<PathBuf>,
    /// Print JSON (docs/command.md)
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) machine: Machine,
}

impl Args {
    pub(super) fn architecture(&self) -> Architecture {
        match self.arch {
            Arch::Aarch64 => Architecture::Aarch64,
            Arch::Riscv64 => Architecture::Riscv64,
            Arch::X86 | Arch::Pseries => Architecture::X86_64,
        }
    }

    /// Checks that the VMM has the machine that the other arguments describe.
    pub(super) fn check_vmm(&self) -> Result<()> {
        if self.vmm == Vmm::Qemu {
            return Ok(());
        }
        if self.arch != Arch::X86
            || !self.guest.is_reference()
            || self.dimms.is_some()
            || self.cxl.is_some()
        {
            bail!(
                "--vmm microsandbox: this VMM boots the reference guest on x86 without DIMMs and CXL"
            );
        }
        if self.machine.counts_instructions() {
            bail!("--icount: only TCG counts instructions");
        }
        let boot_memory = self.machine.boot_memory_or(Bytes::mib(1));
        if !boot_memory.0.is_multiple_of(Bytes::mib(1).0) {
            bail!("--boot-memory {boot_memory}: this VMM has whole MiB");
        }
        if self.block_size != BLOCK_SIZE {
            bail!("--block-size {}: this VMM has blocks of {BLOCK_SIZE}", self.block_size);
        }
        Ok(())
    }

    /// Checks that the files can be written to which the run writes at its end.
    pub(super) fn check_files(&self) -> Result<()> {
        #[cfg(feature = "live")]
        self.record.as_deref().map_or(Ok(()), ensure_writable)?;
        self.svg.as_deref().map_or(Ok(()), ensure_writable)
    }

    pub(super) fn check(&self) -> Result<()> {
        if (self.dimms.is_some() || self.cxl.is_some()) && !self.guest.is_reference() {
            bail!("--dimms, --cxl: these need the reference guest");
        }
        if self.dimms.is_some() && self.arch == Arch::Riscv64 {
            bail!("--dimms: QEMU's machine for riscv64 has no memory slots");
        }
        if !self.block_size.0.is_power_of_two() {
            bail!("--block-size {}: the block size must be a power of two", self.block_size);
        }
        if self.plug == Bytes::ZERO || !self.plug.0.is_multiple_of(self.block_size.0) {
            bail!("--plug {}: the size must be whole blocks of {}", self.plug, self.block_size);
        }
        if self.balloon && (self.guest == Guest::Linux || self.touched_memory().is_none()) {
            bail!("--balloon: this needs the reference guest and --touch");
        }
        if self.touch.is_some_and(|touch| touch > self.plug) {
            bail!("--touch: this is more than the {} that are plugged", self.plug);
        }
        Ok(())
    }

    /// Returns the size of the memory that the guest writes to, or `None` if it is zero.
    pub(super) fn touched_memory(&self) -> Option<Bytes> {
        self.touch.filter(|&size| size > Bytes::ZERO)
    }

    /// Returns the number of steps that change the guest's memory, before [`Args::end`].
    pub(super) fn resize_count(&self) -> u32 {
        if self.replug { 3 } else { 1 + u32::from(self.unplug) }
    }
}
