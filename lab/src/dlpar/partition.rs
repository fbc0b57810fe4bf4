//! A hosted pseries partition.

use crate::hosted::{HostMemory, Hosted, HostedError, HostedHotplug, ThreadCpus};
use hotmem::{Bytes, NoHooks, OnlineType, Pfn};
use hotmem_dlpar::{
    Dlpar, DynamicMemory, FLAG_ASSIGNED, Group, LmbSize, LookupArrays, MAX_LIST_LEN, Machine,
    Needs, Numa, PropertyError, Run, Storage, Table, TableError, Tree, TreeError, Version,
    hypervisor::{Connector, Hypervisor},
};
use std::num::NonZeroU32;
use thiserror::Error;

/// The largest partition for whose memory addresses are reserved. A larger partition has only
/// metadata, and its memory cannot be accessed.
const MAX_BACKED: Bytes = Bytes::gib(64 << 10);
/// The minimal alignment of the first LMB of a partition that [`Description::new`] describes.
const FIRST_LMB_ALIGN: u64 = Bytes::gib(4).0;
/// The end of the physical addresses.
const END_OF_ADDRESSES: u64 = 1 << hotmem::geometry::PHYS_ADDR_BITS;
/// The DRC index of the first LMB.
const FIRST_CONNECTOR: u32 = 0x8000_0000;
/// The largest number of LMBs of a partition. Real partitions have fewer.
const MAX_LMBS: u32 = 1 << 24;

/// The description of a partition by properties of a device tree.
#[derive(Clone, Debug)]
pub struct Description {
    version: Version,
    lmb_size: LmbSize,
    memory: Vec<u8>,
    arrays: Vec<u8>,
    numa: Numa,
    boot_memory: Bytes,
    /// The end of the last LMB.
    end: Bytes,
    /// The number of nodes, if the nodes of LMBs are known only from connectors.
    connector_nodes: Option<NonZeroU32>,
}

