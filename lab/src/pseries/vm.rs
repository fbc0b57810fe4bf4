//! A running pseries machine.

use super::monitor::Monitor;
use super::{Config, Dimm, Event, HostEvent, PluggedDimm, RequestEnd};
use crate::qemu::{
    Error, Report, host,
    raw::{Console, NoLine, Qemu},
};
use hotmem::Bytes;
use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
    time::{Duration, Instant},
};

/// The memory that QEMU uses in addition to the guest's boot memory.
const OVERHEAD: Bytes = Bytes::mib(256);

/// A running machine. Dropping this value kills it.
pub struct Vm {
    qemu: Qemu,
    monitor: Monitor,
    console: Console,
    started: Instant,
    patience: Duration,
    failed_point: Option<String>,
}

/// The result of a request to remove a DIMM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removal {
    /// The guest's report of the end of the request.
    pub end: RequestEnd,
    /// QEMU's event.
    pub host: HostEvent,
}

impl Vm {
    /// Starts the machine. QEMU is killed when the calling thread ends.
    ///
    /// # Errors
    /// [`Error`]: there is no QEMU, the host has too little memory, or QEMU reports an error.
    pub fn start(config: &Config) -> Result<Vm, Error> {
        host::ensure_available(config.boot_memory + OVERHEAD)?;
        let (monitor, qemu_monitor) = UnixStream::pair().map_err(Error::Start)?;
        let (console, qemu_console) = io::pipe().map_err(Error::Start)?;
        let mut command = config.command();
        command.stdin(OwnedFd::from(qemu_monitor)).stdout(qemu_console).stderr(Stdio::piped());
        let started = Instant::now();
        let mut qemu = Qemu::start(command, None)?;
        let console = Console::new(console);
        let patience = config.patience;
        match Monitor::new(monitor, patience) {
            Ok(monitor) => Ok(Vm { qemu, monitor, console, started, patience, failed_point: None }),
            Err(error) => Err(qemu.exit_error("its monitor answered", &console).unwrap_or(error)),
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

    /// Starts the CPUs of a machine whose configuration is [`starts_stopped`](Config::starts_stopped).
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn start_cpus(&mut self) -> Result<(), Error> {
        self.monitor.start_cpus()
    }

    /// Adds a DIMM without waiting for the guest.
    ///
    /// # Errors
    /// QEMU refuses the command.
    pub fn add(&mut self, dimm: &Dimm) -> Result<(), Error> {
        self.monitor.add(dimm)
    }

    /// Asks the guest to release a DIMM, without waiting for the guest.
    ///
    /// # Errors
    /// QEMU refuses the command.
    pub fn request_removal(&mut self, id: &str) -> Result<(), Error> {
        self.monitor.request_removal(id)
    }

    /// Adds a DIMM and waits until the guest has added its memory.
    ///
    /// # Errors
    /// QEMU refuses the command, or the guest hangs or gives up.
    pub fn plug(&mut self, dimm: &Dimm) -> Result<RequestEnd, Error> {
        self.add(dimm)?;
        self.request_end(&format!("end of the addition of {}", dimm.id))
    }

    /// Asks the guest to release a DIMM, and waits until the guest and QEMU have reported
    /// the end of the request.
    ///
    /// # Errors
    /// As for [`plug`](Self::plug).
    pub fn unplug(&mut self, id: &str) -> Result<Removal, Error> {
        // QEMU 7.2 reports each refusal of the guest twice. Drop reports of an earlier request.
        self.monitor.events()?;
        self.request_removal(id)?;
        let awaited = format!("end of the removal of {id}");
        let end = self.request_end(&awaited)?;
        let deadline = Instant::now() + self.patience;
        loop {
            for host in self.monitor.events()? {
                match &host {
                    HostEvent::Deleted(device) if device == id => {
                        self.monitor.delete_backend(id)?
                    }
                    HostEvent::Refused(device) if device == id => {}
                    HostEvent::Deleted(_) | HostEvent::Refused(_) => continue,
                }
                return Ok(Removal { end, host });
            }
            if Instant::now() > deadline {
                return Err(self.hang(&format!("{awaited} in QEMU")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the machine's DIMMs, as QEMU lists them, in the order of their addresses.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn dimms(&mut self) -> Result<Vec<PluggedDimm>, Error> {
        self.monitor.dimms()
    }

    /// Returns the number of instructions that the guest has executed since QEMU's start. The
    /// number does not grow while the guest waits for an interrupt.
    ///
    /// # Errors
    /// [`Error::Refused`] if the machine is not [`counts_instructions`](Config::counts_instructions).
    pub fn instructions(&mut self) -> Result<u64, Error> {
        self.monitor.instructions()
    }

    /// Executes a command line in QEMU's human monitor.
    ///
    /// # Errors
    /// [`Error::Refused`] with the monitor's output, if the monitor prints anything.
    pub fn monitor_line(&mut self, line: &str) -> Result<(), Error> {
        self.monitor.line(line)
    }

    /// Waits for the end of the guest's current request. Errors name the event `awaited`.
    ///
    /// # Errors
    /// The guest hangs or gives up.
    pub fn request_end(&mut self, awaited: &str) -> Result<RequestEnd, Error> {
        let end = self.wait(awaited, |event| match event {
            Event::Done(end) => Some(end.clone()),
            _ => None,
        });
        Ok(end?.0)
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
            let (time, line) = self.line(awaited, deadline)?;
            if line.starts_with('{') {
                let event = serde_json::from_str(&line)
                    .map_err(|source| Error::Garbled { line: line.clone(), source })?;
                if let Some(value) = select(&event) {
                    return Ok((value, time - self.started));
                }
            } else {
                self.handle_line(&line)?;
            }
        }
    }

    /// Waits for the first line of the console for which `select` returns a value. Callers that
    /// boot a kernel without events, such as Linux, use this.
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
            let (time, line) = self.line(awaited, deadline)?;
            if let Some(value) = select(&line) {
                return Ok((value, time - self.started));
            }
        }
    }

    /// Waits for the guest's verdict and for QEMU's exit.
    ///
    /// # Errors
    /// [`Error`] if the verdict is not PASS.
    pub fn finish(mut self) -> Result<(), Error> {
        let deadline = Instant::now() + self.patience;
        loop {
            let (_, line) = self.line("verdict", deadline)?;
            if !line.starts_with('{') && self.handle_line(&line)? {
                break;
            }
        }
        match self.qemu.exit_status() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Error::Status(status)),
            None => Err(self.hang("end after its verdict")),
        }
    }

    /// Handles a line that is not an event. Returns whether it is the verdict PASS.
    fn handle_line(&mut self, line: &str) -> Result<bool, Error> {
        let report = Report::parse(line);
        match report.map_err(|source| Error::Garbled { line: line.into(), source })? {
            Report::BailOut(reason) => Err(Error::BailOut(reason)),
            Report::Verdict(false) => Err(Error::Failed(self.failed_point.take())),
            Report::Verdict(true) => Ok(true),
            Report::Failed(point) => {
                self.failed_point.get_or_insert(point);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Returns the next line, and waits for it until `deadline`. Errors name the event `awaited`.
    fn line(&mut self, awaited: &str, deadline: Instant) -> Result<(Instant, String), Error> {
        match self.console.next(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(line),
            Err(NoLine::Timeout) => Err(self.hang(awaited)),
            Err(NoLine::Closed) => {
                let ended = self.qemu.exit_error("the event that was waited for", &self.console);
                Err(ended.unwrap_or_else(|| self.hang("end after its console closed")))
            }
        }
    }

    fn hang(&self, awaited: &str) -> Error {
        Error::Hang { awaited: awaited.into(), wait: self.patience, output: self.console.tail() }
    }
}
