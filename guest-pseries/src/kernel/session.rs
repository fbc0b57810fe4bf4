//! The main loop: reads events, carries out requests one after another, and uses memory.

use super::balloon::Balloon;
use super::boot::Machine;
use super::console::Console;
use super::exit::{give_up, must};
use super::firmware;
use super::hooks::Kernel;
use super::memory;
use super::pins::Pins;
use super::report::{Event, Outcome, say};
use super::time::{ns_since, pause, ticks};
use super::workload::Workload;
use hotmem::{Budget, Bytes, Hotplug, NodeId, OneCpu, PfnRange, geometry::PAGEBLOCK_FRAMES};
use hotmem_dlpar::{
    Change, Dlpar, DrcIndex, Error, Failure, Group, Progress, Request, Run, Storage, Summary,
    Table, Wait, Which,
};
use hotmem_guest::report::Report;
use hotmem_guest_pseries::connectors::RtasConnectors;
use hotmem_guest_pseries::event_log;
use hotmem_guest_pseries::faults::Faulty;
use hotmem_guest_pseries::options::Options;
use hotmem_guest_pseries::rtas::Rtas;

/// The maximal number of LMBs, for a machine of 2 TiB.
const MOST_LMBS: usize = 8192;
const MOST_ARRAYS: usize = 16 * 64;
/// The maximal size of an event log in bytes. QEMU's have 116.
const MOST_LOG: usize = 2048;
/// The maximal number of requests that wait while one is carried out.
const MOST_WAITING: usize = 64;
/// The delay between two polls for events when there is nothing else to do.
const IDLE_US: u64 = 100;

static mut GROUPS: [Group; MOST_LMBS / 64] = [Group::EMPTY; MOST_LMBS / 64];
static mut RUNS: [Run; MOST_LMBS] = [Run::EMPTY; MOST_LMBS];
static mut BY_INDEX: [u32; MOST_LMBS] = [0; MOST_LMBS];
static mut ARRAYS: [u32; MOST_ARRAYS] = [0; MOST_ARRAYS];

struct Session {
    options: Options,
    dlpar: Dlpar<'static, 'static, OneCpu>,
    hotplug: Hotplug<'static, OneCpu>,
    kernel: Kernel,
    connectors: RtasConnectors<Faulty<firmware::Machine>>,
    balloon: Option<Balloon>,
    report: Report<Console>,
    waiting: [Option<Waiting>; MOST_WAITING],
    /// The time since which the open request waits.
    waits_since: Option<u64>,
    /// The wait because of which it was cancelled.
    cancelled_for: Option<Wait>,
    /// The status of the last poll for events, if it failed.
    no_events: Option<i32>,
    /// The number of requests that have ended.
    over: u32,
}

/// A request that has not begun yet, and the time of its event.
#[derive(Clone, Copy)]
struct Waiting {
    request: Request,
    since: u64,
}

/// Runs until as many requests have ended as the command line says.
pub(super) fn run(machine: Machine) -> ! {
    let mut session = Session::start(&machine);
    session.say_ready(&machine);
    let mut open = None;
    while machine.options.exit == 0 || session.over < machine.options.exit {
        let took_event = session.take_event();
        if open.is_none() {
            open = session.waiting[0].take();
            session.waiting.rotate_left(1);
            if let Some(next) = open
                && let Err(error) = session.dlpar.begin(next.request)
            {
                session.not_begun(next, error);
                open = None;
            }
        }
        match open {
            Some(asked) => {
                if let Some(result) = session.go_on() {
                    session.finished(asked, &result);
                    open = None;
                }
            }
            None if took_event || session.step_balloon() => {}
            None => pause(IDLE_US),
        }
    }
    session.end()
}

