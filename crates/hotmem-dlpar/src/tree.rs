//! The properties, out of a flattened device tree.

use crate::associativity::{Affinity, LookupArrays, Numa};
use crate::property::{DynamicMemory, LmbSize, Property, PropertyError, Version};
use core::fmt;
use dtoolkit::{
    Node as _, Property as _,
    error::FdtParseError,
    fdt::{Fdt, FdtNode},
};
use hotmem::{AddrError, Bytes, PfnRange};

const MEMORY: &str = "/ibm,dynamic-reconfiguration-memory";
/// Byte 5 of `ibm,architecture-vec-5`: form 1, form 2.
const FORMS: u8 = 0x80 | 0x20;

/// What a device tree says about memory that comes and goes.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    fdt: Fdt<'a>,
    /// The LMBs.
    pub memory: DynamicMemory<'a>,
    /// Associativity lists; none if the tree has none.
    pub arrays: LookupArrays<'a>,
    /// How nodes are read out of them.
    pub numa: Numa,
}

/// Why a device tree does not say it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TreeError {
    /// It is no flattened device tree.
    Fdt(FdtParseError),
    /// It has no `/ibm,dynamic-reconfiguration-memory`: this machine's memory stays as it is, or
    /// the tree is from before client and platform agreed on what they can do.
    NoDynamicMemory,
    /// There is no such property.
    Missing(Property),
    /// It has the LMBs in both versions.
    BothVersions,
    /// A property is wrong in itself.
    Property(PropertyError),
    /// A `memory@` node names no whole frames, or memory beyond what can be addressed.
    Memory(AddrError),
    /// A `memory@` node's `reg` is no list of addresses and sizes of two cells each.
    MemoryReg,
}

impl<'a> Tree<'a> {
    /// Reads a device tree.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn parse(blob: &'a [u8]) -> Result<Tree<'a>, TreeError> {
        let fdt = Fdt::new(blob).map_err(TreeError::Fdt)?;
        let node = fdt.find_node(MEMORY).ok_or(TreeError::NoDynamicMemory)?;
        let get = |property: Property| value(node, property.name());
        let missing = TreeError::Missing;
        let size = get(Property::LmbSize).ok_or(missing(Property::LmbSize))?;
        let size = LmbSize::parse(size)?;
        let (version, cells) = match [Property::DynamicMemory, Property::DynamicMemoryV2].map(get) {
            [Some(cells), None] => (Version::V1, cells),
            [None, Some(cells)] => (Version::V2, cells),
            [Some(_), Some(_)] => return Err(TreeError::BothVersions),
            [None, None] => return Err(missing(Property::DynamicMemory)),
        };
        let memory = DynamicMemory::parse(version, cells, size)?;
        let arrays =
            get(Property::LookupArrays).map_or(Ok(LookupArrays::default()), LookupArrays::parse)?;
        let points =
            fdt.find_node("/rtas").and_then(|rtas| value(rtas, Property::ReferencePoints.name()));
        let numa = points.map_or(Ok(Numa::OFF), |points| Numa::parse(points, affinity(fdt)))?;
        Ok(Tree { fdt, memory, arrays, numa })
    }

    /// The memory that the machine starts with, as its `memory@` nodes say.
    pub fn boot_memory(&self) -> impl Iterator<Item = Result<PfnRange, TreeError>> + use<'a> {
        let fdt = self.fdt;
        let is_memory = |child: &FdtNode<'a>| child.name_without_address() == "memory";
        let nodes = fdt.root().children().filter(is_memory);
        nodes.flat_map(|node| {
            let reg = value(node, "reg").unwrap_or(&[]);
            let (ranges, rest) = reg.as_chunks::<16>();
            let bad = (ranges.is_empty() || !rest.is_empty()).then_some(Err(TreeError::MemoryReg));
            bad.into_iter().chain(ranges.iter().map(|range| {
                let [address, size] = halves(range);
                PfnRange::from_bytes(address, Bytes(size)).map_err(TreeError::Memory)
            }))
        })
    }
}

fn halves(range: &[u8; 16]) -> [u64; 2] {
    let value = u128::from_be_bytes(*range);
    #[allow(clippy::cast_possible_truncation, reason = "cut in two")]
    [(value >> 64) as u64, value as u64]
}

fn value<'a>(node: FdtNode<'a>, name: &str) -> Option<&'a [u8]> {
    node.properties().find(|property| property.name() == name)?.value_as().ok()
}

/// What was agreed on; form 1 where nothing says, as all platforms of today speak it.
fn affinity(fdt: Fdt<'_>) -> Affinity {
    let vector = fdt.find_node("/chosen").and_then(|node| value(node, "ibm,architecture-vec-5"));
    match vector {
        // Its first byte is its length.
        Some(bytes) if bytes.get(5).is_none_or(|byte| byte & FORMS == 0) => Affinity::Form0,
        _ => Affinity::Form1,
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
            TreeError::Fdt(error) => write!(f, "no device tree: {error}"),
            TreeError::NoDynamicMemory => {
                write!(
                    f,
                    "the device tree has no {MEMORY}: nothing can come or go, or it is from \
                     before client and platform agreed on it"
                )
            }
            TreeError::Missing(property) => write!(f, "{MEMORY} has no {property}"),
            TreeError::BothVersions => write!(f, "{MEMORY} has its LMBs in two versions"),
            TreeError::Property(error) => error.fmt(f),
            TreeError::Memory(error) => write!(f, "memory node: {error}"),
            TreeError::MemoryReg => f.write_str("memory node: reg is no list of ranges"),
        }
    }
}

impl core::error::Error for TreeError {}
