//! Makes a whole machine for tests (engine, kernel, hypervisor and table), and snapshots of its
//! state.

use crate::common::{Entry, TableStorage, arrays, bytes, size, v2};
use hotmem::*;
use hotmem_dlpar::hypervisor::{Answer, Connector, Hypervisor, HypervisorRequest};
use hotmem_dlpar::{
    Between, Connectors, Dlpar, DrcIndex, DynamicMemory, FLAG_AI_INVALID, FLAG_ASSIGNED,
    FLAG_DRC_INVALID, FLAG_RESERVED, Failure, FinalState, LookupArrays, MAX_LIST_LEN, Machine,
    Next, Numa, Progress, Refused, Request, Summary, Table, Version, Wait, Which, Written,
};
use hotmem_testkit::Memory;
use hotmem_testkit::Validated as _;
use hotmem_testkit::link::boot_linked;
use hotmem_testkit::link::{Link, Maps, lend};
use std::cell::RefCell;
use std::collections::BTreeSet;

pub(crate) const LMB: u64 = 16 << 20;
const FRAMES: u64 = LMB / 4096;
const SECTION: u64 = 8 * FRAMES;
/// The number of LMBs of boot memory.
const BOOT: u64 = 4;
/// The number of LMBs after boot memory.
pub(crate) const ALL: u64 = 24;
pub(crate) const FIRST: u32 = 0x8000_0000;

