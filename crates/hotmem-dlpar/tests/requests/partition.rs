//! Makes a machine for tests, with an engine, a kernel, a hypervisor and a table, and takes snapshots
//! of its state.

use crate::common::{Entry, TableStorage, arrays, bytes, size, v2};
use crate::kernel::Kernel;
use hotmem::*;
use hotmem_dlpar::hypervisor::{Answer, Connector, Hypervisor, HypervisorRequest};
use hotmem_dlpar::{
    Connectors, Dlpar, DrcIndex, DynamicMemory, FLAG_AI_INVALID, FLAG_ASSIGNED, FLAG_DRC_INVALID,
    FLAG_RESERVED, Failure, FinalState, LmbSelection, LookupArrays, MAX_LIST_LEN, Machine, Numa,
    PollState, Progress, PropertyValue, RefusedLmb, Request, Summary, Table, Version, Wait,
};
use hotmem_testkit::Memory;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::boot_forwarding;
use hotmem_testkit::forwarding::{ForwardingMapping, with_kernel};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

pub(crate) const LMB_BYTES: u64 = 16 << 20;
pub(crate) const LMB_FRAMES: u64 = LMB_BYTES / 4096;
/// The number of LMBs of boot memory.
const BOOT_LMBS: u64 = 4;
/// The number of LMBs above boot memory.
pub(crate) const HOTPLUG_LMBS: u64 = 24;
/// The DRC index of the first LMB above boot memory.
pub(crate) const FIRST_INDEX: u32 = 0x8000_0000;
pub(crate) const NUMA: Numa = Numa { primary_domain: Some(4) };

/// Returns the initial entries of the property. The connector of each LMB reports the node of the
/// LMB. The property contains the nodes of only some LMBs.
pub(crate) fn entries() -> Vec<Entry> {
    let mut entries: Vec<_> = (0..BOOT_LMBS)
        .map(|nth| Entry {
            address: nth * LMB_BYTES,
            index: 0,
            reserved: 0,
            aa_index: u32::MAX,
            flags: FLAG_RESERVED | FLAG_DRC_INVALID,
        })
        .collect();
    for nth in 0..HOTPLUG_LMBS {
        let address = position(nth) * LMB_BYTES;
        let index = FIRST_INDEX + u32::try_from(nth).expect("the number fits in 32 bits");
        let flags = match nth {
            3 | 14 => FLAG_RESERVED,
            5 => FLAG_AI_INVALID,
            7 | 8 | 16..=19 => FLAG_ASSIGNED,
            _ => 0,
        };
        let aa_index = if nth % 4 == 1 && flags == 0 { u32::MAX } else { node_of(nth) };
        entries.push(Entry { address, index, reserved: 0, aa_index, flags });
    }
    entries
}

/// Returns the position of an LMB in units of LMBs. The memory of each node begins in a separate
/// section, and there is a hole before LMB 10.
fn position(nth: u64) -> u64 {
    nth + match node_of(nth) {
        0 => BOOT_LMBS,
        1 => 16 - 6 + u64::from(nth >= 10),
        3 => 32 - 13,
        _ => 40 - 14,
    }
}

/// Returns the node that an LMB's connector reports.
pub(crate) fn node_of(nth: u64) -> u32 {
    match nth {
        0..=5 => 0,
        6..=12 => 1,
        13 => 3,
        _ => 2,
    }
}

/// Returns the connector and the range of each LMB that has a connector, in order.
pub(crate) fn lmbs() -> Vec<(DrcIndex, PfnRange)> {
    let range = |entry: &Entry| {
        PfnRange::from_bytes(entry.address, Bytes(LMB_BYTES))
            .expect("the number is below the limit")
    };
    let all = entries();
    let connected = all.iter().filter(|entry| entry.flags & FLAG_DRC_INVALID == 0);
    connected.map(|entry| (DrcIndex(entry.index), range(entry))).collect()
}

/// Allocates memory for all LMBs and the holes.
pub(crate) fn ram() -> Memory {
    Memory::new((position(HOTPLUG_LMBS - 1) + 1) * LMB_FRAMES)
}

