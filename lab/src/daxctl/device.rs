//! A device as daxctl prints it.

use crate::qemu::Dax;
use hotmem::geometry::{FRAME_SIZE, SECTION_FRAMES};
use serde::Serialize;

/// The size of a memory block: a section, as Linux has it on small machines.
const MEMORY_BLOCK: u64 = SECTION_FRAMES as u64 * FRAME_SIZE;

/// A device, with the keys of daxctl in its order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Device<Size = u64> {
    chardev: String,
    size: Size,
    target_node: u32,
    align: Size,
    mode: String,
    #[serde(flatten)]
    memory: Option<Memory>,
    #[serde(skip)]
    number: usize,
}

/// The memory blocks of a device that is RAM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Memory {
    online_memblocks: u64,
    total_memblocks: u64,
    /// Absent if nothing is online.
    #[serde(skip_serializing_if = "Option::is_none")]
    movable: Option<bool>,
}

/// Returns the name of the device with this number. Each has a region of its own.
pub(super) fn name(number: usize) -> String {
    format!("dax{number}.0")
}

impl From<&Dax> for Device {
    fn from(dax: &Dax) -> Device {
        let memory = (dax.mode == "system-ram").then(|| Memory {
            online_memblocks: dax.online / MEMORY_BLOCK,
            total_memblocks: dax.size / MEMORY_BLOCK,
            movable: (dax.online > 0).then_some(dax.movable),
        });
        let (chardev, mode) = (name(dax.memory), dax.mode.clone());
        let Dax { size, node: target_node, align, memory: number, .. } = *dax;
        Device { chardev, size, target_node, align, mode, memory, number }
    }
}

impl<Size> Device<Size> {
    pub(super) fn name(&self) -> &str {
        &self.chardev
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }
}

impl Device {
    /// Returns the device with units of its sizes.
    pub(super) fn human(&self) -> Device<String> {
        let Device { chardev, size, target_node, align, mode, memory, number } = self.clone();
        let (size, align) = (human(size), human(align));
        Device { chardev, size, target_node, align, mode, memory, number }
    }
}

/// Returns a size in binary and decimal units, as daxctl prints it.
fn human(size: u64) -> String {
    const SMALLEST_WITH_UNIT: u64 = 5000 * 1024;
    if size < SMALLEST_WITH_UNIT {
        return size.to_string();
    }
    let scaled = |base: u64, units: [&str; 3]| {
        // A unit is used from two of it on, and the smallest always.
        let exponent = if size < 2 * base.pow(3) {
            0
        } else if size < 2 * base.pow(4) {
            1
        } else {
            2
        };
        let unit = base.pow(2 + exponent);
        format!("{:.2} {}", size as f64 / unit as f64, units[exponent as usize])
    };
    format!("{} ({})", scaled(1024, ["MiB", "GiB", "TiB"]), scaled(1000, ["MB", "GB", "TB"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dax(mode: &str, online: u64) -> Dax {
        let (mode, movable) = (mode.into(), true);
        Dax { memory: 1, size: 1 << 30, node: 2, align: 2 << 20, mode, online, movable }
    }

    #[test]
    fn keys_are_those_of_daxctl() {
        let device = |mode, online| serde_json::to_value(Device::from(&dax(mode, online))).unwrap();
        let (chardev, size, align) = ("dax1.0", 1 << 30, 2 << 20);
        assert_eq!(
            device("devdax", 0),
            json!({ "chardev": chardev, "size": size, "target_node": 2, "align": align, "mode": "devdax" })
        );
        assert_eq!(
            device("system-ram", 512 << 20),
            json!({
                "chardev": chardev, "size": size, "target_node": 2, "align": align,
                "mode": "system-ram", "online_memblocks": 4, "total_memblocks": 8, "movable": true
            })
        );
        assert_eq!(device("system-ram", 0).get("movable"), None);
    }

    #[test]
    fn sizes_have_two_units() {
        assert_eq!(human(2 << 20), "2097152");
        assert_eq!(human(256 << 20), "256.00 MiB (268.44 MB)");
        assert_eq!(human(8_453_619_712), "7.87 GiB (8.45 GB)");
        assert_eq!(human(4 << 40), "4.00 TiB (4.40 TB)");
        let device = Device::from(&dax("devdax", 0)).human();
        assert_eq!(device.size, "1024.00 MiB (1073.74 MB)");
    }
}
