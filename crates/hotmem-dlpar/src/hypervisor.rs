//! A simulated PAPR hypervisor: tracks the state of each connector, refuses calls out of order, and
//! injects errors, delays and malformed replies on demand.

use crate::connector_error::Call;
use crate::connectors::{Connectors, MAX_LIST_LEN};
use crate::property::DrcIndex;
use crate::table::Table;
use crate::write::PropertyValue;
use core::fmt;

/// The status "hardware error". QEMU returns it if memory is to be isolated that the host has not
/// asked back.
pub const HARDWARE_ERROR: i32 = -1;
/// The status "invalid argument".
pub const PARAMETER_ERROR: i32 = -3;
/// The status "not allowed in this state".
pub const INVALID_STATE: i32 = -9000;

/// The status "an isolated connector cannot be configured".
pub const NOT_CONFIGURABLE: i32 = -9003;

/// The state of a connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connector {
    /// The connector's DRC index.
    pub index: DrcIndex,
    /// Whether the connector's memory belongs to the partition.
    pub is_usable: bool,
    /// Whether the connector's memory is inaccessible.
    pub is_isolated: bool,
    /// The node of the connector's memory.
    pub node: u32,
    /// Whether `ibm,configure-connector` has completed since the connector was unisolated.
    pub configured: bool,
    /// Whether the host has plugged memory. Only used [like QEMU](Hypervisor::set_like_qemu).
    pub is_backed: bool,
    /// Whether the host has asked for that memory back. Only used [like
    /// QEMU](Hypervisor::set_like_qemu).
    pub wanted_back: bool,
}

/// A request to the hypervisor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HypervisorRequest {
    /// A call for a connector.
    Connector(DrcIndex, Call),
    /// An update of the device tree.
    Update,
}

/// The hypervisor's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The hypervisor carries out the request, and answers truthfully.
    CarryOut,
    /// The hypervisor does nothing, and answers with this status.
    Status(i32),
    /// The hypervisor carries out the request, and nevertheless answers with this status.
    CarriedOutBut(i32),
    /// The hypervisor carries out a request two times, and answers the second one truthfully.
    CarriedOutTwice,
    /// The hypervisor answers a request for a state with success and this state, and other requests
    /// truthfully.
    State(i32),
    /// The hypervisor answers a request for a list with a list of this length, and other requests
    /// truthfully.
    List(usize),
}

impl Answer {
    /// Returns the status of a request that `carry_out` carries out.
    fn status(self, mut carry_out: impl FnMut() -> i32) -> i32 {
        match self {
            Answer::Status(status) => status,
            Answer::CarriedOutBut(status) => {
                carry_out();
                status
            }
            Answer::CarriedOutTwice => {
                carry_out();
                carry_out()
            }
            Answer::CarryOut | Answer::State(_) | Answer::List(_) => carry_out(),
        }
    }
}

/// A simulated hypervisor.
pub struct Hypervisor<'a, F = fn(HypervisorRequest) -> Answer> {
    connectors: &'a mut [Connector],
    /// The position in `connectors` at which a search starts.
    hint: usize,
    /// The length of the associativity lists that connectors report. The last entry of a list is
    /// the node. 0 if connectors report no lists.
    list_len: usize,
    answer: F,
    /// The buffer for the device tree's property.
    tree: &'a mut [u8],
    tree_len: usize,
    calls: u64,
    updates: u64,
    /// Whether QEMU's rules apply.
    has_qemu_rules: bool,
    refusals: u64,
}

impl<'a> Hypervisor<'a> {
    /// Makes a hypervisor with these connectors, in the order of their indices, and a buffer for
    /// the property that updates write. `list_len` is the length of lists as in
    /// `ibm,associativity-lookup-arrays`, or 0 if connectors report no lists.
    pub fn new(
        connectors: &'a mut [Connector],
        list_len: usize,
        tree: &'a mut [u8],
    ) -> Hypervisor<'a> {
        Hypervisor {
            connectors,
            hint: 0,
            list_len,
            answer: |_| Answer::CarryOut,
            tree,
            tree_len: 0,
            calls: 0,
            updates: 0,
            has_qemu_rules: false,
            refusals: 0,
        }
    }
}

