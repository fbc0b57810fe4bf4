//! A running virtual machine.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | start and end of the machine, requests to its devices, the guest's output |
//! | `dimms.rs` | DIMMs that are inserted and removed |
//! | `resize.rs` | changes of the guest's memory, and the time that they take |

mod dimms;
mod resize;

pub use dimms::Dimm;
pub use resize::Resize;

use super::{
    Config, Error, Event, Report,
    console::{Console, NoLine},
    monitor::Monitor,
    process::{Qemu, exit_limit},
};
use hotmem::Bytes;
use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
    time::{Duration, Instant},
};

/// QEMU's exit status if the guest's verdict is PASS. The guest then writes 0x10 to QEMU's device
/// `isa-debug-exit`, and QEMU exits with 2 × 0x10 + 1.
const PASS_STATUS: i32 = 33;

/// A running virtual machine. Dropping this value kills it.
pub struct Vm {
    qemu: Qemu,
    monitor: Monitor,
    console: Console,
    started: Instant,
    patience: Duration,
    /// Whether the next line may be incomplete, because a migrated guest has printed the start of
    /// it on the source machine.
    is_line_cut: bool,
    /// The first test point of the guest that failed.
    failed_point: Option<String>,
    /// The guest's latest reason why it cannot reach its target.
    delay_reason: Option<String>,
    /// The size of all metadata that the guest has reported.
    metadata: Option<Bytes>,
    watcher: Option<Watcher>,
}

