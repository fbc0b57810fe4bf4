//! Takes snapshots of the state of a partition.

use crate::common::bytes;
use crate::partition::{Partition, lmbs};
use hotmem::{NodeId, PfnRange, State, Zone};
use hotmem_dlpar::DrcIndex;
use hotmem_dlpar::hypervisor::Connector;
use std::collections::BTreeSet;

/// The state of a partition between two requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Snapshot {
    pub(crate) lmbs: Vec<(State, u32)>,
    nodes: Vec<u64>,
    /// The number of allocated frames, without the engine's metadata.
    allocated_frames: u64,
    present_frames: u64,
    mapped: BTreeSet<u64>,
    pub(crate) property: Vec<u8>,
    arrays: Vec<u8>,
    connectors: Vec<Connector>,
}

impl Partition<'_, '_> {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = |(index, range): (DrcIndex, PfnRange)| {
            let lmb = self
                .dlpar
                .table()
                .by_index(index)
                .expect("the table has an LMB with this connector");
            let state = match self.hotplug.state_at(range.start(), range.end()).1 {
                // A snapshot does not distinguish absent memory from memory that is not announced.
                State::Unknown => State::Absent,
                state => state,
            };
            (state, lmb.flags)
        };
        let zone = |node: u32, zone| {
            let zone = self.hotplug.zone(NodeId(node), zone);
            [zone.online, zone.spanned.start().number(), zone.spanned.end().number()]
        };
        Snapshot {
            lmbs: lmbs().into_iter().map(state).collect(),
            nodes: (0..4)
                .flat_map(|node| Zone::ALL.into_iter().flat_map(move |z| zone(node, z)))
                .collect(),
            allocated_frames: self.used_frames(),
            present_frames: self.hotplug.frames().counts().present,
            mapped: self.kernel.mapped.clone(),
            property: bytes(self.dlpar.table().dynamic_memory()),
            arrays: bytes(self.dlpar.table().lookup_arrays()),
            connectors: self.hypervisor.connectors().to_vec(),
        }
    }

    /// Returns the number of allocated frames, without the engine's metadata.
    pub(crate) fn used_frames(&self) -> u64 {
        let frames = self.hotplug.frames();
        let metadata = frames.metadata().map(|metadata| metadata.frames.frames());
        frames.counts().used - metadata.sum::<u64>()
    }

    /// Checks that all memory that is present is online, and that none of it is isolated.
    pub(crate) fn check_all_online(&self) {
        let counts = self.hotplug.frames().counts();
        assert_eq!((counts.online, counts.isolated), (counts.present, 0));
    }
}
