//! Reads from a flattened device tree what the kernel must know of the machine.
//!
//! | file | contents |
//! |---|---|
//! | `device_tree.rs` | the description of the machine |
//! | `device_tree/early.rs` | the devices by which the kernel reports errors of the tree |
//! | `device_tree/pci.rs` | the host bridge of PCI |
//! | `device_tree/pci_lines.rs` | the interrupt lines of PCI |
//! | `device_tree/controllers.rs` | the interrupt controllers, and the interrupts of devices |
//! | `device_tree/gic.rs` | the interrupt controller of aarch64 |
//! | `device_tree/riscv.rs` | what only trees of riscv64 have: harts, their timer and the PLIC |
//! | `device_tree/no_map.rs` | memory that must not be mapped |
//! | `device_tree/node.rs` | nodes and their properties |
//! | `device_tree/error.rs` | the errors |
//!
//! A tree is malformed if a node that the kernel reads is malformed. Devices behind a bus that
//! translates addresses are not found.

mod controllers;
mod early;
mod error;
mod gic;
mod no_map;
mod node;
mod pci;
mod pci_lines;
mod riscv;
#[cfg(test)]
mod tests;

pub use early::{EarlyDevices, Ns16550, PowerCalls};
pub use error::TreeError;
pub use gic::Gic;
pub use node::{MAX_RANGES, Range, Ranges};
pub use pci::PciHost;
pub use pci_lines::PciLines;
pub use riscv::{Plic, Riscv};

use crate::fixed_list::FixedList;
use crate::virtio_mmio::{MmioDevice, MmioDevices};
use controllers::Controllers;
use deforest::blob::Devicetree;
use deforest::fallible_iterator::FallibleIterator;
use node::{Node, walk};

/// The magic number at the start of a tree, which is big-endian.
pub const MAGIC: u32 = 0xd00d_feed;
/// The offset of the tree's size, which is big-endian and counts bytes.
pub const SIZE_OFFSET: u64 = 4;

/// The maximal number of CPUs. The others are counted, and not used.
pub const MAX_CPUS: usize = 64;

/// The description of a machine.
#[derive(Clone, Debug)]
pub struct DeviceTree<'t> {
    /// The kernel's command line, without the zero at its end.
    pub command_line: &'t [u8],
    /// The RAM, without [`not_mapped`](Self::not_mapped).
    pub ram: Ranges,
    /// The parts of RAM that the kernel must not use. The tree is one of them.
    pub in_use: Ranges,
    /// The pages of 2 MiB with memory that the kernel must not map: another program owns it, such as
    /// firmware in a more privileged mode.
    pub not_mapped: Ranges,
    /// The number of CPUs that can be started.
    pub cpu_count: u32,
    /// The numbers by which these CPUs are started, the first [`MAX_CPUS`] of them.
    pub cpu_ids: FixedList<u64, MAX_CPUS>,
    /// PCI's first host bridge that has memory-mapped configuration space.
    pub pci: Option<PciHost>,
    /// The interrupt lines of that bridge.
    pub pci_lines: PciLines,
    /// The places for virtio devices in memory. Most of them are empty.
    pub mmio_devices: MmioDevices,
    /// The registers of QEMU's fw_cfg device, by which it passes tables to a firmware.
    pub fw_cfg: Option<Range>,
    /// The interrupt controller, if it is a GICv3.
    pub gic: Option<Gic>,
    /// What only trees of riscv64 have.
    pub riscv: Riscv,
}

impl<'t> DeviceTree<'t> {
    /// The description of a machine of which nothing is known.
    pub const EMPTY: Self = DeviceTree {
        command_line: &[],
        ram: FixedList::empty(Range::EMPTY),
        in_use: FixedList::empty(Range::EMPTY),
        not_mapped: FixedList::empty(Range::EMPTY),
        cpu_count: 0,
        cpu_ids: FixedList::empty(0),
        pci: None,
        pci_lines: PciLines::NONE,
        mmio_devices: MmioDevices::empty(MmioDevice::NONE),
        fw_cfg: None,
        gic: None,
        riscv: Riscv::NONE,
    };

