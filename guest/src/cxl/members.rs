//! Chooses which devices share a window's addresses.

use super::MAX_CXL;
use crate::fixed_list::FixedList;

/// A device whose memory is not mapped yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The device's position in the kernel's list.
    pub device: usize,
    /// The number of the bridge above the device.
    pub bridge: u32,
    /// What its memory is.
    pub kind: MemoryKind,
}

/// What the memory of a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Its contents are lost when the machine is switched off.
    Volatile,
    /// It keeps its contents.
    Persistent,
    /// The device lends it in extents.
    Dynamic,
}

/// Positions of devices in the kernel's list.
pub type Members = FixedList<usize, MAX_CXL>;

/// Chooses `ways` of the candidates for a window that is routed to the bridges `targets`: one device
/// below each bridge in turn, the first ones of the list. All of them have memory of one kind, volatile
/// if possible. Dynamic capacity does not alternate, because no range of addresses would be an
/// extent's alone. Returns `None` if there are too few.
#[must_use]
pub fn choose_members(targets: &[u32], ways: usize, candidates: &[Candidate]) -> Option<Members> {
    let kinds = [MemoryKind::Volatile, MemoryKind::Persistent, MemoryKind::Dynamic];
    let mut kinds = kinds.into_iter().filter(|&kind| ways == 1 || kind != MemoryKind::Dynamic);
    kinds.find_map(|kind| {
        choose_of_kind(targets, ways, candidates.iter().filter(|one| one.kind == kind))
    })
}

fn choose_of_kind<'c>(
    targets: &[u32],
    ways: usize,
    candidates: impl Iterator<Item = &'c Candidate> + Clone,
) -> Option<Members> {
    let mut members = Members::empty(0);
    for n in 0..ways {
        let bridge = targets.get(n % targets.len().max(1))?;
        let mut below = candidates.clone().filter(|candidate| candidate.bridge == *bridge);
        let next = below.find(|candidate| !members.contains(&candidate.device))?;
        members.push(next.device).ok()?;
    }
    (ways > 0).then_some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates() -> Vec<Candidate> {
        let bridges = [12, 12, 50, 12, 50];
        let each = bridges.iter().enumerate();
        each.map(|(n, &bridge)| Candidate { device: 2 * n, bridge, kind: MemoryKind::Volatile })
            .collect()
    }

    fn chosen(targets: &[u32], ways: usize) -> Option<Vec<usize>> {
        choose_members(targets, ways, &candidates()).map(|members| members.to_vec())
    }

    #[test]
    fn each_bridge_of_a_window_gives_equally_many_devices() {
        assert_eq!(chosen(&[12], 1), Some(vec![0]));
        assert_eq!(chosen(&[12], 3), Some(vec![0, 2, 6]));
        assert_eq!(chosen(&[50, 12], 4), Some(vec![4, 0, 8, 2]));
    }

    #[test]
    fn a_bridge_without_enough_devices_gives_no_choice() {
        assert_eq!(chosen(&[12], 4), None);
        assert_eq!(chosen(&[13], 1), None);
        assert_eq!(chosen(&[], 1), None);
        assert_eq!(chosen(&[12], 0), None);
        assert_eq!(chosen(&[12, 12, 12], MAX_CXL + 1), None);
    }

    #[test]
    fn memory_of_different_kinds_does_not_alternate_and_dynamic_capacity_not_at_all() {
        use MemoryKind::{Dynamic, Persistent, Volatile};
        let chosen = |kinds: &[MemoryKind], ways| {
            let each = kinds.iter().enumerate();
            let all: Vec<_> =
                each.map(|(device, &kind)| Candidate { device, bridge: 12, kind }).collect();
            choose_members(&[12], ways, &all).map(|members| members.to_vec())
        };
        assert_eq!(chosen(&[Persistent, Volatile], 2), None);
        assert_eq!(chosen(&[Persistent, Volatile, Persistent], 2), Some(vec![0, 2]));
        assert_eq!(chosen(&[Dynamic, Dynamic], 2), None);
        assert_eq!(chosen(&[Dynamic, Dynamic], 1), Some(vec![0]));
    }
}
