//! Free page reporting on a hosted machine. Free memory is returned to the host by `madvise`.

use super::waker::locked;
use super::{Hosted, ThreadCpus};
use hotmem::report::{
    Batch, Reporter, ReporterError, ReporterSettings, Statistics, Step, Unanswered,
};
use hotmem::{Contents, PfnRange};
use rustix::io::Errno;
use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Scope},
    time::{Duration, Instant},
};

/// The reporter of a hosted machine. One thread calls [`run`](Self::run), while other threads may
/// query and control the reporter.
pub struct HostReporter<'m> {
    machine: &'m Hosted,
    reporter: Mutex<Reporter<'m, ThreadCpus>>,
    start: Instant,
    must_stop: AtomicBool,
    /// Whether the thread in [`run`](Self::run) is idle, and the condition on which other threads
    /// wait until it is.
    is_idle: (Mutex<bool>, Condvar),
}

/// A running reporter. Dropping this value stops the reporter.
pub struct Running<'a, 'm>(&'a HostReporter<'m>);

impl Hosted {
    /// Returns a reporter of this instance. The reporter reports nothing before
    /// [`run`](HostReporter::run) or [`settle`](HostReporter::settle) is called.
    ///
    /// # Errors
    /// [`ReporterError`].
    pub fn reporter(&self, settings: ReporterSettings) -> Result<HostReporter<'_>, ReporterError> {
        // After `madvise`, memory reads as zeros.
        let reporter = Reporter::new(self.frames(), settings, Contents::Filled(0))?;
        Ok(HostReporter {
            machine: self,
            reporter: Mutex::new(reporter),
            start: Instant::now(),
            must_stop: AtomicBool::new(false),
            is_idle: (Mutex::new(false), Condvar::new()),
        })
    }

    /// Returns the memory of a batch to the host. Nothing uses this memory, because it is free and
    /// isolated. The memory reads as zero afterwards.
    ///
    /// # Errors
    /// The host refuses, for example because pages are locked.
    pub(crate) fn discard(&self, batch: &Batch) -> Result<(), Errno> {
        merge_adjacent(batch)
            .try_for_each(|range| self.memory.discard(range.start().phys_addr(), range.bytes()))
    }
}

/// Merges adjacent ranges. `ranges` is in descending order, as in a [`Batch`].
fn merge_adjacent(ranges: &[PfnRange]) -> impl Iterator<Item = PfnRange> {
    let runs = ranges.chunk_by(|above, below| below.end() == above.start());
    runs.filter_map(|run| PfnRange::new(run.last()?.start(), run.first()?.end()))
}

impl<'m> HostReporter<'m> {
    /// Reports free memory, and sleeps while there is nothing to report. Returns after
    /// [`stop`](Self::stop) was called.
    pub fn run(&self) {
        self.machine.waker().set(Some(thread::current()));
        while !self.must_stop.load(Ordering::Acquire) {
            match self.step() {
                Wait::None => {}
                Wait::UntilTimeOrWake(time) => {
                    thread::park_timeout(time.saturating_sub(self.now()))
                }
                Wait::UntilWake => {
                    self.set_idle(true);
                    thread::park();
                    self.set_idle(false);
                }
            }
        }
        self.machine.waker().set(None);
    }

    /// Starts a thread that calls [`run`](Self::run). Dropping the returned value stops the
    /// reporter.
    #[must_use = "dropping the value stops the reporter"]
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Running<'scope, 'm> {
        scope.spawn(|| self.run());
        Running(self)
    }

    /// Waits until the thread in [`run`](Self::run) has nothing to report.
    pub fn wait_until_idle(&self) {
        let idle = locked(&self.is_idle.0);
        let waited = self.is_idle.1.wait_while(idle, |idle| !*idle);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn set_idle(&self, is_idle: bool) {
        *locked(&self.is_idle.0) = is_idle;
        self.is_idle.1.notify_all();
    }

    /// Reports free memory on the calling thread, until nothing more can be reported now.
    pub fn settle(&self) {
        while matches!(self.step(), Wait::None) {}
    }

    /// Makes [`run`](Self::run) return.
    pub fn stop(&self) {
        self.must_stop.store(true, Ordering::Release);
        self.machine.waker().wake();
    }

    /// Switches reporting on or off.
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
        self.start.elapsed()
    }

    fn step(&self) -> Wait {
        let step = locked(&self.reporter).step(self.now());
        match step {
            // The reporter is not locked during the host's system calls.
            Step::Ready(Ok(batch)) => {
                let discarded = self.machine.discard(&batch);
                let mut reporter = locked(&self.reporter);
                match discarded {
                    Ok(()) => reporter.reported_as(batch, |_| Contents::Filled(0)),
                    Err(_) => reporter.failed(batch, self.now()),
                }
                Wait::None
            }
            Step::Working => Wait::None,
            Step::Pending(time) => Wait::UntilTimeOrWake(time),
            // `Unanswered` means that another thread's `madvise` has not returned for
            // `ReporterSettings::answer_timeout`. There is no device to reset, so this thread waits.
            Step::Ready(Err(Unanswered)) | Step::Idle => Wait::UntilWake,
        }
    }
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// How long the thread waits before the next step.
enum Wait {
    /// It does not wait.
    None,
    /// Until this time, or until it is woken.
    UntilTimeOrWake(Duration),
    /// Until it is woken.
    UntilWake,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience;
    use hotmem::{
        AllocRequest, Allocation, Bytes, NoHooks, OnlineType, PfnRange, geometry::FRAME_SIZE,
    };

