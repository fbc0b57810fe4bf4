//! Free page reporting on the hosted machine: what is free goes back to the host by `madvise`.

use super::{Hosted, Threads};
use hotmem::report::{Batch, Contents, Reporter, ReporterError, Settings, Statistics, Step};
use rustix::io::Errno;
use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Scope, ScopedJoinHandle, Thread},
    time::{Duration, Instant},
};

/// The reporter of a hosted machine, with a lock around it: one thread [`run`](Self::run)s it, and
/// others may ask and command it meanwhile.
pub struct HostReporter<'m> {
    machine: &'m Hosted,
    reporter: Mutex<Reporter<'m, Threads>>,
    started: Instant,
    stop: AtomicBool,
    /// Whether the thread that runs it has nothing to do, and who waits for that.
    idle: (Mutex<bool>, Condvar),
}

/// A machine's bell: the thread that is woken when an idle reporter has work.
#[derive(Debug, Default)]
pub(super) struct Waker(Mutex<Option<Thread>>);

impl Waker {
    pub(super) fn wake(&self) {
        if let Some(thread) = &*locked(&self.0) {
            thread.unpark();
        }
    }

    fn set(&self, thread: Option<Thread>) {
        *locked(&self.0) = thread;
    }
}

impl Hosted {
    /// Makes a reporter for this machine; it reports nothing before somebody runs it.
    ///
    /// # Errors
    /// [`ReporterError`].
    pub fn reporter(&self, settings: Settings) -> Result<HostReporter<'_>, ReporterError> {
        // Discarded memory reads as zero.
        let reporter = Reporter::new(self.frames(), settings, Contents::Filled(0))?;
        Ok(HostReporter {
            machine: self,
            reporter: Mutex::new(reporter),
            started: Instant::now(),
            stop: AtomicBool::new(false),
            idle: (Mutex::new(false), Condvar::new()),
        })
    }

    fn discard(&self, batch: &Batch) -> Result<(), Errno> {
        // SAFETY (of what is lost): the batch's memory is wholly free and isolated, so it is
        // nobody's.
        batch
            .merged()
            .try_for_each(|range| self.memory.discard(range.start().phys_addr(), range.bytes()))
    }
}

impl HostReporter<'_> {
    /// Reports, and sleeps while there is nothing to report, until it is [`stop`](Self::stop)ped.
    pub fn run(&self) {
        self.machine.waker().set(Some(thread::current()));
        while !self.stop.load(Ordering::Acquire) {
            match self.step() {
                Wait::No => {}
                Wait::Until(at) => thread::park_timeout(at.saturating_sub(self.now())),
                Wait::Woken => {
                    self.set_idle(true);
                    thread::park();
                    self.set_idle(false);
                }
            }
        }
        self.machine.waker().set(None);
    }

    /// Starts a thread that runs it.
    pub fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
    ) -> ScopedJoinHandle<'scope, ()> {
        scope.spawn(|| self.run())
    }

    /// Waits until the thread that runs it has nothing to do.
    pub fn wait_until_idle(&self) {
        let idle = locked(&self.idle.0);
        let waited = self.idle.1.wait_while(idle, |idle| !*idle);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn set_idle(&self, idle: bool) {
        *locked(&self.idle.0) = idle;
        self.idle.1.notify_all();
    }

    /// Reports until nothing waits that could go now.
    pub fn settle(&self) {
        while matches!(self.step(), Wait::No) {}
    }

    /// Ends [`run`](Self::run).
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.machine.waker().wake();
    }

    /// Switches it on or off.
    pub fn set_on(&self, on: bool) {
        locked(&self.reporter).set_on(on);
        self.machine.waker().wake();
    }

    /// What it has done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        locked(&self.reporter).statistics()
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn step(&self) -> Wait {
        let step = locked(&self.reporter).step(self.now());
        match step {
            // Nothing is locked while the host works.
            Step::Send(batch) => {
                let discarded = self.machine.discard(&batch);
                let mut reporter = locked(&self.reporter);
                match discarded {
                    Ok(()) => reporter.reported(batch),
                    Err(_) => reporter.failed(batch, self.now()),
                }
                Wait::No
            }
            Step::Again => Wait::No,
            Step::WaitUntil(at) => Wait::Until(at),
            Step::OutOfRoom | Step::Idle | Step::Off => Wait::Woken,
        }
    }
}

/// What to do before the next step.
enum Wait {
    No,
    Until(Duration),
    Woken,
}

/// A lock whose other holders do not panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