/// The reason why a partition could not be built or started.
#[derive(Debug, Error)]
pub enum DescriptionError {
    /// The device tree does not describe a partition.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A property is invalid.
    #[error(transparent)]
    Property(#[from] PropertyError),
    /// Properties contradict each other.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There is no boot memory at address 0.
    #[error("the device tree has no boot memory at address 0")]
    NoBootMemory,
    /// There are more LMBs than the limit.
    #[error("{0} LMBs are more than the {MAX_LMBS} that a partition can have")]
    TooManyLmbs(u32),
    /// The LMBs do not fit into the physical addresses.
    #[error("{lmbs} LMBs of {size} end beyond the last physical address")]
    BeyondAddresses {
        /// The number of LMBs.
        lmbs: u32,
        /// The size of an LMB.
        size: Bytes,
    },
    /// The number of nodes is zero, or exceeds the engine's limit.
    #[error("{0} nodes: there can be from 1 to {max}", max = hotmem::MAX_NODES)]
    Nodes(u32),
    /// The host cannot provide the machine's memory.
    #[error(transparent)]
    Hosted(#[from] HostedError),
    /// The engine cannot be started.
    #[error("the engine cannot be started: {0:?}")]
    Boot(hotmem::BootError),
    /// There is no memory for the engine's words of the LMBs.
    #[error(transparent)]
    Announce(#[from] hotmem::AnnounceError),
    /// Memory that is assigned at the start cannot be brought online.
    #[error(transparent)]
    Adopt(#[from] hotmem_dlpar::Error),
}

impl Description {
    /// Reads the description from a flattened device tree.
    ///
    /// # Errors
    /// [`DescriptionError`].
    pub fn from_tree(blob: &[u8]) -> Result<Description, DescriptionError> {
        // The parser reads words of 64 bits, whose bytes are in the order of the blob.
        let words: Vec<u64> = blob
            .chunks(8)
            .map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_ne_bytes(word)
            })
            .collect();
        let tree = Tree::parse(&words)?;
        // The boot memory of the hosted machine is the contiguous boot memory from address 0 on.
        let mut regions = Vec::new();
        tree.boot_memory(|region, _| regions.push(region))?;
        regions.sort_unstable_by_key(|region| region.start());
        let end = regions.iter().fold(Pfn::ZERO, |end, region| {
            if region.start() <= end { end.max(region.end()) } else { end }
        });
        let boot_memory = Bytes(end.phys_addr());
        if boot_memory == Bytes::ZERO {
            return Err(DescriptionError::NoBootMemory);
        }
        let size = tree.memory.lmb_size().bytes().0;
        let end_of_lmbs =
            tree.memory.sets().map(|set| set.address + u64::from(set.lmbs) * size).max();
        let (memory, lists) = (tree.memory, tree.arrays.value());
        let no_arrays = [0; 8];
        Ok(Description {
            version: memory.version(),
            lmb_size: memory.lmb_size(),
            memory: memory.value().to_vec(),
            arrays: if lists.is_empty() { &no_arrays } else { lists }.to_vec(),
            numa: tree.numa,
            boot_memory,
            end: Bytes(end_of_lmbs.unwrap_or(0)).max(boot_memory),
            connector_nodes: None,
        })
    }

    /// Describes a partition of `lmbs` LMBs, which are divided equally among `nodes` nodes. The
    /// first `assigned` LMBs are assigned at the start.
    ///
    /// # Errors
    /// [`DescriptionError`].
    pub fn new(
        version: Version,
        lmbs: u32,
        lmb_size: Bytes,
        nodes: u32,
        assigned: u32,
    ) -> Result<Description, DescriptionError> {
        let lmb_size = LmbSize::new(lmb_size)?;
        if lmbs > MAX_LMBS {
            return Err(DescriptionError::TooManyLmbs(lmbs));
        }
        if nodes == 0 || u64::from(nodes) > hotmem::MAX_NODES as u64 {
            return Err(DescriptionError::Nodes(nodes));
        }
        let size = lmb_size.bytes().0;
        // Boot memory has twice the size of the engine's words, which is 193 bytes for a section, and
        // at least 1 GiB more.
        let beyond_addresses = DescriptionError::BeyondAddresses { lmbs, size: lmb_size.bytes() };
        let all = u64::from(lmbs).checked_mul(size).filter(|&all| all < END_OF_ADDRESSES);
        let Some(all) = all else { return Err(beyond_addresses) };
        let words = u64::from(lmbs) * (size >> 27).max(1) * 2 * 193;
        let boot_memory = Bytes(words.next_multiple_of(1 << 28) + Bytes::gib(1).0);
        let first = boot_memory.0.next_multiple_of(FIRST_LMB_ALIGN.max(size));
        let end = Bytes(first + all);
        if end.0 > END_OF_ADDRESSES {
            return Err(beyond_addresses);
        }
        let lmbs_per_node = lmbs.div_ceil(nodes).max(1);
        // A set is a run of LMBs with the same node and state, as in version 2 of the property.
        let mut sets = Vec::new();
        let mut start = 0;
        while start < lmbs {
            let node = start / lmbs_per_node;
            let end = (start - start % lmbs_per_node).saturating_add(lmbs_per_node).min(lmbs);
            let end = if start < assigned { end.min(assigned) } else { end };
            let flags = if start < assigned { FLAG_ASSIGNED } else { 0 };
            sets.push((start, end - start, node, flags));
            start = end;
        }
        let mut memory = Vec::new();
        let push_cell = |memory: &mut Vec<u8>, value: u32| memory.extend(value.to_be_bytes());
        let entries = match version {
            Version::V1 => lmbs,
            Version::V2 => u32::try_from(sets.len()).unwrap_or(u32::MAX),
        };
        push_cell(&mut memory, entries);
        for (start, count, node, flags) in sets {
            let entries = if version == Version::V1 { count } else { 1 };
            for nth in start..start + entries {
                if version == Version::V2 {
                    push_cell(&mut memory, count);
                }
                memory.extend((first + u64::from(nth) * size).to_be_bytes());
                push_cell(&mut memory, FIRST_CONNECTOR + nth);
                if version == Version::V1 {
                    push_cell(&mut memory, 0);
                }
                push_cell(&mut memory, node);
                push_cell(&mut memory, flags);
            }
        }
        let lists = (0..nodes).flat_map(|node| [0, 0, 0, node]);
        let arrays = [nodes, 4].into_iter().chain(lists).flat_map(u32::to_be_bytes).collect();
        let numa = Numa { primary_domain: Some(4) };
        let connector_nodes = None;
        Ok(Description {
            version,
            lmb_size,
            memory,
            arrays,
            numa,
            boot_memory,
            end,
            connector_nodes,
        })
    }

    /// Removes the nodes from the property, so that the nodes are known only from connectors. LMB
    /// `n` is on node `n % nodes`.
    #[must_use]
    pub fn with_nodes_of_connectors(mut self, nodes: NonZeroU32) -> Description {
        let entries = self.memory.get_mut(4..).unwrap_or_default();
        // Entries of both versions have 24 bytes, of which bytes 16 to 19 are the index of the
        // associativity list.
        for entry in entries.chunks_exact_mut(24) {
            entry[16..20].fill(0xff);
        }
        self.connector_nodes = Some(nodes);
        self
    }

    /// Builds the hosted machine, whose hotplug range contains the LMBs.
    fn build_machine(&self) -> Result<Hosted, HostedError> {
        let start = self.boot_memory.0.next_multiple_of(FIRST_LMB_ALIGN);
        let size = Bytes(self.end.0.saturating_sub(start).next_multiple_of(1 << 21));
        let builder = Hosted::builder().boot_memory(self.boot_memory).hotplug_size(size);
        if self.is_backed() {
            return builder.build();
        }
        // SAFETY: LMBs are brought online for movable allocations, and nothing makes such
        // allocations, because the users of a partition only make requests for LMBs. The machine's
        // mapping does not return unmapped memory to the host.
        unsafe { builder.unbacked() }.build()
    }

    fn is_backed(&self) -> bool {
        self.end <= MAX_BACKED
    }

    fn parse(&self) -> Result<(DynamicMemory<'_>, LookupArrays<'_>), DescriptionError> {
        let memory = DynamicMemory::parse(self.version, &self.memory, self.lmb_size)?;
        if memory.lmbs() > MAX_LMBS {
            return Err(DescriptionError::TooManyLmbs(memory.lmbs()));
        }
        Ok((memory, LookupArrays::parse(&self.arrays)?))
    }
}

/// The memory that a [`Partition`] borrows.
pub struct PartitionStorage {
    description: Description,
    groups: Vec<Group>,
    runs: Vec<Run>,
    by_index: Vec<u32>,
    arrays: Vec<u32>,
    connectors: Vec<Connector>,
    tree: Vec<u8>,
    hosted: Hosted,
}

/// A running partition, with the parts of its kernel that handle requests.
pub struct Partition<'p> {
    /// The LMBs and the current request.
    pub dlpar: Dlpar<'p, 'p, ThreadCpus>,
    /// The engine.
    pub hotplug: HostedHotplug<'p>,
    /// The hypervisor.
    pub hypervisor: Hypervisor<'p>,
    hooks: NoHooks,
}

impl PartitionStorage {
    /// Allocates the memory for a partition.
    ///
    /// # Errors
    /// [`DescriptionError`].
    pub fn new(description: Description) -> Result<PartitionStorage, DescriptionError> {
        let (memory, lists) = description.parse()?;
        let needs = Needs::of(&memory, &lists);
        let lmbs = usize::try_from(memory.lmbs()).unwrap_or(0);
        // A list of more than `MAX_LIST_LEN` cells does not fit in a connector's answer, so
        // connectors add lists only if lists are not longer.
        let columns = usize::try_from(lists.columns()).ok().filter(|&len| len <= MAX_LIST_LEN);
        let new_rows = columns.unwrap_or(0) * hotmem::MAX_NODES;
        Ok(PartitionStorage {
            groups: vec![Group::EMPTY; needs.groups],
            runs: vec![Run::EMPTY; needs.runs],
            by_index: vec![0; needs.runs],
            arrays: vec![0; needs.arrays + new_rows],
            connectors: Vec::new(),
            tree: vec![0; 4 + 24 * lmbs],
            hosted: description.build_machine()?,
            description,
        })
    }