impl<'a, F: FnMut(HypervisorRequest) -> Answer> Hypervisor<'a, F> {
    /// Makes `answer` decide each answer.
    pub fn answering<G: FnMut(HypervisorRequest) -> Answer>(self, answer: G) -> Hypervisor<'a, G> {
        Hypervisor {
            connectors: self.connectors,
            hint: self.hint,
            list_len: self.list_len,
            answer,
            tree: self.tree,
            tree_len: self.tree_len,
            calls: self.calls,
            updates: self.updates,
            has_qemu_rules: self.has_qemu_rules,
            refusals: self.refusals,
        }
    }

    /// Applies the rules of QEMU's pseries machine in addition to those of PAPR. Memory becomes
    /// usable only if the host has plugged it and has not asked for it back. A connector is
    /// isolated only if it is configured and the host has asked for its memory back. Configuring a
    /// connector cancels that request of the host. Memory that becomes unusable returns to the
    /// host, and cannot be acquired again.
    pub fn set_like_qemu(&mut self) {
        self.has_qemu_rules = true;
    }

    /// Plugs memory at `count` connectors from `first` on, as the host does by `device_add`.
    pub fn plug(&mut self, first: DrcIndex, count: u32) {
        self.change_connectors(first, count, |connector| connector.is_backed = true);
    }

    /// Asks for the memory of `count` connectors from `first` on back, as the host does by
    /// `device_del`. A hypervisor [like QEMU](Self::set_like_qemu) immediately takes memory that is
    /// not usable.
    ///
    /// # Panics
    /// Panics if it is like QEMU and the host already has a part of that memory, because QEMU 7.2
    /// aborts then.
    pub fn request_back(&mut self, first: DrcIndex, count: u32) {
        let is_like_qemu = self.has_qemu_rules;
        self.change_connectors(first, count, |connector| {
            assert!(
                connector.is_backed || !is_like_qemu,
                "QEMU aborts: {} is gone",
                connector.index
            );
            connector.wanted_back = connector.is_backed && (connector.is_usable || !is_like_qemu);
            connector.is_backed &= connector.is_usable || !is_like_qemu;
        });
    }

    fn change_connectors(
        &mut self,
        first: DrcIndex,
        count: u32,
        mut change: impl FnMut(&mut Connector),
    ) {
        let all = u64::from(first.0)..u64::from(first.0) + u64::from(count);
        let is_in_range = |connector: &&mut Connector| all.contains(&u64::from(connector.index.0));
        self.connectors.iter_mut().filter(is_in_range).for_each(&mut change);
    }

    /// Returns the number of times that the kernel has refused to return memory that the host asked
    /// for.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Returns the number of updates of the device tree.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Returns the property that was written last, or an empty slice.
    #[must_use]
    pub fn property(&self) -> &[u8] {
        self.tree.get(..self.tree_len).unwrap_or(&[])
    }

    /// Returns all connectors.
    #[must_use]
    pub fn connectors(&self) -> &[Connector] {
        self.connectors
    }

    fn find(&mut self, index: DrcIndex) -> Option<&mut Connector> {
        let is_match =
            |position: &usize| self.connectors.get(*position).is_some_and(|c| c.index == index);
        let near = [self.hint, self.hint + 1].into_iter().find(is_match);
        let position = near.or_else(|| {
            self.connectors.binary_search_by_key(&index, |connector| connector.index).ok()
        })?;
        self.hint = position;
        self.connectors.get_mut(position)
    }

    /// Cancels the host's request for memory.
    fn cancel_host_request(&mut self) {
        self.refusals += 1;
        self.connectors.iter_mut().for_each(|connector| connector.wanted_back = false);
    }

    fn answer_to(&mut self, request: HypervisorRequest) -> Answer {
        self.calls += 1;
        (self.answer)(request)
    }
}

