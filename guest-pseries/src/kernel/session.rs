//! Runs the main loop: reads events, carries out requests one after another, and uses memory.

mod requests;

use super::balloon::Balloon;
use super::boot::Machine;
use super::console::Console;
use super::exit::{give_up, must};
use super::firmware;
use super::hooks::KernelHooks;
use super::memory;
use super::pins::Pins;
use super::report::{Event, write_event};
use super::stack;
use super::time::{ns_since, pause, ticks};
use super::workload::Workload;
use hotmem::{Budget, Bytes, Hotplug, OneCpu, geometry::PAGEBLOCK_FRAMES};
use hotmem_dlpar::{Dlpar, Failure, Group, Progress, Request, Run, Storage, Summary, Table, Wait};
use hotmem_guest::report::Report;
use hotmem_guest_pseries::connectors::RtasConnectors;
use hotmem_guest_pseries::event_log;
use hotmem_guest_pseries::faults::FaultyFirmware;
use hotmem_guest_pseries::options::Options;
use hotmem_guest_pseries::rtas::Rtas;
use hotmem_guest_pseries::work_area::WorkArea;

/// The maximal number of LMBs, for a machine of 2 TiB.
const MAX_LMBS: usize = 8192;
const MAX_ASSOCIATIVITY_WORDS: usize = 16 * 64;
/// The maximal size of an event log in bytes. QEMU's logs have 116 bytes.
const MAX_LOG_BYTES: usize = 2048;
/// The maximal number of requests that wait while another request is carried out.
const MAX_QUEUED: usize = 64;
/// The delay between two polls for events while the kernel has nothing else to do.
const IDLE_US: u64 = 100;

static mut GROUPS: [Group; MAX_LMBS / 64] = [Group::EMPTY; MAX_LMBS / 64];
static mut RUNS: [Run; MAX_LMBS] = [Run::EMPTY; MAX_LMBS];
static mut BY_INDEX: [u32; MAX_LMBS] = [0; MAX_LMBS];
static mut ARRAYS: [u32; MAX_ASSOCIATIVITY_WORDS] = [0; MAX_ASSOCIATIVITY_WORDS];

// The session and its large parts, which would take too much of the stack.
static mut SESSION: Option<Session> = None;
static mut WORK_AREA: WorkArea = WorkArea::new();
static mut HOOKS: Option<KernelHooks> = None;
static mut BALLOON: Option<Balloon> = None;
static mut QUEUE: [Option<QueuedRequest>; MAX_QUEUED] = [None; MAX_QUEUED];
static mut LOG: [u8; MAX_LOG_BYTES] = [0; MAX_LOG_BYTES];

struct Session {
    options: Options,
    dlpar: Dlpar<'static, 'static, OneCpu>,
    hotplug: Hotplug<'static, OneCpu>,
    hooks: &'static mut KernelHooks,
    connectors: RtasConnectors<'static, FaultyFirmware<firmware::Machine>>,
    balloon: &'static mut Option<Balloon>,
    report: Report<Console>,
    queue: &'static mut [Option<QueuedRequest>; MAX_QUEUED],
    /// The request that is to begin again, because the balloon returns the memory that it lacked.
    repeated: Option<QueuedRequest>,
    /// The log of the last event.
    log: &'static mut [u8; MAX_LOG_BYTES],
    /// The time in ticks at which the current request began to wait, or `None` if it does not wait.
    waits_since: Option<u64>,
    /// The condition for which the current request waited when it was cancelled, or `None` if it was
    /// not cancelled.
    cancelled_for: Option<Wait>,
    /// The status of the last poll for events, if the poll failed.
    poll_error: Option<i32>,
    /// The number of requests that have ended.
    ended_requests: u32,
}

/// A request of the host, and the time of its event in ticks.
#[derive(Clone, Copy)]
struct QueuedRequest {
    request: Request,
    event_time: u64,
}

