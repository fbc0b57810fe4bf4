//! Reads how the interrupt lines of PCI functions reach the interrupt controller (Devicetree
//! Specification 0.4, 2.4.3, `interrupt-map`).

use super::error::TreeError;
use super::node::{CellReader, Node};
use super::riscv::Plic;
use crate::fixed_list::FixedList;

/// The maximal number of entries of a map: four lines for each of 32 devices.
const MAX_LINES: usize = 128;
/// The maximal number of interrupt controllers that are known, without those of riscv64's harts.
const MAX_CONTROLLERS: usize = 16;
/// The most cells of an interrupt: those of a GIC, with the cell that some GICs have for private interrupts.
const MAX_INTERRUPT_CELLS: usize = 4;
/// The interrupts of a GIC that devices share begin with this number (Arm IHI 0069, 2.2).
const FIRST_SHARED: u32 = 32;

/// The lines of the functions on the first bus.
#[derive(Clone, Copy, Debug)]
pub struct PciLines {
    /// The bits of a function's address and of its pin that choose an entry.
    mask: (u32, u32),
    /// The address and the pin of an entry, and the number of its interrupt.
    entries: FixedList<(u32, u32, u32), MAX_LINES>,
}

/// The numbers of cells by which an interrupt controller is addressed.
#[derive(Clone, Copy)]
struct ControllerCells {
    phandle: u32,
    address: u32,
    interrupt: u32,
}

/// The interrupt controllers of a tree.
pub(super) struct Controllers {
    all: FixedList<ControllerCells, MAX_CONTROLLERS>,
    /// The first GICv3 or PLIC, which the kernel drives, by its phandle if it has one.
    driven: Option<Option<u32>>,
}

impl Controllers {
    pub(super) const NONE: Self = Controllers {
        all: FixedList::empty(ControllerCells { phandle: 0, address: 0, interrupt: 0 }),
        driven: None,
    };

    /// Adds the node if it is an interrupt controller.
    pub(super) fn add<'t>(&mut self, node: &Node<'t>) -> Result<(), TreeError<'t>> {
        let phandle = node.number("phandle")?;
        if self.driven.is_none() && (node.is_device("arm,gic-v3")? || Plic::is_at(node)?) {
            self.driven = Some(phandle);
        }
        let is_of_hart = node.has_string("compatible", "riscv,cpu-intc")?;
        if is_of_hart || node.property("interrupt-controller")?.is_none() {
            return Ok(());
        }
        if let (Some(phandle), Some(interrupt)) = (phandle, node.number("#interrupt-cells")?) {
            // A controller without `#address-cells` has no address here.
            let address = node.number("#address-cells")?.unwrap_or(0);
            let _ = self.all.push(ControllerCells { phandle, address, interrupt });
        }
        Ok(())
    }
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
            let Some(parent) = controllers.all.iter().find(|parent| parent.phandle == phandle)
            else {
                return Ok(());
            };
            (0..parent.address).try_for_each(|_| cell().map(|_| ()))?;
            let mut interrupt = [0; MAX_INTERRUPT_CELLS];
            let Some(interrupt) = interrupt.get_mut(..parent.interrupt as usize) else {
                return Ok(());
            };
            interrupt.iter_mut().try_for_each(|value| cell().map(|cell| *value = cell))?;
            let number = match *interrupt {
                // A PLIC has the number. A GIC has the kind, the number and the type; kind 0 is shared.
                [number] => Some(number),
                [0, number, _] | [0, number, _, _] => number.checked_add(FIRST_SHARED),
                _ => None,
            };
            let is_driven = controllers.driven == Some(Some(phandle));
            let Some(number) = number.filter(|_| is_driven) else { continue };
            let entry = (address & address_mask, pin & pin_mask, number);
            let pushed = self.entries.push(entry);
            pushed.map_err(|full| TreeError::too_many("interrupt lines of PCI", full))?;
        }
        Ok(())
    }
}