/// An observation of a machine.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// The host requested this size of the device.
    Requested(Bytes),
    /// The device has this size plugged.
    Plugged(Bytes),
    /// The guest printed this event.
    Event(&'a Event),
    /// A test point of the guest failed.
    Failed(&'a str),
}

type Watcher = Box<dyn FnMut(Observation<'_>) + Send>;

impl Vm {
    /// Starts the machine. QEMU is killed when the calling thread ends.
    ///
    /// # Errors
    /// [`Error`]: there is no QEMU, the host has too little memory, or QEMU reports an error.
    pub fn start(config: &Config) -> Result<Vm, Error> {
        super::host::ensure_available(config.host_memory())?;
        let (monitor, qemu_monitor) = UnixStream::pair().map_err(Error::Start)?;
        let (console, qemu_console) = io::pipe().map_err(Error::Start)?;
        let mut command = config.command();
        command.stdin(OwnedFd::from(qemu_monitor)).stdout(qemu_console).stderr(Stdio::piped());
        let started = Instant::now();
        let mut qemu = Qemu::start(command, config.cgroup.clone())?;
        let mut console = Console::new(console);
        match Monitor::new(monitor, config.patience) {
            Ok(monitor) => {
                let patience = config.patience;
                Ok(Vm {
                    qemu,
                    monitor,
                    console,
                    started,
                    patience,
                    is_line_cut: config.incoming_state.is_some(),
                    failed_point: None,
                    delay_reason: None,
                    metadata: None,
                    watcher: None,
                })
            }
            Err(error) => {
                // If the guest does not support this machine, it may end before the monitor
                // answers. Then the guest's reason is the error.
                while let Ok((_, line)) = console.next(exit_limit()) {
                    if let Ok(Report::BailOut(reason)) = Report::parse(&line) {
                        return Err(Error::BailOut(reason));
                    }
                }
                Err(qemu.exit_error("its monitor answered", &console).unwrap_or(error))
            }
        }
    }

    /// Makes the machine call `watcher` with each later observation of device 0 and of the guest.
    pub fn watch(&mut self, watcher: impl FnMut(Observation<'_>) + Send + 'static) {
        self.watcher = Some(Box::new(watcher));
    }

    fn notify(&mut self, observation: Observation<'_>) {
        if let Some(watcher) = &mut self.watcher {
            watcher(observation);
        }
    }

    /// Returns the time when QEMU was started.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the identifier of QEMU's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// Waits for the first event for which `select` returns a value. Returns the value, and the
    /// time from QEMU's start to the event. Errors name the event `awaited`.
    ///
    /// # Errors
    /// [`Error`]: the guest ended, gave up, hangs or printed a malformed event.
    pub fn wait<T>(
        &mut self,
        awaited: &str,
        mut select: impl FnMut(&Event) -> Option<T>,
    ) -> Result<(T, Duration), Error> {
        let deadline = Instant::now() + self.patience;
        loop {
            let (time, report) = self.next(awaited, deadline)?;
            if let Report::Event(event) = report
                && let Some(value) = select(&event)
            {
                return Ok((value, time - self.started));
            }
        }
    }

    /// Waits for the guest's first line and returns the time from QEMU's start to it.
    ///
    /// # Errors
    /// [`Error`]: QEMU failed, or the guest printed nothing.
    pub fn first_line(&mut self) -> Result<Duration, Error> {
        let (time, _) = self.next("first line", Instant::now() + self.patience)?;
        Ok(time - self.started)
    }

    /// Sets the device's requested size to `target`, and does not wait for the guest. If the guest
    /// has ended, this call succeeds, and the next call returns an error.
    ///
    /// # Errors
    /// QEMU refuses the request, for example because `target` is not a multiple of the block size.
    pub fn request(&mut self, target: Bytes) -> Result<(), Error> {
        self.request_of(0, target)
    }

    /// Requests `target` of device `n`, as [`request`](Self::request) does of device 0.
    ///
    /// # Errors
    /// As for [`request`](Self::request).
    pub fn request_of(&mut self, n: usize, target: Bytes) -> Result<(), Error> {
        if n == 0 {
            self.notify(Observation::Requested(target));
        }
        match self.monitor.request(n, target) {
            // If this is the guest's last request, QEMU may exit before it answers.
            Err(Error::Monitor(error)) if !timed_out(&error) => Ok(()),
            answer => answer.map_err(|error| self.cause_of(error)),
        }
    }

    /// Returns the size that the device has plugged.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn device_size(&mut self) -> Result<Bytes, Error> {
        self.device_size_of(0)
    }

    /// Returns the size that device `n` has plugged.
    ///
    /// # Errors
    /// As for [`device_size`](Self::device_size).
    pub fn device_size_of(&mut self, n: usize) -> Result<Bytes, Error> {
        let size = self.monitor.size(n).map_err(|error| self.cause_of(error))?;
        if n == 0 {
            self.notify(Observation::Plugged(size));
        }
        Ok(size)
    }

    /// Executes a command line in QEMU's human monitor, such as `device_add`.
    ///
    /// # Errors
    /// [`Error::Refused`] with the monitor's output, if the monitor prints anything.
    pub fn monitor_line(&mut self, line: &str) -> Result<(), Error> {
        let reason = self.monitor.line(line).map_err(|error| self.cause_of(error))?;
        let reason = reason.trim();
        if reason.is_empty() {
            return Ok(());
        }
        Err(Error::Refused { command: line.into(), reason: reason.into() })
    }

    /// Executes a command line in QEMU's human monitor, such as `info balloon`, and returns its
    /// output.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn query_monitor(&mut self, line: &str) -> Result<String, Error> {
        self.monitor.line(line).map_err(|error| self.cause_of(error))
    }

    /// Waits for the guest's verdict and for QEMU's exit. Returns the size of all metadata that the
    /// guest wrote for new memory, if the guest has reported it.
    ///
    /// # Errors
    /// [`Error`] if the verdict is not PASS.
    pub fn finish(mut self) -> Result<Option<Bytes>, Error> {
        let deadline = Instant::now() + self.patience;
        while self.next("verdict", deadline)?.1 != Report::Verdict(true) {}
        match self.qemu.exit_status() {
            Some(status) if status.code() == Some(PASS_STATUS) => Ok(self.metadata),
            Some(status) => Err(Error::Status(status)),
            None => Err(self.hang("end after its verdict")),
        }
    }

    /// Returns the next line, and waits for it until `deadline`. Errors name the event `awaited`.
    fn next(&mut self, awaited: &str, deadline: Instant) -> Result<(Instant, Report), Error> {
        let patience = deadline.saturating_duration_since(Instant::now());
        self.poll(patience)?.ok_or_else(|| self.hang(awaited))
    }

    /// Returns the next line if it arrives within `patience`. Returns an error if the line reports
    /// that the guest failed.
    fn poll(&mut self, patience: Duration) -> Result<Option<(Instant, Report)>, Error> {
        let (time, line) = match self.console.next(patience) {
            Ok(line) => line,
            Err(NoLine::Timeout) => return Ok(None),
            Err(NoLine::Closed) => {
                let ended = self.qemu.exit_error("the event that was waited for", &self.console);
                return Err(ended.unwrap_or_else(|| self.hang("end after its console closed")));
            }
        };
        let is_line_cut = std::mem::take(&mut self.is_line_cut);
        let report = match Report::parse(&line) {
            Err(_) if is_line_cut => return self.poll(patience),
            Ok(Report::BailOut(reason)) => return Err(Error::BailOut(reason)),
            Ok(Report::Verdict(false)) => return Err(Error::Failed(self.failed_point.take())),
            Ok(report) => report,
            Err(source) => return Err(Error::Garbled { line, source }),
        };
        match &report {
            Report::Event(event) => self.notify(Observation::Event(event)),
            Report::Failed(point) => self.notify(Observation::Failed(point)),
            _ => {}
        }
        match &report {
            Report::Failed(point) => {
                self.failed_point.get_or_insert_with(|| point.clone());
            }
            Report::Event(Event::Pending { reason, .. }) => {
                self.delay_reason = Some(reason.clone());
            }
            Report::Event(Event::Metadata { written }) => {
                self.metadata = Some(self.metadata.unwrap_or_default() + Bytes(*written));
            }
            _ => {}
        }
        Ok(Some((time, report)))
    }

    /// Returns the cause of a monitor error. If the guest gave up, QEMU ended, and the connection
    /// to its monitor broke. The console then has the guest's reason, which may arrive later.
    fn cause_of(&mut self, error: Error) -> Error {
        while let Error::Monitor(_) = error {
            match self.poll(exit_limit()) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(cause) => return cause,
            }
        }
        error
    }

    fn hang(&self, awaited: &str) -> Error {
        Error::Hang { awaited: awaited.into(), wait: self.patience, output: self.console.tail() }
    }
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