/// Decides the hypervisor's answer to each call.
pub(crate) type Script = Box<dyn FnMut(u64, HypervisorRequest) -> Answer>;

/// A machine that exists during one call of [`with_partition`].
pub(crate) struct Partition<'w, 'f> {
    pub(crate) dlpar: Dlpar<'w, 'f, OneCpu>,
    pub(crate) hotplug: Hotplug<'f, OneCpu, ForwardingMapping<Kernel>>,
    pub(crate) kernel: Kernel,
    pub(crate) hypervisor: Hypervisor<'w, Box<dyn FnMut(HypervisorRequest) -> Answer + 'w>>,
    /// The number of calls since the script was set, and the script.
    script: &'w RefCell<(u64, Script)>,
    /// The lookup arrays of the device tree.
    pub(crate) lists: Vec<u8>,
    /// The number of LMBs that requests have reported as unrestored or lost.
    pub(crate) reported_lmbs: u32,
    /// The LMBs that the last request has reported to the platform as refused.
    pub(crate) refused_lmbs: Vec<RefusedLmb>,
}

/// Forwards all calls to the hypervisor, and records the LMBs that are reported as refused.
struct Platform<'p, C> {
    hypervisor: &'p mut C,
    lists: &'p mut Vec<u8>,
    refused_lmbs: &'p mut Vec<RefusedLmb>,
}

impl<C: Connectors> Connectors for Platform<'_, C> {
    fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32) {
        self.hypervisor.entity_sense(connector)
    }

    fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32 {
        self.hypervisor.set_allocation(connector, usable)
    }

    fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32 {
        self.hypervisor.set_isolation(connector, isolated)
    }

    fn configure(
        &mut self,
        connector: DrcIndex,
        list: &mut [u32; MAX_LIST_LEN],
    ) -> (i32, Option<usize>) {
        self.hypervisor.configure(connector, list)
    }

    fn update(&mut self, memory: PropertyValue<'_>, arrays: Option<PropertyValue<'_>>) -> i32 {
        let status = self.hypervisor.update(memory, arrays);
        if let Some(arrays) = arrays
            && status == 0
        {
            *self.lists = bytes(arrays);
        }
        status
    }

    fn refused(&mut self, refused: &RefusedLmb) {
        self.refused_lmbs.push(*refused);
    }
}

/// Boots a machine with the LMBs of [`entries`] and passes it to `f`.
pub(crate) fn with_partition<T>(f: impl FnOnce(&mut Partition<'_, '_>) -> T) -> T {
    with_lmbs(&entries(), node_of, |partition| {
        partition.check();
        f(partition)
    })
}

/// Boots a machine with these LMBs and passes it to `f`.
pub(crate) fn with_lmbs<T>(
    entries: &[Entry],
    node_of: impl Fn(u64) -> u32,
    f: impl FnOnce(&mut Partition<'_, '_>) -> T,
) -> T {
    let property = v2(entries, LMB_BYTES);
    let memory =
        DynamicMemory::parse(Version::V2, &property, size(LMB_BYTES)).expect("the value is valid");
    let lists_property = arrays(&[0, 1, 2]);
    let lists = LookupArrays::parse(&lists_property).expect("the value is valid");
    let mut buffers = TableStorage::of(&memory, &lists);
    let table = Table::new(&memory, &lists, NUMA, buffers.storage()).expect("the value is valid");
    let mut connectors: Vec<_> = Connector::of(&table).collect();
    for (nth, connector) in connectors.iter_mut().enumerate() {
        connector.node = node_of(nth as u64);
    }
    let script: RefCell<(u64, Script)> = RefCell::new((0, Box::new(|_, _| Answer::CarryOut)));
    let mut tree = vec![0; 1 << 12];
    let answer: Box<dyn FnMut(HypervisorRequest) -> Answer + '_> = Box::new(|request| {
        let (calls, script) = &mut *script.borrow_mut();
        *calls += 1;
        script(*calls - 1, request)
    });
    let hypervisor = Hypervisor::new(&mut connectors, 4, &mut tree).answering(answer);

    let (ram, frames) = (ram(), Frames::new(OneCpu));
    let mut hotplug = boot_forwarding(&frames, &ram, BOOT_LMBS * LMB_FRAMES);
    let mut kernel = Kernel::default();
    let adopted = with_kernel(&mut hotplug, &mut kernel, |hotplug, hooks| {
        table.adopt(hotplug, hooks, OnlineType::Movable)
    });
    adopted.expect("memory is free for metadata");
    let dlpar = Dlpar::new(table, &hotplug);
    let mut partition = Partition {
        dlpar,
        hotplug,
        kernel,
        hypervisor,
        script: &script,
        lists: lists_property.clone(),
        reported_lmbs: 0,
        refused_lmbs: Vec::new(),
    };
    f(&mut partition)
}

