//! Free page reporting on the hosted machine: returns free memory to the host by `madvise`.

use super::waker::locked;
use super::{Hosted, Threads};
use hotmem::PfnRange;
use hotmem::report::{
    Batch, Contents, Reporter, ReporterError, Settings, Statistics, Step, Unanswered,
};
use rustix::io::Errno;
use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Scope},
    time::{Duration, Instant},
};

/// The reporter of a hosted machine, behind a lock: one thread [`run`](Self::run)s it, while others
/// may query and control it.
pub struct HostReporter<'m> {
    machine: &'m Hosted,
    reporter: Mutex<Reporter<'m, Threads>>,
    started: Instant,
    stop: AtomicBool,
    /// Whether the thread that runs it is idle, and the threads that wait for that.
    idle: (Mutex<bool>, Condvar),
}

/// A running reporter, which is stopped when this is dropped.
pub struct Running<'a, 'm>(&'a HostReporter<'m>);

impl Hosted {
    /// Returns a reporter for this machine. It reports nothing until it [runs](HostReporter::run).
    ///
    /// # Errors
    /// [`ReporterError`].
    pub fn reporter(&self, settings: Settings) -> Result<HostReporter<'_>, ReporterError> {
        // Discarded memory is filled with zeros.
        let reporter = Reporter::new(self.frames(), settings, Contents::Filled(0))?;
        Ok(HostReporter {
            machine: self,
            reporter: Mutex::new(reporter),
            started: Instant::now(),
            stop: AtomicBool::new(false),
            idle: (Mutex::new(false), Condvar::new()),
        })
    }

    /// Returns the memory of a batch to the host. It is free and isolated, so nothing uses it.
    fn discard(&self, batch: &Batch) -> Result<(), Errno> {
        merged(batch.ranges())
            .try_for_each(|range| self.memory.discard(range.start().phys_addr(), range.bytes()))
    }
}

/// Merges neighbours of a batch, which lists the highest range first.
fn merged(ranges: &[PfnRange]) -> impl Iterator<Item = PfnRange> {
    let runs = ranges.chunk_by(|above, below| below.end() == above.start());
    runs.filter_map(|run| PfnRange::new(run.last()?.start(), run.first()?.end()))
}

impl<'m> HostReporter<'m> {
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

    /// Starts a thread that runs it until the returned value is dropped.
    #[must_use = "dropped, it stops the reporter"]
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Running<'scope, 'm> {
        scope.spawn(|| self.run());
        Running(self)
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

    /// Reports until no free memory is left that can be reported now.
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

    /// Returns the reporter's statistics.
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
            // The lock is not held while the host works.
            Step::Ready(Ok(batch)) => {
                let discarded = self.machine.discard(&batch);
                let mut reporter = locked(&self.reporter);
                // The batch belongs to this reporter, so neither call can fail.
                let _ = match discarded {
                    Ok(()) => reporter.reported(batch),
                    Err(_) => reporter.failed(batch, self.now()),
                };
                Wait::No
            }
            Step::Working => Wait::No,
            Step::Pending(at) => Wait::Until(at),
            // If the call does not return, the batch stays out for good.
            Step::Ready(Err(Unanswered)) | Step::Idle => Wait::Woken,
        }
    }
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What to do before the next step.
enum Wait {
    No,
    Until(Duration),
    Woken,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PATIENCE;
    use hotmem::{
        AllocRequest, Allocation, Bytes, NoHooks, OnlineType, PfnRange, geometry::FRAME_SIZE,
    };

    /// Returns the first and the last word of a frame.
    fn words(machine: &Hosted, frame: PfnRange) -> [*mut u64; 2] {
        let start = machine.address_of(frame.start()).unwrap().as_ptr().cast::<u64>();
        let last = usize::try_from(FRAME_SIZE).unwrap() / size_of::<u64>() - 1;
        [start, start.wrapping_add(last)]
    }

