//! The guests of benches and of `hotmem vm`, the policies by which they bring plugged memory
//! online, and the machines that boot them.

use crate::{
    hosted::Hosted,
    linux::{self, Drivers, Linux},
    qemu::{Accel, Architecture, Config, Event, Vm, accel, image},
    size,
};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use hotmem::{Bytes, geometry::FRAME_SIZE};
use hotmem_directmap::tables_needed;
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
    /// The reference guest with a descriptor of 64 bytes for each frame, as in Linux
    #[value(name = "hotmem-64B")]
    HotmemWithDescriptors,
    /// Debian's cloud kernel with Linux's virtio-mem driver
    Linux,
}

/// The policy by which plugged memory is brought online.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Policy {
    /// Plugged memory stays offline
    Offline,
    /// The guest chooses the zone
    Online,
    /// Plugged memory is brought online for any allocation
    OnlineKernel,
    /// Plugged memory is brought online for movable allocations
    #[default]
    OnlineMovable,
}

/// The command line's arguments of the machine on which guests boot.
#[derive(Clone, clap::Args)]
pub struct Machine {
    /// Memory at boot [default: 128M; 2G if Linux is among the guests]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    boot_memory: Option<Bytes>,
    /// Run each instruction in one nanosecond of the guest's time, which is slow but repeatable
    #[arg(long)]
    icount: bool,
    #[command(flatten)]
    accel_and_image: AccelAndImage,
}

/// The command line's arguments of the accelerator and the guest's image.
#[derive(Clone, clap::Args)]
pub struct AccelAndImage {
    /// The accelerator [default: TCG; for benches KVM, if a guest boots under KVM within a second]
    #[arg(long, value_enum)]
    accel: Option<Accel>,
    /// The reference guest's image [default: built from the workspace]
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
}

/// Guests that are ready to boot, all on the same machine.
pub struct Guests {
    architecture: Architecture,
    accel: Option<Accel>,
    icount: bool,
    boot_memory: Bytes,
    image: Option<PathBuf>,
    linux: Option<Linux>,
}

impl Machine {
    /// Finds the guests for machines of this architecture. `sizes` are the sizes of memory that are to
    /// be plugged into each guest.
    ///
    /// # Errors
    /// A guest is not found, or arguments contradict each other.
    pub fn guests(
        &self,
        architecture: Architecture,
        guests: &[Guest],
        sizes: &[Bytes],
    ) -> Result<Guests> {
        let with_linux = guests.contains(&Guest::Linux);
        let default = if with_linux { Bytes::gib(2) } else { Bytes::mib(128) };
        let boot_memory = self.boot_memory.unwrap_or(default);
        for (&guest, &size) in guests.iter().flat_map(|g| sizes.iter().map(move |s| (g, s))) {
            let min = guest.min_boot_memory(size)?;
            if boot_memory < min {
                let purpose = if guest.is_reference() && min > MIN_BOOT_MEMORY {
                    ", for page tables and the engine's metadata"
                } else {
                    ""
                };
                bail!("--boot-memory {boot_memory}: {guest} needs {min} to plug {size}{purpose}");
            }
            if guest == Guest::Linux && !size.0.is_multiple_of(linux::MEMORY_BLOCK.0) {
                bail!(
                    "{size}: the size for {guest} must be whole memory blocks of {}",
                    linux::MEMORY_BLOCK
                );
            }
        }
        if self.icount && self.accel_and_image.accel == Some(Accel::Kvm) {
            bail!("--icount: only TCG counts instructions");
        }
        let found = self.accel_and_image.guests(architecture, guests, boot_memory)?;
        Ok(Guests { icount: self.icount, ..found })
    }

    /// Returns the boot memory, or `default` if the command line does not name it.
    #[must_use]
    pub fn boot_memory_or(&self, default: Bytes) -> Bytes {
        self.boot_memory.unwrap_or(default)
    }

    /// Returns the path of the reference guest's image if the command line names it.
    #[must_use]
    pub fn image(&self) -> Option<&Path> {
        self.accel_and_image.guest_image.as_deref()
    }

    /// Returns whether an instruction takes a nanosecond of the guest's time. Times of the host's
    /// clock are then not useful.
    #[must_use]
    pub fn counts_instructions(&self) -> bool {
        self.icount
    }
}

impl AccelAndImage {
    /// Finds the guests, whose machines are of this architecture and have `boot_memory`.
    ///
    /// # Errors
    /// A guest is not found.
    pub fn guests(
        &self,
        architecture: Architecture,
        guests: &[Guest],
        boot_memory: Bytes,
    ) -> Result<Guests> {
        let has_reference = guests.iter().any(|guest| guest.is_reference());
        let image =
            has_reference.then(|| image::find_for(architecture, self.guest_image.as_deref()));
        let linux =
            guests.contains(&Guest::Linux).then(|| Linux::find(architecture, Drivers::Virtio));
        Ok(Guests {
            architecture,
            accel: self.accel,
            icount: false,
            boot_memory,
            image: image.transpose()?,
            linux: linux.transpose()?,
        })
    }
}

impl Guests {
    /// Returns the boot memory of the machines.
    #[must_use]
    pub fn boot_memory(&self) -> Bytes {
        self.boot_memory
    }

    /// Chooses the accelerator and returns it. This is the accelerator that the command line names,
    /// otherwise TCG for `--icount` and for an architecture other than x86-64, and otherwise KVM if
    /// KVM works.
    ///
    /// # Errors
    /// The guest's image cannot be found or built. The image is needed to find out whether KVM
    /// works.
    pub fn choose_accel(&mut self) -> Result<Accel> {
        let accel = match self.accel {
            Some(accel) => accel,
            None if self.icount || self.architecture != Architecture::X86_64 => Accel::Tcg,
            None => accel::best_accel(self.image.as_deref())?,
        };
        Ok(*self.accel.insert(accel))
    }

