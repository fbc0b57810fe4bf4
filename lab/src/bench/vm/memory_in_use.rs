//! Defines what a guest does with memory in use when the memory is unplugged, and which event of
//! the guest is evidence of it.

use crate::{
    bench::record::Metric,
    guest::Guest,
    qemu::{Config, Event},
};
use clap::ValueEnum;
use hotmem::Bytes;
use std::fmt;

/// What the guest does with memory in use when the memory is unplugged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum MemoryInUse {
    /// The user of the memory reads all of it, and frees it
    Checked,
    /// The user of the memory frees it without reading it
    Dropped,
    /// The guest copies the memory to boot memory, updates the page tables, and frees the old
    /// memory. The guest has as much more boot memory
    Migrated,
}

/// The amount of memory that the guest read again before freeing it.
const CHECKED: Metric = ("checked", "MiB");
/// The amount of memory that the guest copied to boot memory.
const MOVED: Metric = ("moved", "MiB");

/// The boot memory that a guest needs in addition to the memory that is migrated there.
const SPARE_BOOT_MEMORY: Bytes = Bytes::mib(64);

impl MemoryInUse {
    /// Changes `config` so that the guest uses `touch` bytes of plugged memory.
    pub(super) fn config(self, guest: Guest, config: Config, touch: Bytes) -> Config {
        match self {
            MemoryInUse::Checked => config.with_touched_memory(touch),
            MemoryInUse::Dropped => {
                config.with_touched_memory(touch).with_guest_option("release", "unchecked")
            }
            MemoryInUse::Migrated => {
                let boot_memory = config.boot_memory + touch + SPARE_BOOT_MEMORY;
                let config = Config { boot_memory, ..config.with_guest_option("release", "off") };
                if guest == Guest::Linux {
                    return config.with_touched_memory(touch);
                }
                // Only the guest's heap is mapped by page tables.
                config
                    .with_touched_memory(touch)
                    .with_guest_option("touch", 0)
                    .with_guest_option("heap", touch.0)
            }
        }
    }

    /// Returns the warm-up. If memory is migrated, there is no warm-up, because heap objects that a
    /// warm-up has migrated would stay in boot memory.
    pub(super) fn warm_up(self, full_warm_up: Bytes) -> Bytes {
        if self == MemoryInUse::Migrated { Bytes::ZERO } else { full_warm_up }
    }

    /// Returns whether `event` says that the guest uses the memory.
    pub(super) fn is_in_use(self, guest: Guest, event: &Event) -> bool {
        match event {
            Event::Heap { objects, .. } => guest.is_reference() && *objects > 0,
            Event::Touched { .. } => guest == Guest::Linux || self != MemoryInUse::Migrated,
            _ => false,
        }
    }

    /// Returns the metric of the bytes that the guest reports after the unplug as evidence, if the
    /// guest reports any.
    pub(super) fn evidence_metric(self, guest: Guest) -> Option<Metric> {
        match self {
            MemoryInUse::Checked if guest.is_reference() => Some(CHECKED),
            MemoryInUse::Checked | MemoryInUse::Dropped => None,
            MemoryInUse::Migrated => Some(MOVED),
        }
    }

    /// Returns the bytes of the evidence, if `event` is the evidence.
    pub(super) fn evidence_bytes(self, event: &Event) -> Option<u64> {
        match *event {
            Event::Verified { bytes } if self == MemoryInUse::Checked => Some(bytes),
            Event::Heap { moved, .. } if self == MemoryInUse::Migrated => Some(moved),
            _ => None,
        }
    }
}

impl fmt::Display for MemoryInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_treatment_of_memory_in_use_has_its_options_and_evidence() {
        let config = |used: MemoryInUse, guest| {
            let config = Config::new("guest".into(), Bytes::gib(4));
            used.config(guest, config, Bytes::gib(1))
        };
        let line = |used, guest| config(used, guest).append.join(" ");
        let touch = "hotmem.touch=1073741824";
        assert_eq!(line(MemoryInUse::Checked, Guest::Hotmem), touch);
        assert_eq!(
            line(MemoryInUse::Dropped, Guest::Linux),
            format!("{touch} hotmem.release=unchecked")
        );
        assert_eq!(
            line(MemoryInUse::Migrated, Guest::Linux),
            format!("hotmem.release=off {touch}")
        );
        assert!(
            line(MemoryInUse::Migrated, Guest::HotmemWithDescriptors)
                .ends_with("hotmem.heap=1073741824")
        );
        // The boot memory has space for the migrated memory.
        let migrating = config(MemoryInUse::Migrated, Guest::Hotmem);
        assert!(migrating.boot_memory >= Bytes::mib(128 + 1024));

        let moved = Event::Heap { objects: 1, mapped: 7, moved: 5 };
        let verified = Event::Verified { bytes: 3 };
        assert_eq!(
            (
                MemoryInUse::Migrated.evidence_bytes(&moved),
                MemoryInUse::Migrated.evidence_bytes(&verified)
            ),
            (Some(5), None)
        );
        assert_eq!(
            (
                MemoryInUse::Checked.evidence_bytes(&moved),
                MemoryInUse::Checked.evidence_bytes(&verified)
            ),
            (None, Some(3))
        );
        assert_eq!(MemoryInUse::Migrated.evidence_metric(Guest::Linux), Some(MOVED));
        assert_eq!(MemoryInUse::Checked.evidence_metric(Guest::Hotmem), Some(CHECKED));
        assert_eq!(MemoryInUse::Dropped.evidence_metric(Guest::Hotmem), None);
    }
}
