//! The guests that can be booted, and how they bring plugged memory online.

use crate::{
    hosted::Hosted,
    linux::{self, Drivers, Linux},
    qemu::{Accel, Config, Event, Vm, accel, image},
    size,
};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use hotmem::{Bytes, geometry::FRAME_SIZE};
use hotmem_directmap::tables_needed_at_first;
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// A guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Guest {
    /// The reference guest
    #[default]
    Hotmem,
    /// The reference guest with a descriptor of 64 bytes for each frame, as Linux has
    #[value(name = "hotmem-64B")]
    Hotmem64,
    /// Debian's cloud kernel with its own virtio-mem driver
    Linux,
}

/// The policy by which plugged memory is brought online.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Policy {
    /// Leave plugged memory offline
    Offline,
    /// Let the guest decide
    Online,
    /// Bring it online for any allocation
    OnlineKernel,
    /// Bring it online for movable allocations only
    #[default]
    OnlineMovable,
}

/// Arguments for the machine on which guests boot.
#[derive(Clone, clap::Args)]
pub struct Machine {
    /// Memory at boot [default: 128M; 2G if Linux is among the guests]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    boot_memory: Option<Bytes>,
    /// Let each instruction take a nanosecond of the guest's time: slow, but repeatable
    #[arg(long)]
    icount: bool,
    #[command(flatten)]
    runner: Runner,
}

/// Arguments for the guest's image and the emulation.
#[derive(Clone, clap::Args)]
pub struct Runner {
    /// What runs the guest's instructions [default: TCG; for benches KVM, if a guest boots under it
    /// within a second]
    #[arg(long, value_enum)]
    accel: Option<Accel>,
    /// The reference guest's image [default: built from the workspace]
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
}

/// Guests that are ready to boot, all on the same machine.
pub struct Guests {
    accel: Option<Accel>,
    icount: bool,
    boot_memory: Bytes,
    image: Option<PathBuf>,
    linux: Option<Linux>,
}

impl Machine {
    /// Finds the guests, into each of which memory of each of the `sizes` is to be plugged.
    ///
    /// # Errors
    /// A guest that is not there, and arguments that contradict each other.
    pub fn guests(&self, guests: &[Guest], sizes: &[Bytes]) -> Result<Guests> {
        let with_linux = guests.contains(&Guest::Linux);
        let default = if with_linux { Bytes::gib(2) } else { Bytes::mib(128) };
        let boot_memory = self.boot_memory.unwrap_or(default);
        for (&guest, &size) in guests.iter().flat_map(|g| sizes.iter().map(move |s| (g, s))) {
            let least = guest.least_boot_memory(size)?;
            if boot_memory < least {
                let why = if guest.is_reference() && least > LEAST_BOOT_MEMORY {
                    ", for page tables and the engine's words"
                } else {
                    ""
                };
                bail!("--boot-memory {boot_memory}: {guest} needs {least} to be given {size}{why}");
            }
            if guest == Guest::Linux && !size.0.is_multiple_of(linux::MEMORY_BLOCK.0) {
                bail!("{size}: {guest} takes whole memory blocks of {}", linux::MEMORY_BLOCK);
            }
        }
        if self.icount && self.runner.accel == Some(Accel::Kvm) {
            bail!("--icount: only TCG counts instructions");
        }
        Ok(Guests { icount: self.icount, ..self.runner.guests(guests, boot_memory)? })
    }

    /// Returns the memory at boot, or `default` if no argument names it.
    #[must_use]
    pub fn boot_memory_or(&self, default: Bytes) -> Bytes {
        self.boot_memory.unwrap_or(default)
    }

    /// Returns the reference guest's image if an argument names it.
    #[must_use]
    pub fn image(&self) -> Option<&Path> {
        self.runner.guest_image.as_deref()
    }

    /// Returns whether instructions are counted. Then the host's clock measures nothing useful.
    #[must_use]
    pub fn counts_instructions(&self) -> bool {
        self.icount
    }
}

impl Runner {
    /// Finds the guests. Each is started with `boot_memory`.
    ///
    /// # Errors
    /// A guest that is not there.
    pub fn guests(&self, guests: &[Guest], boot_memory: Bytes) -> Result<Guests> {
        let has_reference = guests.iter().any(|guest| guest.is_reference());
        let image = has_reference.then(|| image::find(self.guest_image.as_deref()));
        let linux = guests.contains(&Guest::Linux).then(|| Linux::find(Drivers::Virtio));
        Ok(Guests {
            accel: self.accel,
            icount: false,
            boot_memory,
            image: image.transpose()?,
            linux: linux.transpose()?,
        })
    }
}

impl Guests {
    /// Memory at boot.
    #[must_use]
    pub fn boot_memory(&self) -> Bytes {
        self.boot_memory
    }

    /// Chooses KVM where it works, unless an argument names the accelerator or instructions are
    /// counted. Returns the accelerator.
    ///
    /// # Errors
    /// The guest's image, with which KVM is tried, cannot be found or built.
    pub fn choose_accel(&mut self) -> Result<Accel> {
        let accel = match self.accel {
            Some(accel) => accel,
            None if self.icount => Accel::Tcg,
            None => accel::best(self.image.as_deref())?,
        };
        Ok(*self.accel.insert(accel))
    }

