//! Reads the interrupt controllers, and which interrupt a device has (Devicetree Specification 0.4, 2.4).

use super::error::TreeError;
use super::node::{CellReader, Node};
use super::riscv::Plic;
use crate::fixed_list::FixedList;

/// The maximal number of interrupt controllers that are known, without those of riscv64's harts.
const MAX_CONTROLLERS: usize = 16;
/// The most cells of an interrupt: those of a GIC, with the cell that some GICs have for private interrupts.
const MAX_INTERRUPT_CELLS: usize = 4;
/// The interrupts of a GIC that devices share begin with this number (Arm IHI 0069, 2.2).
const FIRST_SHARED: u32 = 32;

/// The numbers of cells by which an interrupt controller is addressed.
#[derive(Clone, Copy)]
pub(super) struct ControllerCells {
    phandle: u32,
    pub(super) address: u32,
    interrupt: u32,
}

/// The interrupt controllers of a tree.
pub(super) struct Controllers {
    all: FixedList<ControllerCells, MAX_CONTROLLERS>,
    /// The first GICv3 or PLIC, which the kernel drives, by its phandle if it has one.
    driven: Option<Option<u32>>,
}

/// The reason why an interrupt cannot be read.
pub(super) enum BadInterrupt {
    /// There are too few cells.
    End,
    /// The controller has more cells for an interrupt than any that is known.
    TooManyCells,
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

    /// Returns the controller with this phandle.
    pub(super) fn find(&self, phandle: u32) -> Option<&ControllerCells> {
        self.all.iter().find(|controller| controller.phandle == phandle)
    }

    /// Returns whether the kernel drives the controller with this phandle.
    pub(super) fn is_driven(&self, phandle: u32) -> bool {
        self.driven == Some(Some(phandle))
    }

    /// Returns the number of the first interrupt of a device, or `None` if the device has none by the
    /// controller that the kernel drives.
    pub(super) fn line_of<'t>(&self, node: &Node<'t>) -> Result<Option<u32>, TreeError<'t>> {
        const INTERRUPTS: &str = "interrupts";
        let driven = node.interrupt_parent.filter(|&phandle| self.is_driven(phandle));
        let (Some(value), Some(controller)) =
            (node.property(INTERRUPTS)?, driven.and_then(|phandle| self.find(phandle)))
        else {
            return Ok(None);
        };
        match controller.read_interrupt(&mut CellReader::new(value)) {
            Ok(number) => Ok(number),
            Err(BadInterrupt::TooManyCells) => Ok(None),
            Err(BadInterrupt::End) => Err(node.malformed(INTERRUPTS)),
        }
    }
}

impl ControllerCells {
    /// Reads an interrupt. Returns its number, or `None` if devices do not share the interrupt.
    pub(super) fn read_interrupt(
        &self,
        cells: &mut CellReader<'_>,
    ) -> Result<Option<u32>, BadInterrupt> {
        let mut interrupt = [0; MAX_INTERRUPT_CELLS];
        let interrupt =
            interrupt.get_mut(..self.interrupt as usize).ok_or(BadInterrupt::TooManyCells)?;
        for value in interrupt.iter_mut() {
            *value = cells.cell().ok_or(BadInterrupt::End)?;
        }
        Ok(match *interrupt {
            // A PLIC has the number. A GIC has the kind, the number and the type; kind 0 is shared.
            [number] => Some(number),
            [0, number, _] | [0, number, _, _] => number.checked_add(FIRST_SHARED),
            _ => None,
        })
    }
}