/// Returns the property's initial entries. The connector of each LMB reports its node; the property
/// names only some.
pub(crate) fn entries() -> Vec<Entry> {
    let mut entries: Vec<_> = (0..BOOT)
        .map(|nth| Entry {
            address: nth * LMB,
            index: 0,
            reserved: 0,
            aa_index: u32::MAX,
            flags: FLAG_RESERVED | FLAG_DRC_INVALID,
        })
        .collect();
    for nth in 0..ALL {
        let address = position(nth) * LMB;
        let index = FIRST + u32::try_from(nth).expect("the number fits in 32 bits");
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

/// Returns the position of an LMB in units of LMBs. Each node begins in a section of its own, and
/// there is a hole before LMB 10.
fn position(nth: u64) -> u64 {
    nth + match node_of(nth) {
        0 => BOOT,
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

/// Returns the ranges of the LMBs with connectors, in order.
pub(crate) fn lmbs() -> Vec<(DrcIndex, PfnRange)> {
    let range = |entry: &Entry| PfnRange::from_bytes(entry.address, Bytes(LMB)).expect("small");
    let all = entries();
    let known = all.iter().filter(|entry| entry.flags & FLAG_DRC_INVALID == 0);
    known.map(|entry| (DrcIndex(entry.index), range(entry))).collect()
}

/// Allocates memory for all LMBs and the holes.
pub(crate) fn ram() -> Memory {
    Memory::new((position(ALL - 1) + 1) * FRAMES)
}

/// A kernel that needs page tables, vetoes on demand, and records its calls.
#[derive(Default)]
pub(crate) struct Kernel {
    pub(crate) tables: u64,
    /// The number of tables that it needs after an unmapping.
    pub(crate) tables_after_unmap: Option<u64>,
    pub(crate) veto_online: BTreeSet<PfnKey>,
    pub(crate) veto_offline: BTreeSet<PfnKey>,
    /// How often it vetoes before it agrees.
    pub(crate) vetoes_left: Option<u32>,
    /// Whether sections that are added as a whole hold their own descriptors.
    pub(crate) keeps: bool,
    /// Pageblocks whose descriptors lie in their own section.
    own: BTreeSet<u64>,
    mapped: BTreeSet<u64>,
    spare: Vec<(Pfn, u64)>,
}

type PfnKey = u64;

fn any_in(set: &BTreeSet<u64>, range: PfnRange) -> bool {
    set.range(range.start().number()..range.end().number()).next().is_some()
}

impl Maps for Kernel {
    fn tables_needed(&self, range: PfnRange) -> u64 {
        self.tables * (range.frames() / FRAMES).max(1)
    }

    fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        for block in range.chunks(512) {
            assert!(self.mapped.insert(block.start().number()), "mapped twice");
        }
        for _ in 0..self.tables {
            self.spare.push((take().expect("as asked for"), range.start().number()));
        }
    }

    fn unmap(&mut self, range: PfnRange) {
        self.tables = self.tables_after_unmap.unwrap_or(self.tables);
        for block in range.chunks(512) {
            assert!(self.mapped.remove(&block.start().number()), "not mapped");
        }
    }

    fn remap(&mut self, range: PfnRange) {
        for block in range.chunks(512) {
            assert!(self.mapped.insert(block.start().number()), "mapped twice");
        }
    }

    fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let is_gone = |at: u64| range.contains(Pfn::new(at).expect("small"));
        for (table, _) in self.spare.extract_if(.., |(_, at)| is_gone(*at)) {
            free(table);
        }
    }

    fn descriptor_pageblocks(&self, _: PfnRange) -> u64 {
        u64::from(self.keeps)
    }

    fn describe(&mut self, range: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {
        let whole = range.sections().filter(|piece| self.keeps && piece.frames() == SECTION);
        self.own.extend(whole.flat_map(|piece| piece.chunks(512)).map(|b| b.start().number()));
    }

    fn undescribe(&mut self, range: PfnRange, _: &mut dyn FnMut(Pfn)) {
        self.own.retain(|&block| !range.contains(Pfn::new(block).expect("small")));
        for start in range
            .sections()
            .map(PfnRange::start)
            .filter(|start| start.number().is_multiple_of(SECTION))
        {
            let section = PfnRange::with_len(start, SECTION).expect("small");
            assert!(!any_in(&self.own, section), "its descriptors lie in removed memory");
        }
    }
}

impl Hooks for Kernel {
    fn going_online(&mut self, range: PfnRange, _: Zone) -> Result<(), Veto> {
        let vetoed = any_in(&self.veto_online, range);
        self.veto_if(vetoed)
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        let vetoed = any_in(&self.veto_offline, range);
        self.veto_if(vetoed)
    }
}

impl Kernel {
    fn veto_if(&mut self, vetoed: bool) -> Result<(), Veto> {
        match &mut self.vetoes_left {
            _ if !vetoed => return Ok(()),
            Some(0) => return Ok(()),
            Some(left) => *left -= 1,
            None => {}
        }
        Err(Veto("not this one"))
    }
}

/// Decides the hypervisor's answer to each call.
pub(crate) type Script = Box<dyn FnMut(u64, HypervisorRequest) -> Answer>;

/// The state of a machine between two requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Snapshot {
    pub(crate) lmbs: Vec<(State, u32)>,
    nodes: Vec<u64>,
    /// Frames in use, without the engine's own.
    used: u64,
    present: u64,
    mapped: BTreeSet<u64>,
    pub(crate) property: Vec<u8>,
    arrays: Vec<u8>,
    connectors: Vec<Connector>,
}

/// A machine that exists during one call.
pub(crate) struct World<'w, 'f> {
    pub(crate) dlpar: Dlpar<'w, 'f, OneCpu>,
    pub(crate) hotplug: Hotplug<'f, OneCpu, Link<Kernel>>,
    pub(crate) kernel: Kernel,
    pub(crate) hypervisor: Hypervisor<'w, Box<dyn FnMut(HypervisorRequest) -> Answer + 'w>>,
    script: &'w RefCell<(u64, Script)>,
    /// The number of LMBs that requests reported as not restored.
    pub(crate) excused: u32,
    /// The refusals that the last request reported to the platform.
    pub(crate) refused: Vec<Refused>,
}

/// Forwards all calls, and records the reported refusals.
struct Platform<'p, C> {
    hypervisor: &'p mut C,
    refused: &'p mut Vec<Refused>,
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

    fn update(&mut self, memory: Written<'_>, arrays: Option<Written<'_>>) -> i32 {
        self.hypervisor.update(memory, arrays)
    }

    fn refused(&mut self, refused: &Refused) {
        self.refused.push(*refused);
    }
}

/// Boots a machine and passes it to `f`.
pub(crate) fn with<T>(f: impl FnOnce(&mut World<'_, '_>) -> T) -> T {
    with_lmbs(&entries(), node_of, |world| {
        world.check();
        f(world)
    })
}

/// Boots a machine with these LMBs and passes it to `f`.
pub(crate) fn with_lmbs<T>(
    entries: &[Entry],
    node_of: impl Fn(u64) -> u32,
    f: impl FnOnce(&mut World<'_, '_>) -> T,
) -> T {
    let property = v2(entries, LMB);
    let memory =
        DynamicMemory::parse(Version::V2, &property, size(LMB)).expect("the value is valid");
    let lists = arrays(&[0, 1, 2]);
    let lists = LookupArrays::parse(&lists).expect("the value is valid");
    let numa = Numa { primary_domain: Some(4), ..Numa::OFF };
    let mut kept = TableStorage::of(&memory, &lists);
    let table = Table::new(&memory, &lists, numa, kept.storage()).expect("the value is valid");
    let mut connectors: Vec<_> = Connector::of(&table).collect();
    for (nth, connector) in connectors.iter_mut().enumerate() {
        connector.node = node_of(nth as u64);
    }
    let script: RefCell<(u64, Script)> = RefCell::new((0, Box::new(|_, _| Answer::CarryOut)));
    let mut tree = vec![0; 1 << 12];
    let answer: Box<dyn FnMut(HypervisorRequest) -> Answer + '_> = Box::new(|asked| {
        let (calls, script) = &mut *script.borrow_mut();
        *calls += 1;
        script(*calls - 1, asked)
    });
    let hypervisor = Hypervisor::new(&mut connectors, 4, &mut tree).answering(answer);

    let (ram, frames) = (ram(), Frames::new(OneCpu));
    let mut hotplug = boot_linked(&frames, &ram, BOOT * FRAMES);
    let mut kernel = Kernel::default();
    let adopted = lend(&mut hotplug, &mut kernel, |hotplug, hooks| {
        table.adopt(hotplug, hooks, OnlineType::Movable)
    });
    adopted.expect("room");
    let dlpar = Dlpar::new(table, &hotplug);
    let mut world = World {
        dlpar,
        hotplug,
        kernel,
        hypervisor,
        script: &script,
        excused: 0,
        refused: Vec::new(),
    };
    f(&mut world)
}