impl Session {
    fn start(machine: &Machine) -> Session {
        // SAFETY: this runs once, and nothing else uses these statics.
        let storage = unsafe {
            Storage {
                groups: lend(&raw mut GROUPS),
                runs: lend(&raw mut RUNS),
                by_index: lend(&raw mut BY_INDEX),
                arrays: lend(&raw mut ARRAYS),
            }
        };
        let tree = &machine.tree;
        let table = must("LMBs", Table::new(&tree.memory, &tree.arrays, tree.numa, storage));
        let mut report = Report::begin(Console);
        let mut hotplug = memory::start(machine);
        let mut kernel = Kernel {
            workload: Workload::new(),
            pins: Pins::new(machine.options.pin),
            vetoes: 0,
            balloon: None,
        };
        must("announcing the LMBs", table.announce(&mut hotplug));
        let online = machine.options.online;
        must("memory of the start", table.adopt(&mut hotplug, &mut kernel, online));
        report.ok("boot");
        kernel.vetoes = machine.options.veto;
        let balloon = must("virtio-balloon", Balloon::find(machine.pci));
        let balloon = balloon.map(|(balloon, memory)| {
            kernel.balloon = Some(memory);
            balloon
        });
        let mut dlpar = Dlpar::new(table, &hotplug);
        dlpar.set_online_as(online);
        let fault = machine.options.fault;
        let firmware = Faulty::new(firmware::Machine, machine.tokens, fault);
        let rtas = Rtas::new(firmware, machine.tokens);
        Session {
            options: machine.options,
            dlpar,
            hotplug,
            kernel,
            connectors: RtasConnectors::new(rtas),
            balloon,
            report,
            waiting: [None; MOST_WAITING],
            waits_since: None,
            cancelled_for: None,
            no_events: None,
            over: 0,
        }
    }

    fn say_ready(&self, machine: &Machine) {
        let boot_memory =
            machine.memory.iter().fold(Bytes::ZERO, |sum, (piece, _)| sum + piece.bytes());
        let table = self.dlpar.table();
        say(&Event::Ready {
            boot_memory,
            lmbs: table.len(),
            lmb_size: table.lmb_size().bytes(),
            assigned: self.assigned(),
            online: memory::online_and_free().0,
        });
    }

    /// Returns the number of removable LMBs of the partition.
    fn assigned(&self) -> u64 {
        let table = self.dlpar.table();
        table.assigned().map(|(range, _)| range.frames() / table.lmb_size().frames()).sum()
    }

    /// Polls for an event. Returns whether there was one.
    fn take_event(&mut self) -> bool {
        let mut log = [0; MOST_LOG];
        match self.connectors.rtas.check_exception(&mut log) {
            Ok(false) => return false,
            Ok(true) => self.no_events = None,
            Err(status) => {
                // Reported once, because the poll is repeated soon.
                if self.no_events.replace(status) != Some(status) {
                    let why = format_args!("check-exception: status {status}");
                    say(&Event::Garbled { why: &why });
                }
                return false;
            }
        }
        let since = ticks();
        if self.options.by_index {
            replay_by_index(&mut log);
        }
        match event_log::Event::parse(&log) {
            Ok(event_log::Event::Hotplug(hotplug)) => match hotplug.request() {
                Some(request) => {
                    say(&Event::Asked { request });
                    self.wait_for_turn(Waiting { request, since });
                }
                None => say(&Event::Ignored),
            },
            Ok(event_log::Event::Other(_)) => say(&Event::Ignored),
            Err(error) => say(&Event::Garbled { why: &error }),
        }
        true
    }

