//! A running virtual machine.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | start and end of the machine, commands for QEMU's monitor, the guest's output |
//! | `cxl.rs` | CXL memory, and commands for it |
//! | `dimms.rs` | DIMMs that are inserted and removed |
//! | `resize.rs` | changes of the guest's memory, and the time that they take |

mod cxl;
mod dimms;
mod resize;

pub use cxl::{CxlMemory, Extent, ExtentChange, Reconfigured};
pub use dimms::Dimm;
pub use resize::Resize;

use super::{
    Error, Event, HostEvent, Launch, Report,
    commands::Commands,
    console::{Console, NoLine},
    monitor::Monitor,
    process::{Qemu, exit_limit},
};
use hotmem::Bytes;
use serde_json::{Value, json};
use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
    time::{Duration, Instant},
};

/// A running virtual machine. Dropping this value kills it.
pub struct Vm {
    qemu: Qemu,
    monitor: Monitor,
    commands: Option<Commands>,
    console: Console,
    started: Instant,
    patience: Duration,
    pass_status: i32,
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
    /// Starts the machine with this configuration. QEMU is killed when the calling thread ends.
    ///
    /// # Errors
    /// [`Error`]: there is no QEMU, the host has too little memory, or QEMU reports an error.
    pub fn start<'c, C>(config: &'c C) -> Result<Vm, Error>
    where
        Launch: From<&'c C>,
    {
        Vm::launch(config.into())
    }

    /// Starts a machine, as [`start`](Self::start) does.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn launch(launch: Launch) -> Result<Vm, Error> {
        let Launch {
            mut command,
            host_memory,
            patience,
            pass_status,
            is_line_cut,
            cgroup,
            commands,
            log,
        } = launch;
        super::host::ensure_available(host_memory)?;
        let (monitor, qemu_monitor) = UnixStream::pair().map_err(Error::Start)?;
        let (console, qemu_console) = io::pipe().map_err(Error::Start)?;
        command.stdin(OwnedFd::from(qemu_monitor)).stdout(qemu_console);
        command.stderr(log.map_or_else(Stdio::piped, Stdio::from));
        let started = Instant::now();
        let mut qemu = Qemu::start(command, cgroup)?;
        let mut console = Console::new(console);
        match Monitor::new(monitor, patience) {
            Ok(monitor) => Ok(Vm {
                qemu,
                monitor,
                commands: commands.map(Commands::new),
                console,
                started,
                patience,
                pass_status,
                is_line_cut,
                failed_point: None,
                delay_reason: None,
                metadata: None,
                watcher: None,
            }),
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

    /// Waits for the first line of the console for which `select` returns a value. Callers that
    /// boot a kernel without events, such as Linux on pseries, use this.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_for_line<T>(
        &mut self,
        awaited: &str,
        limit: Duration,
        mut select: impl FnMut(&str) -> Option<T>,
    ) -> Result<(T, Duration), Error> {
        let deadline = Instant::now() + limit;
        loop {
            let patience = deadline.saturating_duration_since(Instant::now());
            let (time, line) = self.line(patience)?.ok_or_else(|| self.hang(awaited))?;
            if let Some(value) = select(&line) {
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

    /// Waits for the guest's next report. Errors name the event `awaited`.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn next_report(&mut self, awaited: &str) -> Result<Report, Error> {
        Ok(self.next(awaited, Instant::now() + self.patience)?.1)
    }

    /// Executes a command line in QEMU's human monitor, such as `device_add`.
    ///
    /// # Errors
    /// [`Error::Refused`] with the monitor's output, if the monitor prints anything.
    pub fn monitor_line(&mut self, line: &str) -> Result<(), Error> {
        let reason = self.query_monitor(line)?;
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
        let answer = self.execute("human-monitor-command", &json!({ "command-line": line }))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Executes a command of QEMU's monitor, and returns the answer.
    ///
    /// # Errors
    /// QEMU refuses the command or does not answer.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
        self.monitor.execute(command, arguments).map_err(|error| self.cause_of(error))
    }

    /// Stops the machine until [`proceed`](Self::proceed). Meanwhile its devices change.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.execute("stop", &json!({})).map(drop)
    }

    /// Lets a machine go on that was [paused](Self::pause).
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn proceed(&mut self) -> Result<(), Error> {
        self.execute("cont", &json!({})).map(drop)
    }

    /// Returns the events about devices that QEMU has sent since the last call.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub(crate) fn device_events(&mut self) -> Result<Vec<HostEvent>, Error> {
        self.execute("query-status", &json!({}))?;
        Ok(self.monitor.take_events())
    }

    /// Returns QEMU's next event about a device, and waits for it.
    ///
    /// # Errors
    /// QEMU sends none in time.
    pub(crate) fn next_device_event(&mut self) -> Result<HostEvent, Error> {
        self.monitor.next_event().map_err(|error| self.cause_of(error))
    }

    /// Returns the time limit of a wait for an event.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
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
            Some(status) if status.code() == Some(self.pass_status) => Ok(self.metadata),
            Some(status) => Err(Error::Status(status)),
            None => Err(self.hang("end after its verdict")),
        }
    }

    /// Returns the next line, and waits for it until `deadline`. Errors name the event `awaited`.
    fn next(&mut self, awaited: &str, deadline: Instant) -> Result<(Instant, Report), Error> {
        let patience = deadline.saturating_duration_since(Instant::now());
        self.poll(patience)?.ok_or_else(|| self.hang(awaited))
    }

    /// Returns the next line if it arrives within `patience`.
    fn line(&mut self, patience: Duration) -> Result<Option<(Instant, String)>, Error> {
        match self.console.next(patience) {
            Ok(line) => Ok(Some(line)),
            Err(NoLine::Timeout) => Ok(None),
            Err(NoLine::Closed) => {
                let ended = self.qemu.exit_error("the event that was waited for", &self.console);
                Err(ended.unwrap_or_else(|| self.hang("end after its console closed")))
            }
        }
    }

    /// Returns the report in the next line, if the line arrives within `patience`. Returns an error if
    /// it reports that the guest failed.
    fn poll(&mut self, patience: Duration) -> Result<Option<(Instant, Report)>, Error> {
        let Some((time, line)) = self.line(patience)? else { return Ok(None) };
        let is_line_cut = std::mem::take(&mut self.is_line_cut);
        let report = match Report::parse(&line) {
            Err(_) if is_line_cut => return self.poll(patience),
            Ok(Report::BailOut(reason)) => return Err(Error::BailOut(reason)),
            Ok(Report::Verdict(passed)) if !passed || self.failed_point.is_some() => {
                return Err(Error::Failed(self.failed_point.take()));
            }
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
            Report::Event(Event::TakesCommands) => {
                self.commands.iter_mut().for_each(|commands| commands.is_ready = true);
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

    pub(crate) fn hang(&self, awaited: &str) -> Error {
        Error::Hang { awaited: awaited.into(), wait: self.patience, output: self.console.tail() }
    }
}
