//! Reads PCI host bridges, and the RTAS tokens for their configuration space, from the device tree.

use crate::rtas::TokenError;
use crate::rtas::{child, token_of};
use deforest::{blob::Devicetree, fallible_iterator::FallibleIterator};

/// A host bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// The bridge's number, as two words.
    pub unit: [u32; 2],
    /// The start of the bridge's window for 64-bit memory BARs. It is the same address for the
    /// processor and for the bus.
    pub window: u64,
    /// The size of the window.
    pub size: u64,
}

/// Tokens of the calls for configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfigTokens {
    /// `ibm,read-pci-config`.
    pub read: u32,
    /// `ibm,write-pci-config`.
    pub write: u32,
}

/// The number of words of an entry of `ranges`: three for the bus address, two for the processor's
/// address, two for the size.
const ENTRY_WORDS: usize = 7;
/// The bits of an entry's first word that give the kind of address.
const KIND_MASK: u32 = 0x0300_0000;
/// The kind of 64-bit memory addresses.
const MEMORY_64: u32 = 0x0300_0000;

impl ConfigTokens {
    /// Reads the tokens from a flattened device tree.
    ///
    /// # Errors
    /// [`TokenError`] if a token is missing, or if `blob` is not a device tree.
    pub fn of(blob: &[u64]) -> Result<ConfigTokens, TokenError> {
        let root = Devicetree::from_slice(blob)?.root_node()?;
        let rtas = child(&root, "rtas")?.ok_or(TokenError::NoRtas)?;
        Ok(ConfigTokens {
            read: token_of(&rtas, "ibm,read-pci-config")?,
            write: token_of(&rtas, "ibm,write-pci-config")?,
        })
    }
}

impl Bridge {
    /// Returns the first host bridge in a flattened device tree that has a suitable window: it is
    /// for 64-bit memory BARs, and its addresses are equal for the processor and the bus.
    ///
    /// # Errors
    /// [`TokenError::Fdt`] if `blob` is not a device tree.
    pub fn first(blob: &[u64]) -> Result<Option<Bridge>, TokenError> {
        let root = Devicetree::from_slice(blob)?.root_node()?;
        let mut children = root.children();
        while let Some(node) = children.next()? {
            if node.split_name()?.0 != "pci" {
                continue;
            }
            let unit: Option<&[u8]> = node.get_property("reg")?.map(|property| property.value());
            let ranges: Option<&[u8]> =
                node.get_property("ranges")?.map(|property| property.value());
            if let Some(bridge) = Bridge::of(unit.unwrap_or(&[]), ranges.unwrap_or(&[])) {
                return Ok(Some(bridge));
            }
        }
        Ok(None)
    }

    fn of(unit: &[u8], ranges: &[u8]) -> Option<Bridge> {
        let unit = [cell(unit, 0)?, cell(unit, 1)?];
        let (entries, _) = ranges.as_chunks::<{ 4 * ENTRY_WORDS }>();
        entries.iter().find_map(|entry| {
            let pair =
                |nth| Some(u64::from(cell(entry, nth)?) << 32 | u64::from(cell(entry, nth + 1)?));
            let (bus, window, size) = (pair(1)?, pair(3)?, pair(5)?);
            let is_suitable = cell(entry, 0)? & KIND_MASK == MEMORY_64 && bus == window && size > 0;
            is_suitable.then_some(Bridge { unit, window, size })
        })
    }
}

fn cell(bytes: &[u8], nth: usize) -> Option<u32> {
    let (cells, _) = bytes.as_chunks();
    cells.get(nth).map(|&cell| u32::from_be_bytes(cell))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(cells: &[u32]) -> Vec<u8> {
        cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
    }

    /// The windows of QEMU: ports, 32-bit memory, 64-bit memory.
    #[test]
    fn the_window_for_64_bits_is_found() {
        let unit = bytes(&[0x0800_0000, 0x2000_0000, 0, 0]);
        let ports = [0x0100_0000, 0, 0, 0x2000, 0, 0, 0x1_0000];
        let narrow = [0x0200_0000, 0, 0x8000_0000, 0x2000, 0x8000_0000, 0, 0x8000_0000];
        let wide = [0x0300_0000, 0x2100, 0, 0x2100, 0, 0x100, 0];
        let bridge = Bridge {
            unit: [0x0800_0000, 0x2000_0000],
            window: 0x2100_0000_0000,
            size: 0x100_0000_0000,
        };
        let all = bytes(&[ports, narrow, wide].concat());
        assert_eq!(Bridge::of(&unit, &all), Some(bridge));
        assert_eq!(Bridge::of(&unit, &bytes(&[ports, narrow].concat())), None);
        assert_eq!(Bridge::of(&unit, &all[..80]), None);
        assert_eq!(Bridge::of(&unit[..4], &all), None);
        // The bus addresses differ from the processor's.
        let elsewhere = [0x0300_0000, 0x2200, 0, 0x2100, 0, 0x100, 0];
        assert_eq!(Bridge::of(&unit, &bytes(&elsewhere)), None);
    }
}