    fn machine_with(room: Bytes) -> Hosted {
        let machine = Hosted::builder().boot_memory(Bytes::mib(32)).room(room).build().unwrap();
        {
            let mut hotplug = machine.boot().unwrap();
            hotplug.announce(machine.room()).unwrap();
            hotplug.add(machine.room()).unwrap();
            hotplug.online(machine.room(), OnlineType::Movable, &mut NoHooks).unwrap();
        }
        machine
    }

    #[test]
    fn only_free_memory_is_returned_to_the_host() {
        let machine = machine_with(Bytes::mib(256));
        let frames = machine.frames();
        let kept = frames.alloc(AllocRequest::frames(1).movable()).unwrap();
        let freed = frames.alloc(AllocRequest::frames(512).movable()).unwrap();
        let (freed_start, kept_frame) = (freed.start(), kept.range());
        let freed_first = freed.range().chunks(1).next().unwrap();
        // SAFETY: all of them are allocated.
        unsafe {
            words(&machine, kept_frame).iter().for_each(|word| word.write_volatile(7));
            words(&machine, freed_first)[0].write_volatile(7);
        }
        drop(freed);
        let reporter = machine.reporter(Settings::EAGER).unwrap();
        reporter.settle();
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
        let again = frames.alloc(AllocRequest::frames(512).movable().at(freed_start)).unwrap();
        // SAFETY: both are allocated.
        unsafe {
            assert_eq!(words(&machine, kept_frame)[1].read_volatile(), 7);
            assert_eq!(words(&machine, freed_first)[0].read_volatile(), 0);
        }
        drop((again, kept));
    }

    #[test]
    fn neighbours_are_merged() {
        let range = |start: u64, end: u64| PfnRange::try_from(start << 21..end << 21).unwrap();
        let batch = [range(8, 9), range(6, 8), range(3, 5), range(2, 3), range(12, 14)];
        let found: Vec<_> = merged(&batch).collect();
        assert_eq!(found, [range(6, 9), range(2, 5), range(12, 14)]);
        assert_eq!(merged(&[]).next(), None);
    }

    /// Threads write a pattern to their memory and check it, while free memory is reported as soon
    /// as it is free.
    #[test]
    fn no_live_frame_is_discarded() {
        let machine = machine_with(Bytes::mib(64));
        let eager = Settings { longest: Bytes::mib(4), ..Settings::EAGER };
        let reporter = machine.reporter(eager).unwrap();
        thread::scope(|scope| {
            let _running = reporter.start(scope);
            let machine = &machine;
            let started = Instant::now();
            // The reporter's thread may not be scheduled before the others have ended.
            while reporter.statistics().refaulted == 0 {
                assert!(started.elapsed() < PATIENCE, "{:?}", reporter.statistics());
                let workers: Vec<_> =
                    (1..=2).map(|seed| scope.spawn(move || churn(machine, seed))).collect();
                workers.into_iter().for_each(|worker| worker.join().unwrap());
                reporter.wait_until_idle();
            }
        });
        // SAFETY: all threads of the scope have ended.
        let counts = unsafe { machine.frames().validate() }.unwrap();
        assert_eq!(counts.reporting, 0);
    }

    fn churn(machine: &Hosted, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut held: Vec<(Allocation<'_, Threads>, u64)> = Vec::new();
        for tag in 1..3000 {
            let frames = [1, 1, 3, 64, 512, 700][rng.usize(..6)];
            if held.len() < 24
                && let Ok(range) = machine.frames().alloc(AllocRequest::frames(frames).movable())
            {
                for word in range.range().chunks(1).flat_map(|frame| words(machine, frame)) {
                    // SAFETY: this thread owns the frame until it frees it.
                    unsafe { word.write_volatile(seed << 32 | tag) };
                }
                held.push((range, seed << 32 | tag));
            } else if !held.is_empty() {
                let (range, tag) = held.swap_remove(rng.usize(..held.len()));
                for word in range.range().chunks(1).flat_map(|frame| words(machine, frame)) {
                    // SAFETY: as above.
                    assert_eq!(unsafe { word.read_volatile() }, tag, "{range:?}");
                }
                drop(range);
            }
        }
    }
}
