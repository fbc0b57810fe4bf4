//! What a guest does with memory in use that is unplugged, and how it proves that.

use crate::{
    bench::record::Metric,
    guest::Guest,
    qemu::{Config, Event},
};
use clap::ValueEnum;
use hotmem::Bytes;
use std::fmt;

/// What happens to memory in use when it is taken away.
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

/// What the guest read again before it gave the memory back.
const CHECKED: Metric = ("checked", "MiB");
/// What the guest copied elsewhere.
const MOVED: Metric = ("moved", "MiB");

/// What a guest needs at boot beside the memory that is migrated there.
const SPARE: Bytes = Bytes::mib(64);

impl Used {
    /// Returns a machine whose guest uses `touch` of what it is given.
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
                // Its heap is what has page tables.
                config.touching(touch).with("touch", 0).with("heap", touch.0)
            }
        }
    }

    /// Returns what is on the heap when the warm-up ends has left the memory that is measured, and
    /// stays where it is.
    pub(super) fn warm_up(self, wanted: Bytes) -> Bytes {
        if self == Used::Migrated { Bytes::ZERO } else { wanted }
    }

    /// Returns whether the memory is in use now.
    pub(super) fn is_in_use(self, guest: Guest, event: &Event) -> bool {
        match event {
            Event::Heap { objects, .. } => guest.is_reference() && *objects > 0,
            Event::Touched { .. } => guest == Guest::Linux || self != Used::Migrated,
            _ => false,
        }
    }

    /// Returns what the guest says of it afterwards, if anything.
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
    fn memory_in_use_is_checked_dropped_or_migrated_and_a_guest_has_to_prove_it() {
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