    fn wait_for_turn(&mut self, asked: Waiting) {
        match self.waiting.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(asked),
            None => give_up("more requests than can wait"),
        }
    }

    /// Continues the open request. Returns its result once it has ended.
    fn go_on(&mut self) -> Option<Result<Summary, Failure>> {
        let Session { dlpar, hotplug, kernel, connectors, options, .. } = self;
        let pageblocks = dlpar.table().lmb_size().frames() / PAGEBLOCK_FRAMES as u64;
        let budget = Budget { pageblocks: pageblocks * u64::from(options.at_once.max(1)) };
        let mut machine = hotmem_dlpar::Machine { hotplug, hooks: kernel, connectors };
        match dlpar.poll(&mut machine, budget) {
            Progress::Ready(result) => {
                self.waits_since = None;
                Some(result)
            }
            Progress::Working => {
                self.waits_since = None;
                None
            }
            Progress::Pending(wait) => {
                self.wait(wait);
                None
            }
            Progress::Idle => give_up("no request is open"),
        }
    }

    /// Waits a little. After too long a wait, cancels the request, and again while it is undone.
    fn wait(&mut self, wait: Wait) {
        let since = *self.waits_since.get_or_insert_with(ticks);
        if ns_since(since) / 1_000_000 >= u64::from(self.options.patience) {
            self.cancelled_for.get_or_insert(wait);
            self.waits_since = None;
            self.dlpar.cancel();
        } else {
            // A short pause suits every reason: this kernel has one CPU, so only the host makes
            // progress meanwhile.
            pause(IDLE_US);
        }
    }

    /// Runs some steps of the balloon's driver between requests. Returns whether there is more to
    /// do at once.
    fn step_balloon(&mut self) -> bool {
        match (&mut self.balloon, &mut self.kernel.balloon) {
            (Some(balloon), Some(memory)) => must("virtio-balloon", balloon.step(memory)),
            _ => false,
        }
    }

    /// Handles a request that cannot be opened. If the host has asked for the removal of specific
    /// LMBs of this partition, reports that they stay.
    fn not_begun(&mut self, asked: Waiting, error: Error) {
        let first = match asked.request.which() {
            Which::Index(first) | Which::Range { first, .. } => Some(first),
            Which::Count(_) => None,
        };
        let first = first.filter(|&first| self.dlpar.table().by_index(first).is_some());
        if let (Change::Remove, Some(first)) = (asked.request.change(), first) {
            let _ = self.connectors.rtas.set_isolation(first, false);
        }
        self.finished(asked, &Err(error.into()));
    }

    fn finished(&mut self, asked: Waiting, result: &Result<Summary, Failure>) {
        let ns = ns_since(asked.since);
        let request = asked.request;
        self.connectors.rtas.firmware.lift();
        let cancelled_for = self.cancelled_for.take();
        let outcome = match result {
            Ok(summary) => Outcome::Carried {
                lmbs: summary.lmbs,
                ranges: summary.ranges,
                skipped: summary.skipped,
                misplaced: summary.misplaced,
            },
            Err(failure) => Outcome::Refused {
                why: failure,
                cancelled_for,
                unrestored: failure.unrestored,
                lost: failure.lost,
            },
        };
        let (online, free) = memory::online_and_free();
        let assigned = self.assigned();
        say(&Event::Done { outcome, request, ns, assigned, online, free, nodes: self.nodes() });
        self.over += 1;
        let range = self.frames_of(request);
        match (request.change(), result) {
            (Change::Add, Ok(_)) => {
                self.kernel.pins.added(range);
                self.touch(range);
            }
            (Change::Remove, Err(_)) => self.kernel.pins.removal_refused(range),
            _ => {}
        }
    }

    /// Checks and frees the memory in use, and then touches as much as the command line says,
    /// preferably of added memory.
    fn touch(&mut self, added: PfnRange) {
        if self.options.touch == Bytes::ZERO {
            return;
        }
        let verified = self.kernel.workload.verify_and_free();
        say(&Event::Verified { bytes: verified });
        let since = ticks();
        self.kernel.workload.touch(self.options.touch, added);
        say(&Event::Touched { bytes: self.kernel.workload.owns(), ns: ns_since(since) });
    }

    fn nodes(&self) -> [Bytes; 8] {
        [0, 1, 2, 3, 4, 5, 6, 7].map(|node| {
            let node = NodeId(node);
            let zones = hotmem::Zone::ALL.map(|zone| self.hotplug.zone(node, zone).online);
            Bytes(zones.iter().sum::<u64>() << 12)
        })
    }

    /// Returns the frames of the LMBs that a request names; an empty range for a request by count.
    fn frames_of(&self, request: Request) -> PfnRange {
        let (first, count) = match request.which() {
            Which::Index(first) => (first, 1),
            Which::Range { first, count } => (first, count),
            Which::Count(_) => return PfnRange::EMPTY,
        };
        let table = self.dlpar.table();
        let last = first.0.checked_add(count.saturating_sub(1)).map(DrcIndex);
        let ends = [Some(first), last].map(|index| table.by_index(index?));
        match ends {
            [Some(first), Some(last)] => {
                PfnRange::new(first.range.start(), last.range.end()).unwrap_or(PfnRange::EMPTY)
            }
            _ => PfnRange::EMPTY,
        }
    }

    fn end(mut self) -> ! {
        let verified = self.kernel.workload.verify_and_free();
        say(&Event::Verified { bytes: verified });
        match memory::validate() {
            Ok(()) => self.report.ok("the engine is consistent"),
            Err(fault) => self.report.not_ok(format_args!("the engine: {fault}")),
        }
        self.report.finish();
        firmware::halt()
    }
}

/// Returns a reference to a static.
///
/// # Safety
/// Nothing else uses the static.
unsafe fn lend<T: ?Sized>(place: *mut T) -> &'static mut T {
    // SAFETY: the caller guarantees it.
    unsafe { &mut *place }
}

/// Changes an event about one LMB from a connector on into an event by that connector's index.
fn replay_by_index(log: &mut [u8; MOST_LOG]) {
    const IDENTIFIER: usize = 106;
    const COUNT: usize = 108;
    const INDEX: usize = 112;
    if log[IDENTIFIER] == 4 && log[COUNT..INDEX] == [0, 0, 0, 1] {
        log[IDENTIFIER] = 2;
        log.copy_within(INDEX..INDEX + 4, COUNT);
    }
}