    /// Returns the machine of a guest that was found, into which up to `memory` can be plugged.
    ///
    /// # Errors
    /// `guest` is not one of the guests that were found, or Linux cannot keep `memory` offline.
    pub fn config(&self, guest: Guest, policy: Policy, memory: Bytes) -> Result<Config> {
        let is_offline = policy == Policy::Offline;
        let can_stay_offline = memory.0.is_power_of_two() && memory <= Bytes::gib(128);
        let reference = |image: &PathBuf| Config::of(self.architecture, image.clone(), memory);
        let config = match (guest, &self.image, &self.linux) {
            (Guest::Hotmem, Some(image), _) => reference(image),
            (Guest::HotmemWithDescriptors, Some(image), _) => {
                reference(image).with_guest_option("descriptors", 64)
            }
            (Guest::Linux, _, Some(_)) if is_offline && !can_stay_offline => bail!(
                "{memory}: {guest} can keep the memory of its virtio-mem device offline only if the \
                 size is a power of two up to 128 GiB"
            ),
            (Guest::Linux, _, Some(linux)) if is_offline => linux.config_offline(memory),
            (Guest::Linux, _, Some(linux)) => linux.config(memory),
            _ => bail!("{guest} is not among the guests of this run"),
        };
        // QEMU puts the part of boot memory that does not fit below 4 GiB at 4 GiB. Memory that can
        // be plugged starts at the next multiple of 1 GiB, so at 5 GiB + boot memory at most. Linux
        // then has two memory blocks of half the size, which start at multiples of their size.
        let max_start_of_hotplug = Bytes::gib(5) + self.boot_memory;
        let block_size = (memory.0 / 2).max(1);
        let start = Bytes(max_start_of_hotplug.0.next_multiple_of(block_size));
        Ok(Config {
            device_address: (is_offline && self.linux.is_some()).then_some(start),
            boot_memory: self.boot_memory,
            accel: self.accel.unwrap_or_default(),
            icount: self.icount,
            ..config.with_guest_option("online", policy)
        })
    }
}

impl Guest {
    /// Returns whether this is the reference guest, with or without descriptors.
    #[must_use]
    pub const fn is_reference(self) -> bool {
        matches!(self, Guest::Hotmem | Guest::HotmemWithDescriptors)
    }

    /// Returns the minimal boot memory of a guest into which `memory` is plugged.
    fn min_boot_memory(self, memory: Bytes) -> Result<Bytes> {
        match self {
            Guest::Hotmem | Guest::HotmemWithDescriptors => {
                Ok(MIN_BOOT_MEMORY.max(boot_memory_for(memory)?))
            }
            Guest::Linux => Ok(Linux::min_boot_memory(memory)),
        }
    }

    /// Waits until the guest has initialised its device.
    ///
    /// # Errors
    /// [`crate::qemu::Error`]
    pub fn wait_until_ready(self, vm: &mut Vm) -> Result<()> {
        let is_ready = |event: &Event| match (self, event) {
            (Guest::Hotmem | Guest::HotmemWithDescriptors, Event::Device { kind, .. }) => {
                kind == "virtio-mem"
            }
            (Guest::Linux, Event::Boot { .. }) => true,
            _ => false,
        };
        vm.wait("virtio-mem device", |event| is_ready(event).then_some(()))?;
        Ok(())
    }
}

/// The minimal boot memory of the reference guest on QEMU's PC.
const MIN_BOOT_MEMORY: Bytes = Bytes::mib(64);

/// The memory for the guest's image, its stacks, the engine's metadata of boot memory, and the
/// firmware. With 128 MiB of boot memory these need 2.3 MiB.
const KERNEL_AND_FIRMWARE: Bytes = Bytes::mib(3);

/// Returns the boot memory that the reference guest needs when `memory` is plugged into it, rounded
/// up to MiB. This is the sum of the engine's words, as measured on a hosted machine, the page
/// tables of the direct map, and the kernel's own memory.
fn boot_memory_for(memory: Bytes) -> Result<Bytes> {
    let gib = Bytes::gib(1).0;
    let size = memory.0.checked_next_multiple_of(gib).map(Bytes);
    let size =
        size.with_context(|| format!("{memory} have more bytes than there are addresses"))?;
    let machine = Hosted::builder().boot_memory(Bytes(gib)).hotplug_size(size).build()?;
    let mut hotplug = machine.boot()?;
    let words_at_boot = machine.frames().counts().words;
    hotplug
        .announce(machine.hotplug_range())
        .with_context(|| format!("announcing a device of {memory}"))?;
    // The engine keeps the words when the addition is abandoned.
    drop(hotplug.prepare_add(machine.hotplug_range()).with_context(|| format!("adding {memory}"))?);
    let words = (machine.frames().counts().words - words_at_boot) * FRAME_SIZE;
    let tables = tables_needed(machine.hotplug_range()) * FRAME_SIZE;
    Ok(Bytes((words + tables + KERNEL_AND_FIRMWARE.0).next_multiple_of(Bytes::mib(1).0)))
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

/// Writes the name that `value` has on the command line.
fn write_name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(value.to_possible_value().as_ref().map_or("", |value| value.get_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_and_policies_are_displayed_as_on_the_command_line() {
        assert_eq!(
            [Guest::Hotmem, Guest::HotmemWithDescriptors, Guest::Linux]
                .map(|guest| guest.to_string()),
            ["hotmem", "hotmem-64B", "linux"]
        );
        let policies = Policy::value_variants().iter().map(ToString::to_string);
        let names = ["offline", "online", "online_kernel", "online_movable"];
        assert!(policies.eq(names));
    }
}