    /// Returns the first and the last word of a frame.
    fn words(machine: &Hosted, frame: PfnRange) -> [*mut u64; 2] {
        let start = machine.address_of(frame.start()).unwrap().as_ptr().cast::<u64>();
        let last = usize::try_from(FRAME_SIZE).unwrap() / size_of::<u64>() - 1;
        [start, start.wrapping_add(last)]
    }

    /// Returns a machine into which `size` is plugged.
    fn machine_with(size: Bytes) -> Hosted {
        let builder = Hosted::builder().boot_memory(Bytes::mib(32));
        let machine = builder.hotplug_size(size).build().unwrap();
        let range = machine.hotplug_range();
        {
            let mut hotplug = machine.boot().unwrap();
            hotplug.announce(range).unwrap();
            hotplug.add(range).unwrap();
            hotplug.online(range, OnlineType::Movable, &mut NoHooks).unwrap();
        }
        machine
    }

    #[test]
    fn only_free_memory_is_returned_to_the_host() {
        let machine = machine_with(Bytes::mib(256));
        let frames = machine.frames();
        let used = frames.alloc(AllocRequest::frames(1).movable()).unwrap();
        let freed = frames.alloc(AllocRequest::frames(512).movable()).unwrap();
        let (freed_start, used_frame) = (freed.range().start(), used.range());
        let freed_first = freed.range().chunks(1).next().unwrap();
        // SAFETY: `used` and `freed` own the frames.
        unsafe {
            words(&machine, used_frame).iter().for_each(|word| word.write_volatile(7));
            words(&machine, freed_first)[0].write_volatile(7);
        }
        drop(freed);
        let reporter = machine.reporter(ReporterSettings::EAGER).unwrap();
        reporter.settle();
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
        let allocated = frames.alloc(AllocRequest::frames(512).movable().at(freed_start)).unwrap();
        // SAFETY: `used` and `allocated` own the frames.
        unsafe {
            assert_eq!(words(&machine, used_frame)[1].read_volatile(), 7);
            assert_eq!(words(&machine, freed_first)[0].read_volatile(), 0);
        }
        drop((allocated, used));
    }

    #[test]
    fn adjacent_ranges_of_a_batch_are_merged() {
        let range = |start: u64, end: u64| PfnRange::try_from(start << 21..end << 21).unwrap();
        let batch = [range(8, 9), range(6, 8), range(3, 5), range(2, 3), range(12, 14)];
        let found: Vec<_> = merge_adjacent(&batch).collect();
        assert_eq!(found, [range(6, 9), range(2, 5), range(12, 14)]);
        assert_eq!(merge_adjacent(&[]).next(), None);
    }

    /// Threads write a tag to each frame that they allocate, and check the tag before they free the
    /// frame. Meanwhile the reporter reports memory as soon as it is free.
    #[test]
    fn the_reporter_discards_no_allocated_frame() {
        let machine = machine_with(Bytes::mib(64));
        let eager = ReporterSettings { max_range_size: Bytes::mib(4), ..ReporterSettings::EAGER };
        let reporter = machine.reporter(eager).unwrap();
        thread::scope(|scope| {
            let _running = reporter.start(scope);
            let machine = &machine;
            let started = Instant::now();
            // On a busy host the reporter's thread may not run before the workers have ended. Then
            // more workers are started.
            while reporter.statistics().refaulted == 0 {
                assert!(started.elapsed() < patience(), "{:?}", reporter.statistics());
                let workers: Vec<_> =
                    (1..=2).map(|seed| scope.spawn(move || churn(machine, seed))).collect();
                workers.into_iter().for_each(|worker| worker.join().unwrap());
                reporter.wait_until_idle();
            }
        });
        // SAFETY: all threads of the scope have ended, so no thread uses the machine.
        let counts = unsafe { machine.frames().validate() }.unwrap();
        assert_eq!(counts.reporting, 0);
    }

    /// Allocates and frees ranges at random, and checks that their words do not change meanwhile.
    fn churn(machine: &Hosted, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut allocations: Vec<(Allocation<'_, ThreadCpus>, u64)> = Vec::new();
        for tag in 1..3000 {
            let frames = [1, 1, 3, 64, 512, 700][rng.usize(..6)];
            let request = AllocRequest::frames(frames).movable();
            if allocations.len() < 24
                && let Ok(allocation) = machine.frames().alloc(request)
            {
                for word in allocation.range().chunks(1).flat_map(|frame| words(machine, frame)) {
                    // SAFETY: `allocation` owns the frame.
                    unsafe { word.write_volatile(seed << 32 | tag) };
                }
                allocations.push((allocation, seed << 32 | tag));
            } else if !allocations.is_empty() {
                let nth = rng.usize(..allocations.len());
                let (allocation, tag) = allocations.swap_remove(nth);
                for word in allocation.range().chunks(1).flat_map(|frame| words(machine, frame)) {
                    // SAFETY: as above.
                    assert_eq!(unsafe { word.read_volatile() }, tag, "{allocation:?}");
                }
            }
        }
    }
}
