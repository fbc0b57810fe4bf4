//! Walks the nodes of a device tree, and reads their properties.

use super::error::TreeError;
use crate::fixed_list::FixedList;
use deforest::blob::{Devicetree, Node as RawNode};
use deforest::fallible_iterator::FallibleIterator;

/// The maximal depth of a node. Real trees have a depth of 4.
const MAX_DEPTH: u32 = 8;
/// The maximal number of ranges of RAM, and of ranges in use.
pub const MAX_RANGES: usize = 32;
/// The property that names the controller of the interrupts of a node and of those below.
const INTERRUPT_PARENT: &str = "interrupt-parent";
/// The most cells of an address or a size: PCI's addresses have three.
const MAX_CELLS: u32 = 3;

/// The numbers of cells of 32 bits in which a bus writes an address and a size.
#[derive(Clone, Copy)]
pub(super) struct Cells {
    pub(super) address: u32,
    pub(super) size: u32,
}

/// The cells of a bus that does not say otherwise (Devicetree Specification 0.4, 2.3.5).
const DEFAULT_CELLS: Cells = Cells { address: 2, size: 1 };

/// A node, with what its ancestors say of it.
pub(super) struct Node<'t> {
    raw: RawNode<'t>,
    /// The name of the parent, which is empty for children of the root.
    pub(super) parent: &'t str,
    /// The phandle of the controller of the node's interrupts, which an ancestor may name.
    pub(super) interrupt_parent: Option<u32>,
    /// The cells of the bus that the node is on.
    pub(super) cells: Cells,
    /// Whether addresses on that bus are those of the CPU.
    is_identity: bool,
}

/// A range of addresses, whose end is an address too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub len: u64,
}

/// Ranges of memory.
pub type Ranges = FixedList<Range, MAX_RANGES>;

impl Range {
    pub(super) const EMPTY: Self = Range { start: 0, len: 0 };

    /// Makes a range. Returns `None` if its end is no address.
    pub(super) fn new(start: u64, len: u64) -> Option<Self> {
        start.checked_add(len).map(|_| Range { start, len })
    }
}

type Visit<'v, 't> = &'v mut dyn FnMut(&Node<'t>) -> Result<(), TreeError<'t>>;

/// Calls `visit` for each node except the root, parents first.
pub(super) fn walk<'t>(blob: &'t [u64], visit: Visit<'_, 't>) -> Result<(), TreeError<'t>> {
    let raw = Devicetree::from_slice(blob)?.root_node()?;
    let mut root =
        Node { raw, parent: "", interrupt_parent: None, cells: DEFAULT_CELLS, is_identity: true };
    root.interrupt_parent = root.number(INTERRUPT_PARENT)?;
    walk_children(&root, true, 1, visit)
}

fn walk_children<'t>(
    node: &Node<'t>,
    is_identity: bool,
    depth: u32,
    visit: Visit<'_, 't>,
) -> Result<(), TreeError<'t>> {
    if depth > MAX_DEPTH {
        return Err(TreeError::TooDeep);
    }
    let (parent, cells) = (node.name()?, node.child_cells()?);
    let mut children = node.raw.children();
    while let Some(raw) = children.next()? {
        let interrupt_parent = node.interrupt_parent;
        let mut child = Node { raw, parent, interrupt_parent, cells, is_identity };
        child.interrupt_parent = child.number(INTERRUPT_PARENT)?.or(interrupt_parent);
        visit(&child)?;
        // A bus with an empty `ranges` passes addresses on as they are.
        let passes_on = child.property("ranges")?.is_some_and(<[u8]>::is_empty);
        walk_children(&child, is_identity && passes_on, depth + 1, visit)?;
    }
    Ok(())
}

impl<'t> Node<'t> {
    /// Returns the name without the address after `@`.
    pub(super) fn name(&self) -> Result<&'t str, TreeError<'t>> {
        Ok(self.raw.split_name()?.0)
    }

    /// Returns the value of a property.
    pub(super) fn property(&self, name: &str) -> Result<Option<&'t [u8]>, TreeError<'t>> {
        Ok(self.raw.get_property(name)?.map(|property| property.value()))
    }

