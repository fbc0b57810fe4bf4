//! A running pseries machine.

use super::monitor::Monitor;
use super::{Config, Dimm, Done, Event, HostEvent, Plugged};
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

/// The memory of QEMU and the guest's engine, in addition to the memory that the guest touches.
const OVERHEAD: Bytes = Bytes::mib(256);

/// A running machine, which is killed when this is dropped.
pub struct Vm {
    qemu: Qemu,
    monitor: Monitor,
    console: Console,
    started: Instant,
    patience: Duration,
    failed_point: Option<String>,
}

/// The end of a request to remove a DIMM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removal {
    /// The guest's report.
    pub done: Done,
    /// QEMU's event: the DIMM was removed, or the guest refused.
    pub host: HostEvent,
}

impl Vm {
    /// Starts the machine. It is killed when the calling thread ends, if it has not ended before.
    ///
    /// # Errors
    /// [`Error`]: no QEMU, too little memory on the host, or QEMU's own complaint.
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
            Err(error) => Err(qemu.explain("its monitor answered", &console).unwrap_or(error)),
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

    /// Starts the CPUs of a machine that was created stopped.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn go_on(&mut self) -> Result<(), Error> {
        self.monitor.go_on()
    }

    /// Adds a DIMM without waiting for the guest.
    ///
    /// # Errors
    /// QEMU's refusal.
    pub fn add(&mut self, dimm: &Dimm) -> Result<(), Error> {
        self.monitor.add(dimm)
    }

    /// Asks the guest to release a DIMM, without waiting for it.
    ///
    /// # Errors
    /// QEMU's refusal.
    pub fn ask_back(&mut self, id: &str) -> Result<(), Error> {
        self.monitor.ask_back(id)
    }

    /// Adds a DIMM and waits until the guest has added its memory.
    ///
    /// # Errors
    /// QEMU's refusal, or a guest that hangs or gives up.
    pub fn plug(&mut self, dimm: &Dimm) -> Result<Done, Error> {
        self.add(dimm)?;
        self.done(&format!("end of the addition of {}", dimm.id))
    }

    /// Asks the guest to release a DIMM, and waits until both the guest and QEMU have reported the
    /// end.
    ///
    /// # Errors
    /// As for [`plug`](Self::plug).
    pub fn unplug(&mut self, id: &str) -> Result<Removal, Error> {
        // QEMU 7.2 reports a refusal of the guest twice.
        self.monitor.events()?;
        self.ask_back(id)?;
        let what = format!("end of the removal of {id}");
        let done = self.done(&what)?;
        let deadline = Instant::now() + self.patience;
        loop {
            for host in self.monitor.events()? {
                match &host {
                    HostEvent::Deleted(device) if device == id => self.monitor.forget(id)?,
                    HostEvent::Refused(device) if device == id => {}
                    HostEvent::Deleted(_) | HostEvent::Refused(_) => continue,
                }
                return Ok(Removal { done, host });
            }
            if Instant::now() > deadline {
                return Err(self.hang(&format!("{what} in QEMU")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the DIMMs that QEMU says the machine has, by address.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn dimms(&mut self) -> Result<Vec<Plugged>, Error> {
        self.monitor.dimms()
    }

    /// Returns the number of instructions that the guest has executed since QEMU's start. Unlike
    /// the guest's own clock, it does not advance while the guest waits for an interrupt.
    ///
    /// # Errors
    /// If the machine does not count them ([`Config::record`]).
    pub fn instructions(&mut self) -> Result<u64, Error> {
        self.monitor.instructions()
    }

    /// Executes a command line in QEMU's human monitor.
    ///
    /// # Errors
    /// [`Error::Refused`] if the monitor prints anything.
    pub fn monitor_line(&mut self, line: &str) -> Result<(), Error> {
        self.monitor.line(line)
    }

    /// Waits for the end of the guest's current request.
    ///
    /// # Errors
    /// A guest that hangs or gives up.
    pub fn done(&mut self, what: &str) -> Result<Done, Error> {
        let done = self.wait(what, |event| match event {
            Event::Done(done) => Some(done.clone()),
            _ => None,
        });
        Ok(done?.0)
    }

    /// Waits for the first event for which `wanted` returns a value; `what` names it. Returns the
    /// value, and the time from QEMU's start to the event.
    ///
    /// # Errors
    /// [`Error`]: the guest ended, gave up, hangs or printed a malformed event.
    pub fn wait<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&Event) -> Option<T>,
    ) -> Result<(T, Duration), Error> {
        let deadline = Instant::now() + self.patience;
        loop {
            let (at, line) = self.line(what, deadline)?;
            if line.starts_with('{') {
                let event = serde_json::from_str(&line)
                    .map_err(|source| Error::Garbled { line: line.clone(), source })?;
                if let Some(answer) = wanted(&event) {
                    return Ok((answer, at - self.started));
                }
            } else {
                self.note(&line)?;
            }
        }
    }

    /// Waits for the first line of the console for which `wanted` returns a value. It is for
    /// kernels that do not print our events.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_for_line<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> Result<(T, Duration), Error> {
        let deadline = Instant::now() + limit;
        loop {
            let (at, line) = self.line(what, deadline)?;
            if let Some(answer) = wanted(&line) {
                return Ok((answer, at - self.started));
            }
        }
    }

    /// Waits for the guest's verdict and for QEMU's exit.
    ///
    /// # Errors
    /// [`Error`], unless the verdict is PASS.
    pub fn finish(mut self) -> Result<(), Error> {
        let deadline = Instant::now() + self.patience;
        loop {
            let (_, line) = self.line("verdict", deadline)?;
            if !line.starts_with('{') && self.note(&line)? {
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
    fn note(&mut self, line: &str) -> Result<bool, Error> {
        let report = Report::parse(line);
        match report.map_err(|source| Error::Garbled { line: line.into(), source })? {
            Report::BailOut(why) => Err(Error::BailOut(why)),
            Report::Verdict(false) => Err(Error::Failed(self.failed_point.take())),
            Report::Verdict(true) => Ok(true),
            Report::NotOk(point) => {
                self.failed_point.get_or_insert(point);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    fn line(&mut self, what: &str, deadline: Instant) -> Result<(Instant, String), Error> {
        match self.console.next(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(line),
            Err(NoLine::Timeout) => Err(self.hang(what)),
            Err(NoLine::Closed) => {
                let ended = self.qemu.explain("the end of what was waited for", &self.console);
                Err(ended.unwrap_or_else(|| self.hang("end after its console closed")))
            }
        }
    }

    fn hang(&self, what: &str) -> Error {
        Error::Hang { what: what.into(), after: self.patience, said: self.console.tail() }
    }
}