impl<'f> World<'_, 'f> {
    /// Makes `script` decide the answers from now on; calls are counted from 0.
    pub(crate) fn script(&self, script: impl FnMut(u64, HypervisorRequest) -> Answer + 'static) {
        *self.script.borrow_mut() = (0, Box::new(script));
    }

    /// Makes the hypervisor answer truthfully again. Returns the number of calls since the last
    /// script began.
    pub(crate) fn answer_truthfully(&self) -> u64 {
        let calls = self.script.borrow().0;
        self.script(|_, _| Answer::CarryOut);
        calls
    }

    pub(crate) fn request(
        &mut self,
        change: hotmem_dlpar::Change,
        which: Which,
    ) -> Result<Summary, Failure> {
        self.run(new(change, which), Budget::UNLIMITED, |_| false)
    }

    /// Begins a request and polls it to the end; `on_wait` says whether to cancel instead of
    /// waiting.
    pub(crate) fn run(
        &mut self,
        request: Request,
        budget: Budget,
        on_wait: impl FnMut(Wait) -> bool,
    ) -> Result<Summary, Failure> {
        self.refused.clear();
        if let Err(error) = self.dlpar.begin(request) {
            let result = Err(error.into());
            self.finished(&result);
            return result;
        }
        self.poll_to_the_end(budget, on_wait)
    }

    /// Polls the open request to the end.
    pub(crate) fn poll_to_the_end(
        &mut self,
        budget: Budget,
        mut on_wait: impl FnMut(Wait) -> bool,
    ) -> Result<Summary, Failure> {
        for _ in 0..100_000 {
            match self.poll(budget) {
                Progress::Ready(result) => {
                    self.finished(&result);
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
        panic!("a request without an end: {:?}", self.dlpar);
    }

    /// Begins a request and polls it once.
    pub(crate) fn begin(&mut self, request: Request, budget: Budget) -> Progress {
        self.refused.clear();
        self.dlpar.begin(request).expect("can be begun");
        self.poll(budget)
    }

    pub(crate) fn poll(&mut self, budget: Budget) -> Progress {
        let World { dlpar, hotplug, kernel, hypervisor, refused, .. } = self;
        let mut platform = Platform { hypervisor, refused };
        lend(hotplug, kernel, |hotplug, hooks| {
            dlpar.poll(&mut Machine { hotplug, hooks, connectors: &mut platform }, budget)
        })
    }

    /// Carries the request out by [`Dlpar::carry_out`]; `between` decides whether to continue.
    pub(crate) fn carry_out(
        &mut self,
        request: Request,
        between: impl FnMut(Between) -> Next,
    ) -> Result<Summary, Failure> {
        self.refused.clear();
        let World { dlpar, hotplug, kernel, hypervisor, refused, .. } = self;
        let mut platform = Platform { hypervisor, refused };
        lend(hotplug, kernel, |hotplug, hooks| {
            let mut machine = Machine { hotplug, hooks, connectors: &mut platform };
            dlpar.carry_out(request, &mut machine, Budget { pageblocks: 1 }, between)
        })
    }

    pub(crate) fn finished(&mut self, result: &Result<Summary, Failure>) {
        let (unrestored, lost) = match result {
            Ok(summary) => (summary.unrestored, summary.lost),
            Err(failure) => (failure.unrestored, failure.lost),
        };
        let told = |left| self.refused.iter().filter(|refused| refused.left == left).count() as u32;
        assert_eq!(
            (told(FinalState::Unrestored), told(FinalState::Lost)),
            (unrestored, lost),
            "{result:?}"
        );
        if let Ok(summary) = result {
            // Each LMB is reported once.
            let passed_over: BTreeSet<_> = self.refused.iter().map(|r| r.connector).collect();
            assert_eq!(summary.skipped as usize, passed_over.len(), "{:?}", self.refused);
            assert_eq!(summary.because, self.refused.first().map(|refused| refused.error));
        }
        self.excused += unrestored + lost;
        self.check();
    }

    /// Checks that table, engine and hypervisor agree about every LMB that was not reported.
    pub(crate) fn check(&mut self) {
        self.hotplug.frames().validated().expect("the engine is consistent");
        let mut odd = 0;
        for ((index, range), connector) in lmbs().into_iter().zip(self.hypervisor.connectors()) {
            let lmb = self.dlpar.table().by_index(index).expect("known");
            assert_eq!((lmb.range, connector.index), (range, index));
            let present = match self.hotplug.state_at(range.start(), range.end()) {
                (whole, State::Offline | State::Online | State::OnlineMovable) => {
                    assert_eq!(whole, range);
                    true
                }
                (whole, State::Absent | State::Device | State::Unknown) => {
                    assert_eq!(whole, range);
                    false
                }
            };
            let assigned = lmb.flags & FLAG_ASSIGNED != 0;
            let usable = connector.usable && !connector.isolated;
            odd += u32::from(present != assigned || assigned != usable);
        }
        assert!(odd <= self.excused, "{odd} LMBs differ, {} were reported", self.excused);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = |(index, range): (DrcIndex, PfnRange)| {
            let lmb = self.dlpar.table().by_index(index).expect("known");
            let state = match self.hotplug.state_at(range.start(), range.end()).1 {
                // It makes no difference whether the memory is announced.
                State::Unknown => State::Absent,
                state => state,
            };
            (state, lmb.flags)
        };
        let zone = |node: u32, zone| {
            let zone = self.hotplug.zone(NodeId(node), zone);
            [zone.online, zone.spanned.start().number(), zone.spanned.end().number()]
        };
        let counts = self.hotplug.frames().counts();
        let metadata = self.hotplug.frames().metadata().map(|metadata| metadata.frames.frames());
        Snapshot {
            lmbs: lmbs().into_iter().map(state).collect(),
            nodes: (0..4)
                .flat_map(|node| Zone::ALL.into_iter().flat_map(move |z| zone(node, z)))
                .collect(),
            used: counts.used() - metadata.sum::<u64>(),
            present: counts.present,
            mapped: self.kernel.mapped.clone(),
            property: bytes(self.dlpar.table().dynamic_memory()),
            arrays: bytes(self.dlpar.table().lookup_arrays()),
            connectors: self.hypervisor.connectors().to_vec(),
        }
    }

    /// Returns the LMBs that the partition has, by their number among those with connectors.
    pub(crate) fn assigned(&self) -> BTreeSet<u64> {
        let is = |index: DrcIndex| {
            self.dlpar.table().by_index(index).is_some_and(|lmb| lmb.flags & FLAG_ASSIGNED != 0)
        };
        (0..ALL).filter(|&nth| is(lmbs()[usize::try_from(nth).expect("few")].0)).collect()
    }
}

pub(crate) fn new(change: hotmem_dlpar::Change, which: Which) -> Request {
    Request::new(change, which).online_as(OnlineType::Movable)
}
