//! Where an allocation looks first, and where it goes on: node by node; on each node zone by zone;
//! in the kernel zone above the boundary of low memory before below it, unless the wish has a bound.

use super::{Frames, Want};
use crate::addr::Pfn;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::sync::settled::{AtomicU8, AtomicU64};
use crate::words::{Class, MAX_NODES, NodeId, Search, SectionRef, Zone};

/// The order of nodes for each node.
pub(super) struct NodeOrder {
    /// For each node the nodes after itself, as number + 1; 0 ends the list.
    after: [[AtomicU8; MAX_NODES]; MAX_NODES],
    /// The number of the first frame above low memory; set once, before the first frame is there.
    low_end: AtomicU64,
}

/// A zone of a node, from a frame up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) node: NodeId,
    pub(super) zone: Zone,
    pub(super) from: Pfn,
}

impl Place {
    /// Whether a section belongs to the node and begins at `from` or above. Its zones are not
    /// looked at.
    #[inline]
    pub(super) fn includes(self, section: SectionRef<'_>) -> bool {
        section.node() == self.node && (self.from == Pfn::ZERO || section.start() >= self.from)
    }
}

impl NodeOrder {
    pub(super) const fn new() -> NodeOrder {
        let nobody = [const { [const { AtomicU8::new(0) }; MAX_NODES] }; MAX_NODES];
        NodeOrder { after: nobody, low_end: AtomicU64::new(0) }
    }
}

impl<P: Platform> Frames<P> {
    /// From now on allocations that prefer `node` go on with `others` in this order when it has
    /// nothing, and after these with the rest by number. For the slow side: an allocation that runs
    /// meanwhile may see a part of it.
    pub fn set_fallback(&self, node: NodeId, others: &[NodeId]) {
        let row = &self.nodes.after[node.number()];
        // Each once, or one that is named often would leave no place for the last.
        let first = |&(nth, other): &(usize, &NodeId)| !others[..nth].contains(other);
        let others = others.iter().enumerate().filter(first).map(|(_, &other)| other);
        let others = others.filter(|&other| other != node);
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_NODES")]
        let mut entries = others.map(|other| other.number() as u8 + 1);
        for entry in row {
            // Relaxed: an order, not a promise.
            // 0 ends the list.
            entry.store(entries.next().unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// The node that `frame` belongs to, if it is announced. For those who migrate what lives there:
    /// see [`Want::leaving`].
    #[must_use]
    pub fn node_of(&self, frame: Pfn) -> Option<NodeId> {
        self.words.node_of(frame)
    }

    /// Where low memory ends, a multiple of a section; zero if there is none.
    pub(crate) fn low_end(&self) -> Pfn {
        // Relaxed: set before the first region is announced (Release).
        Pfn::new(self.nodes.low_end.load(Ordering::Relaxed)).unwrap_or(Pfn::ZERO)
    }

    /// Boot only: says where low memory ends.
    #[cfg(not(loom))]
    pub(crate) fn set_low_end(&self, low_end: Pfn) {
        self.nodes.low_end.store(low_end.number(), Ordering::Relaxed);
    }

    /// Where `want` looks, in this order: node by node, and on each node zone by zone. A search that
    /// found nothing above the boundary of low memory goes on through all of the zone: above the
    /// boundary the trees lead nowhere then, which costs a few loads.
    pub(super) fn places(&self, want: &Want) -> impl Iterator<Item = Place> + use<'_, P> {
        let used = self.words.nodes();
        let home = want.preferred_node().unwrap_or_else(|| self.platform.node());
        let low_end = self.low_end();
        let (only, steps) = (want.only_node(), want.steps(low_end != Pfn::ZERO));
        let last = want.is_leaving().then_some(home);
        self.nodes_from(home)
            .filter(move |&node| last != Some(node))
            .chain(last)
            .filter(move |&node| used.contains(node))
            .filter(move |&node| only.is_none_or(|only| only == node))
            .flat_map(move |node| {
                steps.iter().map(move |&(zone, is_above)| Place {
                    node,
                    zone,
                    from: if is_above { low_end } else { Pfn::ZERO },
                })
            })
    }

    /// The sections of a place that have something of `class` for `want`.
    pub(super) fn search(&self, place: Place, class: fn(Zone) -> Class, want: &Want) -> Search<'_> {
        self.words.search(place.node, class(place.zone)).fixed(want.wants_fixed())
    }

    /// `home`, then its list, then the rest by number.
    fn nodes_from(&self, home: NodeId) -> impl Iterator<Item = NodeId> + use<'_, P> {
        let row = &self.nodes.after[home.number()];
        let listed = move || {
            let entries = row.iter().map(|entry| usize::from(entry.load(Ordering::Relaxed)));
            entries.map_while(|entry| NodeId::new(entry.checked_sub(1)?))
        };
        let rest = NodeId::all();
        let rest = rest.filter(move |&node| node != home && !listed().any(|other| other == node));
        core::iter::once(home).chain(listed()).chain(rest)
    }
}
