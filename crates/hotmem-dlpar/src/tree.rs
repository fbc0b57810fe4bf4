//! Reads the properties from a flattened device tree.

use crate::associativity::{Affinity, LookupArrays, Numa};
use crate::connectors::MAX_LIST_LEN;
use crate::property::{DynamicMemory, LmbSize, Property, PropertyError, Version};
use core::fmt;
use deforest::{
    BlobError, Error as ReadError,
    blob::{Devicetree, Node},
    fallible_iterator::FallibleIterator,
};
use hotmem::{AddrError, Bytes, NodeId, PfnRange};

const MEMORY: &str = "ibm,dynamic-reconfiguration-memory";
/// The bits of byte 5 of `ibm,architecture-vec-5` that say that associativity lists have form 1 (0x80)
/// or form 2 (0x20).
const FORM_1_OR_2: u8 = 0x80 | 0x20;

/// The properties of a device tree about dynamic memory.
#[derive(Clone)]
pub struct Tree<'a> {
    root: Node<'a>,
    /// The LMBs.
    pub memory: DynamicMemory<'a>,
    /// The associativity lists; empty if the tree has none.
    pub arrays: LookupArrays<'a>,
    /// The conversion from lists to nodes.
    pub numa: Numa,
}

/// The reason why a device tree is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TreeError {
    /// The bytes are not a flattened device tree.
    Fdt(ReadError),
    /// The tree has no node `/ibm,dynamic-reconfiguration-memory`. Either the machine has no
    /// dynamic memory, or the tree was made before the kernel has negotiated its capabilities.
    NoDynamicMemory,
    /// This property is missing.
    Missing(Property),
    /// The tree has both versions of the property that lists the LMBs.
    BothVersions,
    /// A property is malformed.
    Property(PropertyError),
    /// A `memory@` node names a range that does not consist of whole frames, or that lies above the
    /// physical address limit.
    Memory(AddrError),
    /// A `memory@` node's `reg` is not a list of addresses and sizes of two cells each.
    MemoryReg,
    /// A `memory@` node's `ibm,associativity` has another number of cells than it declares, or more
    /// than [`MAX_LIST_LEN`].
    Associativity,
}

impl<'a> Tree<'a> {
    /// Reads a device tree. Platforms pass the tree aligned to eight bytes.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn parse(blob: &'a [u64]) -> Result<Tree<'a>, TreeError> {
        let root = Devicetree::from_slice(blob)?.root_node()?;
        let node = child(&root, MEMORY)?.ok_or(TreeError::NoDynamicMemory)?;
        let get = |property: Property| value(&node, property.name());
        let missing_property = TreeError::Missing;
        let size = get(Property::LmbSize)?.ok_or(missing_property(Property::LmbSize))?;
        let size = LmbSize::parse(size)?;
        let versions = (get(Property::DynamicMemory)?, get(Property::DynamicMemoryV2)?);
        let (version, cells) = match versions {
            (Some(cells), None) => (Version::V1, cells),
            (None, Some(cells)) => (Version::V2, cells),
            (Some(_), Some(_)) => return Err(TreeError::BothVersions),
            (None, None) => return Err(missing_property(Property::DynamicMemory)),
        };
        let memory = DynamicMemory::parse(version, cells, size)?;
        let arrays = match get(Property::LookupArrays)? {
            Some(cells) => LookupArrays::parse(cells)?,
            None => LookupArrays::default(),
        };
        let points = child(&root, "rtas")?
            .map_or(Ok(None), |rtas| value(&rtas, Property::ReferencePoints.name()))?;
        let numa = match points {
            Some(points) => Numa::parse(points, affinity(&root)?)?,
            None => Numa::OFF,
        };
        Ok(Tree { root, memory, arrays, numa })
    }

    /// Calls `f` with each range of boot memory and its node, according to the `memory@` nodes.
    /// Memory whose associativity list is missing or names no node is on node 0.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn boot_memory(&self, mut f: impl FnMut(PfnRange, NodeId)) -> Result<(), TreeError> {
        let mut children = self.root.children();
        while let Some(node) = children.next()? {
            if node.split_name()?.0 != "memory" {
                continue;
            }
            let reg = value(&node, "reg")?.ok_or(TreeError::MemoryReg)?;
            let (ranges, remaining) = reg.as_chunks::<16>();
            if ranges.is_empty() || !remaining.is_empty() {
                return Err(TreeError::MemoryReg);
            }
            let numa_node = self.node_of(&node)?;
            for range in ranges {
                let [address, size] = halves(range);
                f(
                    PfnRange::from_bytes(address, Bytes(size)).map_err(TreeError::Memory)?,
                    numa_node,
                );
            }
        }
        Ok(())
    }

    /// Returns the node that a `memory@` node's associativity list names.
    fn node_of(&self, memory: &Node<'_>) -> Result<NodeId, TreeError> {
        let Some(list) = value(memory, "ibm,associativity")? else {
            return Ok(NodeId::ZERO);
        };
        let (cells, remaining) = list.as_chunks();
        let mut cells = cells.iter().map(|&cell| u32::from_be_bytes(cell));
        let len = cells.next().and_then(|len| usize::try_from(len).ok());
        if !remaining.is_empty() || len != Some(cells.len()) {
            return Err(TreeError::Associativity);
        }
        let mut row = [0; MAX_LIST_LEN];
        let row = row.get_mut(..cells.len()).ok_or(TreeError::Associativity)?;
        for (entry, cell) in row.iter_mut().zip(cells) {
            *entry = cell;
        }
        Ok(self.numa.node(Some(row)).unwrap_or(NodeId::ZERO))
    }
}