    /// Returns the value of a property that is a cell.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<u32>, TreeError<'t>> {
        let Some(value) = self.property(name)? else { return Ok(None) };
        let number = value.try_into().map(u32::from_be_bytes);
        number.map(Some).map_err(|_| self.malformed(name))
    }

    /// Returns whether a property has this string among its strings.
    pub(super) fn has_string(&self, name: &str, string: &str) -> Result<bool, TreeError<'t>> {
        let value = self.property(name)?.unwrap_or_default();
        Ok(value.split(|&byte| byte == 0).any(|found| found == string.as_bytes()))
    }

    /// Returns whether the node describes an enabled device of this kind, at addresses of the CPU.
    pub(super) fn is_device(&self, compatible: &str) -> Result<bool, TreeError<'t>> {
        Ok(self.is_identity && self.has_string("compatible", compatible)? && self.is_enabled()?)
    }

    /// Returns whether `status` is absent or says that the device can be used.
    pub(super) fn is_enabled(&self) -> Result<bool, TreeError<'t>> {
        Ok(self.property("status")?.is_none()
            || self.has_string("status", "okay")?
            || self.has_string("status", "ok")?)
    }

    /// Returns the cells of the bus whose devices are the node's children.
    pub(super) fn child_cells(&self) -> Result<Cells, TreeError<'t>> {
        let number = |name: &'static str, default| {
            let Some(value) = self.property(name)? else { return Ok(default) };
            let number = value.try_into().map(u32::from_be_bytes).ok();
            number.filter(|&number| number <= MAX_CELLS).ok_or(self.malformed(name))
        };
        Ok(Cells {
            address: number("#address-cells", DEFAULT_CELLS.address)?,
            size: number("#size-cells", DEFAULT_CELLS.size)?,
        })
    }

    /// Returns the first range in `reg`.
    pub(super) fn first_range(&self) -> Result<Range, TreeError<'t>> {
        let mut first = None;
        self.each_range(|range| {
            first = first.or(Some(range));
            Ok(())
        })?;
        first.ok_or(self.malformed("reg"))
    }

    /// Calls `each` for each range in `reg`. If the bus has no sizes, they are 0.
    pub(super) fn each_range(
        &self,
        mut each: impl FnMut(Range) -> Result<(), TreeError<'t>>,
    ) -> Result<(), TreeError<'t>> {
        let mut cells = CellReader::new(self.property("reg")?.unwrap_or_default());
        while !cells.is_empty() {
            let range = cells.range(self.cells);
            each(range.ok_or(self.malformed("reg"))?)?;
        }
        Ok(())
    }

    /// Returns the error that a property of this node is malformed.
    pub(super) fn malformed(&self, property: &'static str) -> TreeError<'t> {
        TreeError::Malformed { node: self.name().unwrap_or_default(), property }
    }
}

/// Reads cells from the value of a property.
pub(super) struct CellReader<'t>(&'t [u8]);

impl<'t> CellReader<'t> {
    pub(super) fn new(value: &'t [u8]) -> Self {
        CellReader(value)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a number of `count` cells. Returns `None` if there are fewer, or if the number has more
    /// than 64 bits.
    pub(super) fn number(&mut self, count: u32) -> Option<u64> {
        (0..count).try_fold(0u64, |number, _| {
            let (cell, rest) = self.0.split_first_chunk()?;
            self.0 = rest;
            let high = number.checked_mul(1 << 32)?;
            Some(high | u64::from(u32::from_be_bytes(*cell)))
        })
    }

    /// Reads a cell. Returns `None` at the end.
    pub(super) fn cell(&mut self) -> Option<u32> {
        let (cell, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*cell))
    }

    /// Reads an address and a size. Returns `None` at the end, or if the end of the range is no
    /// address, or if the bus has no addresses.
    pub(super) fn range(&mut self, cells: Cells) -> Option<Range> {
        if cells.address == 0 {
            return None;
        }
        let start = self.number(cells.address)?;
        Range::new(start, self.number(cells.size)?)
    }
}