impl<F: FnMut(HypervisorRequest) -> Answer> Connectors for Hypervisor<'_, F> {
    fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32) {
        match self.answer_to(HypervisorRequest::Connector(connector, Call::Sense)) {
            Answer::Status(status) | Answer::CarriedOutBut(status) => return (status, 0),
            Answer::State(state) => return (0, state),
            Answer::CarryOut | Answer::CarriedOutTwice | Answer::List(_) => {}
        }
        match self.find(connector) {
            Some(connector) => (0, if connector.is_usable { 1 } else { 2 }),
            None => (PARAMETER_ERROR, 0),
        }
    }

    fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32 {
        let call = if usable { Call::SetUsable } else { Call::SetUnusable };
        let answer = self.answer_to(HypervisorRequest::Connector(connector, call));
        answer.status(|| self.carry_out_allocation(connector, usable))
    }

    fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32 {
        let call = if isolated { Call::Isolate } else { Call::Unisolate };
        let answer = self.answer_to(HypervisorRequest::Connector(connector, call));
        answer.status(|| self.carry_out_isolation(connector, isolated))
    }

    fn configure(
        &mut self,
        connector: DrcIndex,
        list: &mut [u32; MAX_LIST_LEN],
    ) -> (i32, Option<usize>) {
        let mut len = self.list_len;
        let answer = self.answer_to(HypervisorRequest::Connector(connector, Call::Configure));
        match answer {
            Answer::Status(status) => return (status, None),
            Answer::List(list_len) => len = list_len,
            _ => {}
        }
        let is_like_qemu = self.has_qemu_rules;
        let Some(connector) = self.find(connector) else { return (PARAMETER_ERROR, None) };
        if is_like_qemu && (connector.is_isolated || !connector.is_usable) {
            return (NOT_CONFIGURABLE, None);
        }
        connector.configured = true;
        let node = connector.node;
        if is_like_qemu && connector.wanted_back {
            // QEMU treats this call as the end of a failed removal.
            self.cancel_host_request();
        }
        if let Some(last) = len.checked_sub(1) {
            list.fill(0);
            if let Some(entry) = list.get_mut(last) {
                *entry = node;
            }
        }
        (answer.status(|| 0), (len > 0).then_some(len))
    }

    fn update(&mut self, memory: PropertyValue<'_>, _: Option<PropertyValue<'_>>) -> i32 {
        let answer = self.answer_to(HypervisorRequest::Update);
        answer.status(|| {
            let len = memory.len();
            match self.tree.get_mut(..len) {
                Some(tree) => self.tree_len = memory.copy_to(tree),
                None => return PARAMETER_ERROR,
            }
            self.updates += 1;
            0
        })
    }
}

impl<F: FnMut(HypervisorRequest) -> Answer> Hypervisor<'_, F> {
    fn carry_out_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32 {
        let is_like_qemu = self.has_qemu_rules;
        match self.find(connector) {
            None => PARAMETER_ERROR,
            // Accessible memory cannot be taken away.
            Some(connector) if !connector.is_isolated => INVALID_STATE,
            Some(connector)
                if is_like_qemu
                    && usable
                    && !connector.is_usable
                    && !connector.may_become_usable() =>
            {
                PARAMETER_ERROR
            }
            Some(connector) => {
                connector.is_usable = usable;
                if is_like_qemu && !usable && connector.wanted_back {
                    (connector.is_backed, connector.wanted_back) = (false, false);
                }
                0
            }
        }
    }

    fn carry_out_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32 {
        let is_like_qemu = self.has_qemu_rules;
        let Some(found) = self.find(connector) else { return PARAMETER_ERROR };
        if !found.is_usable {
            return INVALID_STATE;
        }
        match (found.is_isolated, isolated) {
            (true, true) => 0,
            (false, true) if is_like_qemu && !found.configured => PARAMETER_ERROR,
            (false, true) if is_like_qemu && !found.wanted_back => HARDWARE_ERROR,
            (false, true) => {
                (found.is_isolated, found.configured) = (true, false);
                0
            }
            (true, false) => {
                (found.is_isolated, found.configured) = (false, false);
                0
            }
            // Changes nothing, but reports to the host that the kernel keeps this memory.
            (false, false) => {
                if found.wanted_back {
                    self.cancel_host_request();
                }
                0
            }
        }
    }
}

impl Connector {
    /// Returns connectors that agree with a table, in the order of their indices.
    pub fn of(table: &Table<'_>) -> impl Iterator<Item = Connector> {
        table.by_drc_index().filter_map(|lmb| {
            let assigned = lmb.flags & crate::FLAG_ASSIGNED != 0;
            Some(Connector {
                index: lmb.drc_index?,
                is_usable: assigned,
                is_isolated: !assigned,
                node: lmb.node.map_or(0, |node| node.0),
                configured: assigned,
                is_backed: assigned,
                wanted_back: false,
            })
        })
    }

    /// Returns whether QEMU allows the memory to become usable.
    fn may_become_usable(&self) -> bool {
        self.is_backed && !self.wanted_back
    }
}

impl<F> fmt::Debug for Hypervisor<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hypervisor")
            .field("connectors", &self.connectors.len())
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}