impl<'f> Partition<'_, 'f> {
    /// Announces all LMBs.
    pub(crate) fn announce(&mut self) {
        self.dlpar.table().announce(&mut self.hotplug).expect("memory is free for metadata");
    }

    /// Takes online memory offline.
    pub(crate) fn take_offline(&mut self, range: PfnRange) {
        let mut offline = self.hotplug.offline(range).expect("the memory is online");
        let progress = offline.poll(&mut self.hotplug, &mut self.kernel, Budget::UNLIMITED);
        assert_eq!(progress, hotmem::Progress::Ready(range));
    }

    /// Sets the script that decides the answers from now on. Calls are counted from 0.
    pub(crate) fn script(&self, script: impl FnMut(u64, HypervisorRequest) -> Answer + 'static) {
        *self.script.borrow_mut() = (0, Box::new(script));
    }

    /// Ends the script, so that the hypervisor carries out all calls. Returns the number of calls since
    /// the script was set.
    pub(crate) fn end_script_and_count_calls(&self) -> u64 {
        let calls = self.script.borrow().0;
        self.script(|_, _| Answer::CarryOut);
        calls
    }

    pub(crate) fn request(
        &mut self,
        change: hotmem_dlpar::Change,
        selection: LmbSelection,
    ) -> Result<Summary, Failure> {
        self.run(movable_request(change, selection), Budget::UNLIMITED, |_| false)
    }

    /// Begins a request and polls it to its end. `on_wait` returns whether to cancel the request
    /// instead of waiting.
    pub(crate) fn run(
        &mut self,
        request: Request,
        budget: Budget,
        on_wait: impl FnMut(Wait) -> bool,
    ) -> Result<Summary, Failure> {
        self.refused_lmbs.clear();
        if let Err(error) = self.dlpar.begin(request) {
            let result = Err(error.into());
            self.check_result(&result);
            return result;
        }
        self.poll_to_end(budget, on_wait)
    }

    /// Polls the open request to its end.
    pub(crate) fn poll_to_end(
        &mut self,
        budget: Budget,
        mut on_wait: impl FnMut(Wait) -> bool,
    ) -> Result<Summary, Failure> {
        for _ in 0..100_000 {
            match self.poll(budget) {
                Progress::Ready(result) => {
                    self.check_result(&result);
                    return result;
                }
                Progress::Working => {}
                Progress::Pending(wait) => {
                    if on_wait(wait) {
                        self.dlpar.cancel();
                    }
                }
                Progress::Idle => panic!("no request is open"),
            }
        }
        panic!("the request does not end: {:?}", self.dlpar);
    }

    /// Begins a request and polls it one time.
    pub(crate) fn begin(&mut self, request: Request, budget: Budget) -> Progress {
        self.refused_lmbs.clear();
        self.dlpar.begin(request).expect("no other request is open");
        self.poll(budget)
    }

    pub(crate) fn poll(&mut self, budget: Budget) -> Progress {
        let Partition { dlpar, hotplug, kernel, hypervisor, lists, refused_lmbs, .. } = self;
        let mut platform = Platform { hypervisor, lists, refused_lmbs };
        with_kernel(hotplug, kernel, |hotplug, hooks| {
            dlpar.poll(&mut Machine { hotplug, hooks, connectors: &mut platform }, budget)
        })
    }

    /// Carries the request out by [`Dlpar::carry_out`]; `after_poll` decides whether to continue.
    pub(crate) fn carry_out(
        &mut self,
        request: Request,
        after_poll: impl FnMut(PollState) -> ControlFlow<()>,
    ) -> Result<Summary, Failure> {
        self.refused_lmbs.clear();
        let Partition { dlpar, hotplug, kernel, hypervisor, lists, refused_lmbs, .. } = self;
        let mut platform = Platform { hypervisor, lists, refused_lmbs };
        with_kernel(hotplug, kernel, |hotplug, hooks| {
            let mut machine = Machine { hotplug, hooks, connectors: &mut platform };
            dlpar.carry_out(request, &mut machine, Budget { pageblocks: 1 }, after_poll)
        })
    }

    /// Compares the counts of a result with the reported LMBs, and checks the machine.
    pub(crate) fn check_result(&mut self, result: &Result<Summary, Failure>) {
        let (unrestored, lost) = match result {
            Ok(summary) => (summary.unrestored, summary.lost),
            Err(failure) => (failure.unrestored, failure.lost),
        };
        let count = |state| {
            self.refused_lmbs.iter().filter(|refused| refused.final_state == state).count() as u32
        };
        assert_eq!(
            (count(FinalState::Unrestored), count(FinalState::Lost)),
            (unrestored, lost),
            "{result:?}"
        );
        if let Ok(summary) = result {
            // An LMB counts as skipped one time even if it is reported twice.
            let skipped: BTreeSet<_> = self.refused_lmbs.iter().map(|r| r.connector).collect();
            assert_eq!(summary.skipped as usize, skipped.len(), "{:?}", self.refused_lmbs);
            assert_eq!(
                summary.first_skip_error,
                self.refused_lmbs.first().map(|refused| refused.error)
            );
        }
        self.reported_lmbs += unrestored + lost;
        self.check();
    }

    /// Checks that the table, the engine and the hypervisor agree about all LMBs, except as many as
    /// were reported.
    pub(crate) fn check(&mut self) {
        self.hotplug.frames().validated().expect("the engine is consistent");
        let mut differing = 0;
        for ((index, range), connector) in lmbs().into_iter().zip(self.hypervisor.connectors()) {
            let lmb = self
                .dlpar
                .table()
                .by_index(index)
                .expect("the table has an LMB with this connector");
            assert_eq!((lmb.range, connector.index), (range, index));
            let present = match self.hotplug.state_at(range.start(), range.end()) {
                (run, State::Offline | State::Removing | State::Online | State::OnlineMovable) => {
                    assert_eq!(run, range);
                    true
                }
                (run, State::Absent | State::Device | State::Unknown) => {
                    assert_eq!(run, range);
                    false
                }
            };
            let assigned = lmb.flags & FLAG_ASSIGNED != 0;
            let usable = connector.is_usable && !connector.is_isolated;
            differing += u32::from(present != assigned || assigned != usable);
        }
        assert!(
            differing <= self.reported_lmbs,
            "{differing} LMBs differ, but only {} were reported",
            self.reported_lmbs
        );
    }

    /// Returns the numbers of the assigned LMBs. The LMBs with connectors are counted from 0.
    pub(crate) fn assigned(&self) -> BTreeSet<u64> {
        let is_assigned = |index: DrcIndex| {
            self.dlpar.table().by_index(index).is_some_and(|lmb| lmb.flags & FLAG_ASSIGNED != 0)
        };
        (0..HOTPLUG_LMBS)
            .filter(|&nth| {
                is_assigned(lmbs()[usize::try_from(nth).expect("the number fits in `usize`")].0)
            })
            .collect()
    }
}

pub(crate) fn movable_request(change: hotmem_dlpar::Change, selection: LmbSelection) -> Request {
    Request::new(change, selection).online_as(OnlineType::Movable)
}
