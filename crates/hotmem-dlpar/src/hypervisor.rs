//! A simulated PAPR hypervisor: tracks the state of each connector, refuses calls out of order, and
//! injects errors, delays and malformed replies where it is told to.

use crate::connector_error::Call;
use crate::connectors::{Connectors, LONGEST_LIST};
use crate::property::DrcIndex;
use crate::table::Table;
use crate::write::Written;
use core::fmt;

/// Status: the hardware fails; QEMU's answer to isolating memory that the host does not want back.
pub const HARDWARE_ERROR: i32 = -1;
/// Status: an argument makes no sense.
pub const PARAMETER_ERROR: i32 = -3;
/// Status: not in this state.
pub const INVALID_STATE: i32 = -9000;

/// Status: an isolated connector cannot be configured.
pub const NOT_CONFIGURABLE: i32 = -9003;

/// A connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connector {
    /// Its number.
    pub index: DrcIndex,
    /// Its memory belongs to the partition.
    pub usable: bool,
    /// Its memory cannot be used.
    pub isolated: bool,
    /// The node that its memory belongs to.
    pub node: u32,
    /// `ibm,configure-connector` has run to its end since it was unisolated.
    pub configured: bool,
    /// The host has put memory behind it. Matters to a hypervisor [like
    /// QEMU](Hypervisor::set_like_qemu).
    pub backed: bool,
    /// The host has asked for that memory back. Matters there, too.
    pub wanted_back: bool,
}

/// What the hypervisor is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A call for a connector.
    Connector(DrcIndex, Call),
    /// The device tree's new properties.
    Update,
}

/// What it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The truth, having done it.
    True,
    /// This status, having done nothing.
    Status(i32),
    /// Success and this state, where a state is asked for; otherwise the truth.
    State(i32),
    /// A list of this length, where a list is asked for; otherwise the truth.
    List(usize),
}

/// The hypervisor.
pub struct Hypervisor<'a, F = fn(Asked) -> Answer> {
    connectors: &'a mut [Connector],
    /// Where it looks first.
    hint: usize,
    /// Entries of an associativity list, of which the last is the node; 0: it tells none.
    list_len: usize,
    answer: F,
    /// The device tree's property, where it is kept.
    tree: &'a mut [u8],
    tree_len: usize,
    calls: u64,
    updates: u64,
    /// Keeps QEMU's rules.
    strict: bool,
    refusals: u64,
}

impl<'a> Hypervisor<'a> {
    /// Connectors, in the order of their numbers, and room for the property that updates write.
    /// `list_len` as in `ibm,associativity-lookup-arrays`, 0 if connectors tell no lists.
    pub fn new(
        connectors: &'a mut [Connector],
        list_len: usize,
        tree: &'a mut [u8],
    ) -> Hypervisor<'a> {
        Hypervisor {
            connectors,
            hint: 0,
            list_len,
            answer: |_| Answer::True,
            tree,
            tree_len: 0,
            calls: 0,
            updates: 0,
            strict: false,
            refusals: 0,
        }
    }
}

impl<'a, F: FnMut(Asked) -> Answer> Hypervisor<'a, F> {
    /// One that asks `answer` what to say.
    pub fn answering<G: FnMut(Asked) -> Answer>(self, answer: G) -> Hypervisor<'a, G> {
        Hypervisor {
            connectors: self.connectors,
            hint: self.hint,
            list_len: self.list_len,
            answer,
            tree: self.tree,
            tree_len: self.tree_len,
            calls: self.calls,
            updates: self.updates,
            strict: self.strict,
            refusals: self.refusals,
        }
    }

    /// Keeps the rules of QEMU's pseries machine beyond those of PAPR: memory becomes usable only
    /// where the host has put some and does not want it back, a connector is isolated only when it
    /// is configured and the host wants its memory back, configuring one then says that its memory
    /// stays, and memory that has become unusable then is the host's: it cannot be had again.
    pub fn set_like_qemu(&mut self) {
        self.strict = true;
    }

    /// The host puts memory behind `count` connectors from `first` on (`device_add`).
    pub fn plug(&mut self, first: DrcIndex, count: u32) {
        self.each(first, count, |connector| connector.backed = true);
    }

    /// The host asks for that memory back (`device_del`). A hypervisor [like
    /// QEMU](Self::set_like_qemu) takes what is not usable at once.
    ///
    /// # Panics
    /// Such a hypervisor, if it has a part of that memory already: QEMU 7.2 aborts.
    pub fn ask_back(&mut self, first: DrcIndex, count: u32) {
        let strict = self.strict;
        self.each(first, count, |connector| {
            assert!(connector.backed || !strict, "QEMU aborts: {} is gone", connector.index);
            connector.wanted_back = connector.backed && (connector.usable || !strict);
            connector.backed &= connector.usable || !strict;
        });
    }

    fn each(&mut self, first: DrcIndex, count: u32, mut change: impl FnMut(&mut Connector)) {
        let all = u64::from(first.0)..u64::from(first.0) + u64::from(count);
        let named = |connector: &&mut Connector| all.contains(&u64::from(connector.index.0));
        self.connectors.iter_mut().filter(named).for_each(&mut change);
    }

    /// How often the kernel has told the host that memory which it asked for stays.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// How often it was called.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// How often the device tree was updated.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The property that was written last; empty if none was.
    #[must_use]
    pub fn property(&self) -> &[u8] {
        self.tree.get(..self.tree_len).unwrap_or(&[])
    }

    /// All connectors.
    #[must_use]
    pub fn connectors(&self) -> &[Connector] {
        self.connectors
    }

    fn find(&mut self, index: DrcIndex) -> Option<&mut Connector> {
        let is_it = |at: &usize| self.connectors.get(*at).is_some_and(|c| c.index == index);
        let near = [self.hint, self.hint + 1].into_iter().find(is_it);
        let at = near.or_else(|| {
            self.connectors.binary_search_by_key(&index, |connector| connector.index).ok()
        })?;
        self.hint = at;
        self.connectors.get_mut(at)
    }

    /// The host gives up what it asked for.
    fn give_up_asking(&mut self) {
        self.refusals += 1;
        self.connectors.iter_mut().for_each(|connector| connector.wanted_back = false);
    }

    fn ask(&mut self, asked: Asked) -> Answer {
        self.calls += 1;
        (self.answer)(asked)
    }
}

