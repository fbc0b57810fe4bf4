//! The treatment of memory in use that is unplugged, and the guest's evidence for it.

use crate::{
    bench::record::Metric,
    guest::Guest,
    qemu::{Config, Event},
};
use clap::ValueEnum;
use hotmem::Bytes;
use std::fmt;

/// The treatment of memory in use that is unplugged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Used {
    /// The user reads all of it, and frees it
    Checked,
    /// The user frees it without reading it
    Dropped,
    /// The memory is copied to boot memory, the user's page tables are updated, and the old memory
    /// is freed. The guest has as much more boot memory
    Migrated,
}

/// The memory that the guest read again before it freed it.
const CHECKED: Metric = ("checked", "MiB");
/// The memory that the guest copied elsewhere.
const MOVED: Metric = ("moved", "MiB");

/// The boot memory that a guest needs in addition to the memory that is migrated there.
const SPARE: Bytes = Bytes::mib(64);

impl Used {
    /// Returns a machine whose guest uses `touch` bytes of plugged memory.
    pub(super) fn config(self, guest: Guest, config: Config, touch: Bytes) -> Config {
        match self {
            Used::Checked => config.touching(touch),
            Used::Dropped => config.touching(touch).with("release", "unchecked"),
            Used::Migrated => {
                let boot_memory = config.boot_memory + touch + SPARE;
                let config = Config { boot_memory, ..config.with("release", "off") };
                if guest == Guest::Linux {
                    return config.touching(touch);
                }
                // Only the guest's heap is mapped by page tables.
                config.touching(touch).with("touch", 0).with("heap", touch.0)
            }
        }
    }

    /// Returns the warm-up: none if memory is migrated, because heap objects that a warm-up has
    /// migrated stay in boot memory.
    pub(super) fn warm_up(self, wanted: Bytes) -> Bytes {
        if self == Used::Migrated { Bytes::ZERO } else { wanted }
    }

    /// Returns whether this event says that the memory is in use.
    pub(super) fn is_in_use(self, guest: Guest, event: &Event) -> bool {
        match event {
            Event::Heap { objects, .. } => guest.is_reference() && *objects > 0,
            Event::Touched { .. } => guest == Guest::Linux || self != Used::Migrated,
            _ => false,
        }
    }

    /// Returns the metric that the guest reports afterwards as evidence, if there is one.
    pub(super) fn proof(self, guest: Guest) -> Option<Metric> {
        match self {
            Used::Checked if guest.is_reference() => Some(CHECKED),
            Used::Checked | Used::Dropped => None,
            Used::Migrated => Some(MOVED),
        }
    }

    pub(super) fn bytes(self, event: &Event) -> Option<u64> {
        match *event {
            Event::Verified { bytes } if self == Used::Checked => Some(bytes),
            Event::Heap { moved, .. } if self == Used::Migrated => Some(moved),
            _ => None,
        }
    }
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_treatment_of_memory_in_use_has_its_options_and_evidence() {
        let config = |used: Used, guest| {
            let config = Config::new("guest".into(), Bytes::gib(4));
            used.config(guest, config, Bytes::gib(1))
        };
        let line = |used, guest| config(used, guest).append.join(" ");
        let touch = "hotmem.touch=1073741824";
        assert_eq!(line(Used::Checked, Guest::Hotmem), touch);
        assert_eq!(line(Used::Dropped, Guest::Linux), format!("{touch} hotmem.release=unchecked"));
        assert_eq!(line(Used::Migrated, Guest::Linux), format!("hotmem.release=off {touch}"));
        assert!(line(Used::Migrated, Guest::Hotmem64).ends_with("hotmem.heap=1073741824"));
        // Migrated memory needs room at boot.
        let migrating = config(Used::Migrated, Guest::Hotmem);
        assert!(migrating.boot_memory >= Bytes::mib(128 + 1024));

        let moved = Event::Heap { objects: 1, mapped: 7, moved: 5 };
        let verified = Event::Verified { bytes: 3 };
        assert_eq!(
            (Used::Migrated.bytes(&moved), Used::Migrated.bytes(&verified)),
            (Some(5), None)
        );
        assert_eq!((Used::Checked.bytes(&moved), Used::Checked.bytes(&verified)), (None, Some(3)));
        assert_eq!(Used::Migrated.proof(Guest::Linux), Some(MOVED));
        assert_eq!(Used::Checked.proof(Guest::Hotmem), Some(CHECKED));
        assert_eq!(Used::Dropped.proof(Guest::Hotmem), None);
    }
}