fn halves(range: &[u8; 16]) -> [u64; 2] {
    let value = u128::from_be_bytes(*range);
    #[allow(clippy::cast_possible_truncation, reason = "cut in two")]
    [(value >> 64) as u64, value as u64]
}

fn child<'a>(node: &Node<'a>, name: &str) -> Result<Option<Node<'a>>, TreeError> {
    let mut children = node.children();
    while let Some(child) = children.next()? {
        if child.name()? == name {
            return Ok(Some(child));
        }
    }
    Ok(None)
}

fn value<'a>(node: &Node<'a>, name: &str) -> Result<Option<&'a [u8]>, TreeError> {
    Ok(node.get_property(name)?.map(|property| property.value()))
}

/// Returns how associativity lists are read: by form 0 if the negotiated vector has neither the bit of
/// form 1 nor that of form 2, and otherwise by form 1. This includes trees without a vector, and lists
/// of form 2.
fn affinity(root: &Node<'_>) -> Result<Affinity, TreeError> {
    let vector = child(root, "chosen")?
        .map_or(Ok(None), |chosen| value(&chosen, "ibm,architecture-vec-5"))?;
    Ok(match vector {
        // The first byte of the vector is its length.
        Some(bytes) if bytes.get(5).is_none_or(|byte| byte & FORM_1_OR_2 == 0) => Affinity::Form0,
        _ => Affinity::Form1,
    })
}

impl From<BlobError> for TreeError {
    fn from(error: BlobError) -> TreeError {
        TreeError::Fdt(ReadError::Blob(error))
    }
}

impl From<ReadError> for TreeError {
    fn from(error: ReadError) -> TreeError {
        TreeError::Fdt(error)
    }
}

impl fmt::Debug for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("memory", &self.memory)
            .field("arrays", &self.arrays)
            .field("numa", &self.numa)
            .finish_non_exhaustive()
    }
}

impl From<PropertyError> for TreeError {
    fn from(error: PropertyError) -> TreeError {
        TreeError::Property(error)
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Fdt(error) => write!(f, "not a device tree: {error}"),
            TreeError::NoDynamicMemory => {
                write!(
                    f,
                    "the device tree has no {MEMORY}: there is no dynamic memory, or the tree dates from \
                     before the negotiation with the platform"
                )
            }
            TreeError::Missing(property) => write!(f, "{MEMORY} has no {property}"),
            TreeError::BothVersions => write!(f, "{MEMORY} has its LMBs in two versions"),
            TreeError::Property(error) => error.fmt(f),
            TreeError::Memory(error) => write!(f, "memory node: {error}"),
            TreeError::MemoryReg => f.write_str("memory node: reg is not a list of ranges"),
            TreeError::Associativity => {
                f.write_str("memory node: ibm,associativity is not an associativity list")
            }
        }
    }
}

impl core::error::Error for TreeError {}