impl<F: FnMut(Asked) -> Answer> Connectors for Hypervisor<'_, F> {
    fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32) {
        match self.ask(Asked::Connector(connector, Call::Sense)) {
            Answer::Status(status) => return (status, 0),
            Answer::State(state) => return (0, state),
            Answer::True | Answer::List(_) => {}
        }
        match self.find(connector) {
            Some(connector) => (0, if connector.usable { 1 } else { 2 }),
            None => (PARAMETER_ERROR, 0),
        }
    }

    fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32 {
        let call = if usable { Call::SetUsable } else { Call::SetUnusable };
        if let Answer::Status(status) = self.ask(Asked::Connector(connector, call)) {
            return status;
        }
        let strict = self.strict;
        match self.find(connector) {
            None => PARAMETER_ERROR,
            // Memory that can be used cannot be taken away.
            Some(connector) if !connector.isolated => INVALID_STATE,
            Some(connector) if strict && usable && !connector.usable && !connector.can_be_had() => {
                PARAMETER_ERROR
            }
            Some(connector) => {
                connector.usable = usable;
                if strict && !usable && connector.wanted_back {
                    (connector.backed, connector.wanted_back) = (false, false);
                }
                0
            }
        }
    }

    fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32 {
        let call = if isolated { Call::Isolate } else { Call::Unisolate };
        if let Answer::Status(status) = self.ask(Asked::Connector(connector, call)) {
            return status;
        }
        let strict = self.strict;
        let Some(found) = self.find(connector) else { return PARAMETER_ERROR };
        if !found.usable {
            return INVALID_STATE;
        }
        match (found.isolated, isolated) {
            (true, true) => 0,
            (false, true) if strict && !found.configured => PARAMETER_ERROR,
            (false, true) if strict && !found.wanted_back => HARDWARE_ERROR,
            (false, true) => {
                (found.isolated, found.configured) = (true, false);
                0
            }
            (true, false) => {
                (found.isolated, found.configured) = (false, false);
                0
            }
            // Nothing to do, and a word to the host: the kernel keeps this memory.
            (false, false) => {
                if found.wanted_back {
                    self.give_up_asking();
                }
                0
            }
        }
    }

    fn configure(
        &mut self,
        connector: DrcIndex,
        list: &mut [u32; LONGEST_LIST],
    ) -> (i32, Option<usize>) {
        let mut len = self.list_len;
        match self.ask(Asked::Connector(connector, Call::Configure)) {
            Answer::Status(status) => return (status, None),
            Answer::List(other) => len = other,
            Answer::True | Answer::State(_) => {}
        }
        let strict = self.strict;
        let Some(connector) = self.find(connector) else { return (PARAMETER_ERROR, None) };
        if strict && (connector.isolated || !connector.usable) {
            return (NOT_CONFIGURABLE, None);
        }
        connector.configured = true;
        let node = connector.node;
        if strict && connector.wanted_back {
            // QEMU takes it for the end of a removal that has failed.
            self.give_up_asking();
        }
        if let Some(last) = len.checked_sub(1) {
            list.fill(0);
            if let Some(entry) = list.get_mut(last) {
                *entry = node;
            }
        }
        (0, (len > 0).then_some(len))
    }

    fn update(&mut self, memory: Written<'_>, _: Option<Written<'_>>) -> i32 {
        if let Answer::Status(status) = self.ask(Asked::Update) {
            return status;
        }
        let len = memory.len();
        match self.tree.get_mut(..len) {
            Some(tree) => self.tree_len = memory.copy_to(tree),
            None => return PARAMETER_ERROR,
        }
        self.updates += 1;
        0
    }
}

impl Connector {
    /// The connectors of a table, in the order of their numbers, as they are if the table is right.
    pub fn of(table: &Table<'_>) -> impl Iterator<Item = Connector> {
        table.by_drc_index().filter_map(|lmb| {
            let assigned = lmb.flags & crate::FLAG_ASSIGNED != 0;
            Some(Connector {
                index: lmb.drc_index?,
                usable: assigned,
                isolated: !assigned,
                node: lmb.node.number(),
                configured: assigned,
                backed: assigned,
                wanted_back: false,
            })
        })
    }

    /// Whether QEMU makes its memory usable.
    fn can_be_had(&self) -> bool {
        self.backed && !self.wanted_back
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