    /// Starts the partition: announces all LMBs, and brings the assigned LMBs online.
    ///
    /// # Errors
    /// [`DescriptionError`].
    pub fn start(&mut self, online: OnlineType) -> Result<Partition<'_>, DescriptionError> {
        let PartitionStorage {
            description,
            groups,
            runs,
            by_index,
            arrays,
            connectors,
            tree,
            hosted,
        } = self;
        let (memory, lists) = description.parse()?;
        let storage = Storage { groups, runs, by_index, arrays };
        let table = Table::new(&memory, &lists, description.numa, storage)?;
        *connectors = Connector::of(&table).collect();
        if let Some(nodes) = description.connector_nodes {
            for (nth, connector) in (0..).zip(connectors.iter_mut()) {
                connector.node = nth % nodes;
            }
        }
        let hypervisor = Hypervisor::new(connectors, 4, tree);
        let mut hotplug = hosted.boot().map_err(DescriptionError::Boot)?;
        table.announce(&mut hotplug)?;
        table.adopt(&mut hotplug, &mut NoHooks, online)?;
        let dlpar = Dlpar::new(table, &hotplug);
        Ok(Partition { dlpar, hotplug, hypervisor, hooks: NoHooks })
    }
}

impl<'p> Partition<'p> {
    /// Returns the table of all LMBs.
    #[must_use]
    pub fn table(&self) -> &Table<'p> {
        self.dlpar.table()
    }

    /// Returns the LMBs, and the machine that their requests need.
    #[allow(clippy::type_complexity, reason = "a caller needs both values at the same time")]
    pub fn machine(
        &mut self,
    ) -> (&mut Dlpar<'p, 'p, ThreadCpus>, Machine<'_, 'p, ThreadCpus, HostMemory<'p>, Hypervisor<'p>>)
    {
        let Partition { dlpar, hotplug, hypervisor, hooks } = self;
        (dlpar, Machine { hotplug, hooks, connectors: hypervisor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The property names the maximal length of a list, and has no lists.
    #[test]
    fn a_property_without_lists_needs_no_memory_for_any_list_length() {
        let mut description = Description::new(Version::V2, 8, Bytes::mib(256), 1, 0)
            .expect("the description is valid");
        description.arrays = [0, u32::MAX].into_iter().flat_map(u32::to_be_bytes).collect();
        let mut storage = PartitionStorage::new(description).expect("the description is valid");
        assert!(storage.arrays.is_empty());
        assert!(storage.start(OnlineType::Movable).is_ok());
    }
}
