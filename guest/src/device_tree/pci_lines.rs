//! Reads how the interrupt lines of PCI functions reach the interrupt controller (Devicetree
//! Specification 0.4, 2.4.3, `interrupt-map`).

use super::controllers::{BadInterrupt, Controllers};
use super::error::TreeError;
use super::node::{CellReader, Node};
use crate::fixed_list::FixedList;

/// The maximal number of entries of a map: four lines for each of 32 devices.
const MAX_LINES: usize = 128;

/// The lines of the functions on the first bus.
#[derive(Clone, Copy, Debug)]
pub struct PciLines {
    /// The bits of a function's address and of its pin that choose an entry.
    mask: (u32, u32),
    /// The address and the pin of an entry, and the number of its interrupt.
    entries: FixedList<(u32, u32, u32), MAX_LINES>,
}

impl PciLines {
    pub(super) const NONE: Self = PciLines { mask: (0, 0), entries: FixedList::empty((0, 0, 0)) };

    /// Returns the interrupt's number of a pin, 1 to 4, of a device on the first bus.
    #[must_use]
    pub fn number(&self, device: u8, pin: u8) -> Option<u32> {
        let (address, pin) = (u32::from(device) << 11 & self.mask.0, u32::from(pin) & self.mask.1);
        let mut entries = self.entries.iter();
        entries.find(|entry| (entry.0, entry.1) == (address, pin)).map(|&(_, _, number)| number)
    }

    /// Reads the map of a host bridge. Lines that lead to a controller that the kernel does not drive, or
    /// to an interrupt that devices do not share, are left out. The map ends at an unknown controller,
    /// because the size of its entry is unknown.
    pub(super) fn read<'t>(
        &mut self,
        node: &Node<'t>,
        controllers: &Controllers,
    ) -> Result<(), TreeError<'t>> {
        const MAP: &str = "interrupt-map";
        const MASK: &str = "interrupt-map-mask";
        let Some(map) = node.property(MAP)? else { return Ok(()) };
        let mut mask = CellReader::new(node.property(MASK)?.unwrap_or_default());
        let mut cell = || mask.cell();
        let mask = (cell(), cell(), cell(), cell());
        let (Some(address_mask), Some(_), Some(_), Some(pin_mask)) = mask else {
            return Err(node.malformed(MASK));
        };
        self.mask = (address_mask, pin_mask);
        let mut cells = CellReader::new(map);
        while !cells.is_empty() {
            let mut cell = || cells.cell().ok_or(node.malformed(MAP));
            let (address, _, _, pin, phandle) = (cell()?, cell()?, cell()?, cell()?, cell()?);
            let Some(parent) = controllers.find(phandle) else { return Ok(()) };
            (0..parent.address).try_for_each(|_| cell().map(|_| ()))?;
            let number = match parent.read_interrupt(&mut cells) {
                Ok(number) => number.filter(|_| controllers.is_driven(phandle)),
                Err(BadInterrupt::TooManyCells) => return Ok(()),
                Err(BadInterrupt::End) => return Err(node.malformed(MAP)),
            };
            let Some(number) = number else { continue };
            let entry = (address & address_mask, pin & pin_mask, number);
            let pushed = self.entries.push(entry);
            pushed.map_err(|full| TreeError::too_many("interrupt lines of PCI", full))?;
        }
        Ok(())
    }
}