/// Runs until the number of ended requests is that of the command line.
pub(super) fn run(machine: Machine) -> ! {
    let session = Session::start(&machine);
    let found = Balloon::find(machine.pci, session.balloon, &mut session.hooks.balloon);
    must("virtio-balloon", found);
    session.report_ready(&machine);
    let mut current = None;
    while machine.options.exit == 0 || session.ended_requests < machine.options.exit {
        stack::check();
        let took_event = session.take_event();
        if current.is_none() && !session.balloon_is_returning_memory() {
            current = session.next_request();
            if let Some(next) = current
                && let Err(error) = session.dlpar.begin(next.request)
            {
                session.report_refused_request(next, error);
                current = None;
            }
        }
        match current {
            Some(queued) => {
                if let Some(result) = session.continue_request() {
                    if session.request_from_balloon(&result) {
                        session.repeated = Some(queued);
                    } else {
                        session.finish(queued, &result);
                    }
                    current = None;
                }
                // A removal may wait for frames that only the balloon's driver can give back: those
                // that the host is reading, or that the device has not taken yet.
                session.step_balloon();
            }
            None if took_event || session.step_balloon() => {}
            None => pause(IDLE_US),
        }
    }
    session.end()
}

impl Session {
    /// Starts the engine and the drivers. Their initial states take much of the stack, which is free again
    /// when this function returns.
    #[inline(never)]
    fn start(machine: &Machine) -> &'static mut Session {
        // SAFETY: `start` runs once, and nothing else uses these statics.
        let storage = unsafe {
            Storage {
                groups: static_mut(&raw mut GROUPS),
                runs: static_mut(&raw mut RUNS),
                by_index: static_mut(&raw mut BY_INDEX),
                arrays: static_mut(&raw mut ARRAYS),
            }
        };
        // SAFETY: as above.
        let (session, hooks, balloon, area, queue, log) = unsafe {
            (
                static_mut(&raw mut SESSION),
                static_mut(&raw mut HOOKS),
                static_mut(&raw mut BALLOON),
                static_mut(&raw mut WORK_AREA),
                static_mut(&raw mut QUEUE),
                static_mut(&raw mut LOG),
            )
        };
        let tree = &machine.tree;
        let table = must("LMBs", Table::new(&tree.memory, &tree.arrays, tree.numa, storage));
        let mut report = Report::begin(Console);
        let mut hotplug = memory::start(machine);
        let hooks = hooks.insert(KernelHooks {
            workload: Workload::new(),
            pins: Pins::new(machine.options.pin),
            vetoes: 0,
            balloon: None,
        });
        must("announcing the LMBs", table.announce(&mut hotplug));
        let online = machine.options.online;
        must("memory of the start", table.adopt(&mut hotplug, hooks, online));
        report.ok("boot");
        hooks.vetoes = machine.options.veto;
        let mut dlpar = Dlpar::new(table, &hotplug);
        dlpar.set_online_as(online);
        let fault = machine.options.fault;
        // SAFETY: only `Rtas` makes calls, and none of their arguments is an address of memory.
        let firmware = unsafe { firmware::Machine::new() };
        let firmware = FaultyFirmware::new(firmware, machine.tokens, fault);
        let rtas = Rtas::new(firmware, machine.tokens);
        session.insert(Session {
            options: machine.options,
            dlpar,
            hotplug,
            hooks,
            connectors: RtasConnectors::new(rtas, area),
            balloon,
            report,
            queue,
            repeated: None,
            log,
            waits_since: None,
            cancelled_for: None,
            poll_error: None,
            ended_requests: 0,
        })
    }

    fn report_ready(&self, machine: &Machine) {
        let boot_memory =
            machine.memory.iter().fold(Bytes::ZERO, |sum, (range, _)| sum + range.bytes());
        let table = self.dlpar.table();
        write_event(&Event::Ready {
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
        match self.connectors.rtas.check_exception(self.log) {
            Ok(false) => return false,
            Ok(true) => self.poll_error = None,
            Err(status) => {
                // The same status in the next polls is not reported again.
                if self.poll_error.replace(status) != Some(status) {
                    let why = format_args!("check-exception: status {status}");
                    write_event(&Event::Garbled { why: &why });
                }
                return false;
            }
        }
        let event_time = ticks();
        if self.options.by_index {
            name_by_index(self.log);
        }
        match event_log::Event::parse(self.log) {
            Ok(event_log::Event::Hotplug(hotplug)) => match hotplug.request() {
                Some(request) => {
                    write_event(&Event::Asked { request });
                    self.enqueue(QueuedRequest { request, event_time });
                }
                None => write_event(&Event::Ignored),
            },
            Ok(event_log::Event::Other(_)) => write_event(&Event::Ignored),
            Err(error) => write_event(&Event::Garbled { why: &error }),
        }
        true
    }

    fn enqueue(&mut self, queued: QueuedRequest) {
        match self.queue.iter_mut().find(|entry| entry.is_none()) {
            Some(entry) => *entry = Some(queued),
            None => give_up(format_args!("more than {MAX_QUEUED} requests wait")),
        }
    }

    /// Continues the current request. Returns its result if it has ended.
    fn continue_request(&mut self) -> Option<Result<Summary, Failure>> {
        let Session { dlpar, hotplug, hooks, connectors, options, .. } = self;
        let pageblocks = dlpar.table().lmb_size().frames() / PAGEBLOCK_FRAMES as u64;
        let budget = Budget { pageblocks: pageblocks * u64::from(options.at_once.max(1)) };
        let mut machine = hotmem_dlpar::Machine { hotplug, hooks: *hooks, connectors };
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
                self.wait_or_cancel(wait);
                None
            }
            Progress::Idle => give_up("no request is open"),
        }
    }

    /// Waits a little. Cancels the request if it has waited for too long. If undoing the request
    /// waits for too long, cancels it again.
    fn wait_or_cancel(&mut self, wait: Wait) {
        let since = *self.waits_since.get_or_insert_with(ticks);
        if ns_since(since) / 1_000_000 >= u64::from(self.options.patience_ms) {
            self.cancelled_for.get_or_insert(wait);
            self.waits_since = None;
            self.dlpar.cancel();
        } else {
            // Whatever the request waits for, a short pause is enough: this kernel has one CPU, so
            // only the host makes progress meanwhile.
            pause(IDLE_US);
        }
    }

    /// Runs some steps of the balloon's driver. Returns whether the driver has more to do at once.
    fn step_balloon(&mut self) -> bool {
        match (&mut *self.balloon, &mut self.hooks.balloon) {
            (Some(balloon), Some(memory)) => must("virtio-balloon", balloon.step(memory)),
            _ => false,
        }
    }

    fn end(&mut self) -> ! {
        let verified = self.hooks.workload.verify_and_free();
        write_event(&Event::Verified { bytes: verified });
        match memory::validate() {
            Ok(()) => self.report.ok("the engine is consistent"),
            Err(fault) => self.report.not_ok(format_args!("the engine: {fault}")),
        }
        self.report.finish();
        firmware::halt()
    }
}

/// Returns a reference to the static that `pointer` points to.
///
/// # Safety
/// Nothing else uses the static.
unsafe fn static_mut<T: ?Sized>(pointer: *mut T) -> &'static mut T {
    // SAFETY: `pointer` points to a static, and the caller guarantees that nothing else uses the
    // static.
    unsafe { &mut *pointer }
}

/// Changes an event that names one LMB by a count of 1 and a first connector into an event that
/// names the LMB by the connector's index.
fn name_by_index(log: &mut [u8; MAX_LOG_BYTES]) {
    const IDENTIFIER: usize = 106;
    const COUNT: usize = 108;
    const INDEX: usize = 112;
    if log[IDENTIFIER] == 4 && log[COUNT..INDEX] == [0, 0, 0, 1] {
        log[IDENTIFIER] = 2;
        log.copy_within(INDEX..INDEX + 4, COUNT);
    }
}