    /// Returns the machine for one of the requested guests, into which up to `memory` can be
    /// plugged.
    ///
    /// # Errors
    /// `guest` is not one of the requested guests.
    pub fn config(&self, guest: Guest, policy: Policy, memory: Bytes) -> Result<Config> {
        let is_offline = policy == Policy::Offline;
        let is_two_blocks = memory.0.is_power_of_two() && memory <= Bytes::gib(128);
        let config = match (guest, &self.image, &self.linux) {
            (Guest::Hotmem, Some(image), _) => Config::new(image.clone(), memory),
            (Guest::Hotmem64, Some(image), _) => {
                Config::new(image.clone(), memory).with("descriptors", 64)
            }
            (Guest::Linux, _, Some(_)) if is_offline && !is_two_blocks => bail!(
                "{memory}: of its virtio-mem device {guest} leaves powers of two up to 128 GiB \
                 offline, nothing else"
            ),
            (Guest::Linux, _, Some(linux)) if is_offline => linux.config_offline(memory),
            (Guest::Linux, _, Some(linux)) => linux.config(memory),
            _ => bail!("{guest} was not looked for"),
        };
        // Linux's memory blocks are aligned to their size, and lie above all boot memory.
        let above = Bytes::gib(5) + self.boot_memory;
        let aligned = Bytes(above.0.next_multiple_of((memory.0 / 2).max(1)));
        Ok(Config {
            device_address: (is_offline && self.linux.is_some()).then_some(aligned),
            boot_memory: self.boot_memory,
            accel: self.accel.unwrap_or_default(),
            icount: self.icount,
            ..config.with("online", policy)
        })
    }
}

impl Guest {
    /// Returns whether it is the reference guest, with or without descriptors.
    #[must_use]
    pub const fn is_reference(self) -> bool {
        matches!(self, Guest::Hotmem | Guest::Hotmem64)
    }

    /// Returns the least boot memory of a guest into which `memory` is plugged.
    fn least_boot_memory(self, memory: Bytes) -> Result<Bytes> {
        match self {
            Guest::Hotmem | Guest::Hotmem64 => Ok(LEAST_BOOT_MEMORY.max(needed_for(memory)?)),
            Guest::Linux => Ok(Linux::least_boot_memory(memory)),
        }
    }

    /// Waits until the guest has initialised its device.
    ///
    /// # Errors
    /// [`crate::qemu::Error`]
    pub fn ready(self, vm: &mut Vm) -> Result<()> {
        let is_ready = |event: &Event| match (self, event) {
            (Guest::Hotmem | Guest::Hotmem64, Event::Device { kind, .. }) => kind == "virtio-mem",
            (Guest::Linux, Event::Boot { .. }) => true,
            _ => false,
        };
        vm.wait("virtio-mem device", |event| is_ready(event).then_some(()))?;
        Ok(())
    }
}

/// The boot memory of the reference guest.
const LEAST_BOOT_MEMORY: Bytes = Bytes::mib(64);

/// The memory that the guest's kernel needs for its image, its stacks, the engine's words for boot
/// memory and the firmware: 2.3 MiB of 128 MiB.
const KERNEL: Bytes = Bytes::mib(3);

/// Returns the boot memory that the reference guest needs when `memory` is plugged into it, rounded
/// to MiB: the engine's words, as measured on a hosted machine, page tables of the direct map, and
/// the kernel's own memory.
fn needed_for(memory: Bytes) -> Result<Bytes> {
    let gib = Bytes::gib(1).0;
    let room = memory.0.checked_next_multiple_of(gib).map(Bytes);
    let room = room.with_context(|| format!("{memory} are more than there are addresses"))?;
    let machine = Hosted::builder().boot_memory(Bytes(gib)).room(room).build()?;
    let mut hotplug = machine.boot()?;
    let at_boot = machine.frames().metadata_reserved();
    hotplug.announce(machine.room()).with_context(|| format!("a device of {memory}"))?;
    // Abandoning the addition keeps its words.
    drop(hotplug.prepare_add(machine.room()).with_context(|| format!("{memory} plugged"))?);
    let words = machine.frames().metadata_reserved().0 - at_boot.0;
    let tables = tables_needed_at_first(machine.room()) * FRAME_SIZE;
    Ok(Bytes((words + tables + KERNEL.0).next_multiple_of(Bytes::mib(1).0)))
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}

/// Writes the value's name on the command line.
fn write_name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(value.to_possible_value().as_ref().map_or("", |value| value.get_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_names_are_those_of_the_command_line() {
        assert_eq!(
            [Guest::Hotmem, Guest::Hotmem64, Guest::Linux].map(|guest| guest.to_string()),
            ["hotmem", "hotmem-64B", "linux"]
        );
        let policies = Policy::value_variants().iter().map(ToString::to_string);
        let names = ["offline", "online", "online_kernel", "online_movable"];
        assert!(policies.eq(names));
    }
}
