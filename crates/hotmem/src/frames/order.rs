//! Determines the order in which an allocation searches memory: node by node, and on each node zone
//! by zone. In the kernel zone, the search begins above low memory, unless the request has an upper
//! bound.

use super::{AllocRequest, CallContext, Frames, NodeChoice};
use crate::addr::Pfn;
use crate::geometry::SECTION_FRAMES;
use crate::outlined::Outlined;
use crate::platform::Platform;
use crate::words::{Class, NodeId, NodeIndex, Search, SectionRef, SectionWords, Zone};

/// One step of a search: the memory of one zone of a node, at or above a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SearchStep {
    pub(super) node: NodeIndex,
    pub(super) zone: Zone,
    pub(super) from: Pfn,
}

impl SearchStep {
    /// Returns whether a section belongs to the node and begins at or above `from`. Does not check
    /// the section's zones.
    #[inline(never)]
    pub(crate) fn includes(self, words: &SectionWords, section: SectionRef<'_>) -> bool {
        section.node(words) == self.node && (self.from == Pfn::ZERO || section.start() >= self.from)
    }
}

impl<P: Platform> Frames<P> {
    /// Returns the node of `frame`, if the frame is present. A kernel that migrates the contents of
    /// `frame` passes the node to [`NodeChoice::Avoiding`].
    #[must_use]
    pub fn node_of(&self, frame: Pfn) -> Option<NodeId> {
        self.words.node_of(frame)
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    /// Returns the steps of a search for `request`, in order: node by node, and on each node zone
    /// by zone. If a search found nothing above low memory, the next step is the whole zone. The
    /// part above low memory is then searched again, which costs only a few loads, because its
    /// trees are empty.
    pub(super) fn search_steps(
        &self,
        request: &AllocRequest,
    ) -> impl Iterator<Item = SearchStep> + use<'f, P> {
        let low_end = self.low_end();
        let zones = request.steps(low_end != Pfn::ZERO);
        let choice = request.node;
        let named_node = match choice {
            None => self.frames.platform.node(),
            Some(NodeChoice::Near(n) | NodeChoice::Only(n) | NodeChoice::Avoiding(n)) => n,
        };
        let known_node = self.words().index_of(named_node);
        let max_nodes = match choice {
            Some(NodeChoice::Only(_)) => usize::from(known_node.is_some()),
            _ => usize::MAX,
        };
        let lower_bound = request.lower_bound.align_down(SECTION_FRAMES as u64);
        let avoided_node = known_node.filter(|_| matches!(choice, Some(NodeChoice::Avoiding(_))));
        let first_node = known_node.or_else(|| self.words().first_online_node());
        let search_steps = self
            .nodes_from(first_node.unwrap_or(NodeIndex::FIRST))
            .filter(move |&node| avoided_node != Some(node))
            .chain(avoided_node)
            .take(max_nodes)
            .flat_map(move |node| {
                zones.iter().map(move |&(zone, is_above)| SearchStep {
                    node,
                    zone,
                    from: if is_above { low_end.max(lower_bound) } else { lower_bound },
                })
            });
        Outlined(search_steps)
    }

    /// Returns a search for the sections of a step that have memory of `class` for `request`: those
    /// below its upper bound. The lower bound is in `step`.
    pub(super) fn search(
        &self,
        step: SearchStep,
        class: fn(Zone) -> Class,
        request: &AllocRequest,
    ) -> Search<'f> {
        let search = self.words().search(step.node, class(step.zone)).only_boot(request.boot_only);
        if request.upper_bound < Pfn::LIMIT { search.below(request.upper_bound) } else { search }
    }

    /// Returns `first_node`, then the other nodes by index.
    fn nodes_from(&self, first_node: NodeIndex) -> impl Iterator<Item = NodeIndex> + use<'f, P> {
        let other_nodes = self.words().nodes().filter(move |&node| node != first_node);
        core::iter::once(first_node).chain(other_nodes)
    }
}

/// Returns whether a request near `named_node` is for `node`: it is if `node` is `named_node`, or if
/// `named_node` is unknown and `node` is the first node that has memory online.
#[inline]
pub(super) fn is_node_for(words: &SectionWords, node: NodeIndex, named_node: NodeId) -> bool {
    words.is_node(node, named_node) || is_first_for(words, node, named_node)
}

#[cold]
fn is_first_for(words: &SectionWords, node: NodeIndex, named_node: NodeId) -> bool {
    words.index_of(named_node).is_none() && Some(node) == words.first_online_node()
}