    /// Reads the description from the tree at `phys_addr`.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn read(blob: &'t [u64], phys_addr: u64) -> Result<Self, TreeError<'t>> {
        let mut tree = DeviceTree::EMPTY;
        tree.fill(blob, phys_addr).map(|()| tree)
    }

    /// Reads the description from the tree at `phys_addr` into an empty one, which is too large for a small
    /// stack.
    ///
    /// # Errors
    /// [`TreeError`]. The description has a part of the tree then.
    pub fn fill(&mut self, blob: &'t [u64], phys_addr: u64) -> Result<(), TreeError<'t>> {
        self.add_in_use(Range { start: phys_addr, len: size_of_val(blob) as u64 })?;
        let mut reserved = Devicetree::from_slice(blob)?.mem_reserve_entries()?;
        while let Some(entry) = reserved.next()? {
            let range = Range::new(entry.address, entry.size);
            let malformed = TreeError::Malformed { node: "", property: "memory reservation block" };
            self.add_in_use(range.ok_or(malformed)?)?;
        }
        let mut controllers = Controllers::NONE;
        walk(blob, &mut |node| controllers.add(node))?;
        walk(blob, &mut |node| self.read_node(node, &controllers))?;
        self.ram = no_map::cut(&self.ram, &self.not_mapped)?;
        if self.ram.iter().all(|range| range.len == 0) { Err(TreeError::NoRam) } else { Ok(()) }
    }

    fn read_node(
        &mut self,
        node: &Node<'t>,
        controllers: &Controllers,
    ) -> Result<(), TreeError<'t>> {
        match (node.parent, node.name()?) {
            ("", "chosen") => {
                let words = node.property("bootargs")?.unwrap_or_default();
                self.command_line = words.strip_suffix(&[0]).unwrap_or(words);
            }
            ("", "memory") if node.is_enabled()? => node.each_range(|range| {
                self.ram.push(range).map_err(|full| TreeError::too_many("ranges of RAM", full))
            })?,
            ("reserved-memory", _) if node.is_enabled()? => {
                let is_mapped = node.property("no-map")?.is_none();
                node.each_range(|range| match is_mapped {
                    true => self.add_in_use(range),
                    false => {
                        let added = self.not_mapped.push(no_map::pages_touched_by(range));
                        added.map_err(|full| TreeError::too_many("ranges without a mapping", full))
                    }
                })?;
            }
            ("", "cpus") => self.riscv.read_cpus(node)?,
            ("cpus", "cpu") => {
                let is_usable = node.is_enabled()? && riscv::can_run_kernel(node)?;
                let id =
                    is_usable.then(|| node.first_range()).transpose()?.map(|range| range.start);
                self.riscv.begin_hart(id);
                if let Some(id) = id {
                    self.cpu_count = self.cpu_count.saturating_add(1);
                    // A CPU without room in the list is not started.
                    let _ = self.cpu_ids.push(id);
                }
            }
            _ if self.pci.is_none() && node.is_device("pci-host-ecam-generic")? => {
                self.pci = Some(PciHost::read(node)?);
                self.pci_lines.read(node, controllers)?;
            }
            _ if node.is_device("virtio,mmio")? => {
                let Range { start: phys_addr, len: size } = node.first_range()?;
                let device = MmioDevice { phys_addr, size, irq: controllers.line_of(node)? };
                let added = self.mmio_devices.push(device);
                added.map_err(|full| TreeError::too_many("virtio devices in memory", full))?;
            }
            _ if node.is_device("qemu,fw-cfg-mmio")? => self.fw_cfg = Some(node.first_range()?),
            _ if self.gic.is_none() && node.is_device("arm,gic-v3")? => {
                self.gic = Some(Gic::read(node)?);
            }
            _ if riscv::Riscv::is_wanted(node)? => self.riscv.read_node(node)?,
            _ if node.is_device("arm,gic-v3-its")? => {
                let range = node.first_range()?;
                // The node is below that of its GIC.
                if let Some(gic) = &mut self.gic {
                    gic.its = gic.its.or(Some(range));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add_in_use(&mut self, range: Range) -> Result<(), TreeError<'t>> {
        let added = self.in_use.push(range);
        added.map_err(|full| TreeError::too_many("ranges of RAM in use", full))
    }
}
