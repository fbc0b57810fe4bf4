//! Keeps single frames for one CPU, whose interrupt handlers may use them, too.

use crate::magazine::Magazine;
use crate::nested::{Nested, step};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use hotmem::{AllocError, AllocRequest, Frames, Known, Pfn, Platform};

/// A [`Magazine`] for one CPU that may be used from any context: interrupts stay enabled, and the
/// handlers of interrupts and NMIs may use it. Only preemption must be off. Most pairs of alloc and
/// free cost no atomic read-modify-write, so that they lock no bus and no cache line.
///
/// A kernel has one for each CPU, beside its other data of that CPU. A call that interrupts another
/// call on the same magazine uses [`Frames`] directly; no call waits.
///
/// Frames in a magazine count as allocated: they prevent the removal of their memory, and a poisoned
/// frame goes out of use only when it leaves the magazine. So a kernel [drains](Self::drain) its
/// magazines when the engine calls
/// [`Platform::drain_magazines`](hotmem::Platform::drain_magazines). Only its own CPU can drain a
/// magazine. To drain those of other CPUs, the kernel sends these CPUs an interrupt whose handler
/// calls `drain`. If frames stay in the magazine of another CPU, a removal of their memory finds
/// frames in use and calls [`Hooks::migrate`](hotmem::Hooks::migrate) for them. That hook may send the
/// interrupt and wait for its end, because the control path may wait. If it does not, the removal
/// fails and names these frames as its blocker; nothing is lost.
///
/// ```
/// # use hotmem::{AllocError, AllocRequest, Frames, OneCpu};
/// # use hotmem_port::CpuMagazine;
/// static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
/// // SAFETY: this kernel has one CPU and no preemption.
/// static MAGAZINE: CpuMagazine<'_, OneCpu, 64> =
///     unsafe { CpuMagazine::new(&FRAMES, AllocRequest::frames(1)) };
/// # fn with() -> Result<(), AllocError> {
/// let page = MAGAZINE.alloc()?;
/// // SAFETY: the frame came from this magazine, and nobody uses it any more.
/// unsafe { MAGAZINE.free(page) };
/// # Ok(())
/// # }
/// ```
pub struct CpuMagazine<'f, P: Platform, const N: usize> {
    frames: &'f Frames<P>,
    request: AllocRequest,
    magazine: Nested<Magazine<'f, P, N>>,
    /// A call of `drain` has interrupted another call, which drains the magazine before it returns.
    is_drain_due: AtomicBool,
}

impl<'f, P: Platform, const N: usize> CpuMagazine<'f, P, N> {
    /// Creates an empty magazine, whose frames are allocated as `request`, which is for one frame.
    ///
    /// # Safety
    /// All calls of the magazine's methods are made on one CPU. A caller stays on that CPU from the
    /// moment at which it chooses the magazine as that of its CPU until its call returns. Meanwhile,
    /// other code that uses the magazine may run on the CPU only if it returns before the caller
    /// continues: handlers of interrupts and NMIs may, other threads may not. If the kernel gives the
    /// magazine to another CPU, calls there happen after all calls here.
    #[must_use]
    pub const unsafe fn new(frames: &'f Frames<P>, request: AllocRequest) -> CpuMagazine<'f, P, N> {
        // SAFETY: by the caller's promise.
        let magazine = unsafe { Nested::new(Magazine::new(frames, request)) };
        CpuMagazine { frames, request, magazine, is_drain_due: AtomicBool::new(false) }
    }

    /// Allocates a frame. The caller owns it as a raw range: see
    /// [`Allocation::into_raw`](hotmem::Allocation::into_raw).
    ///
    /// Context: any, with preemption off. Cost: no atomic read-modify-write while the magazine has
    /// frames. An empty one is refilled with up to `N / 2` frames by one [`Frames::alloc_many`].
    ///
    /// # Errors
    /// [`AllocError`]: the magazine is empty, and no frame could be allocated.
    #[inline]
    pub fn alloc(&self) -> Result<Pfn, AllocError> {
        let taken = self.magazine.with(Magazine::take).flatten();
        match taken {
            Some(frame) if !self.is_drain_due() => Ok(frame),
            _ => self.alloc_slowly(taken),
        }
    }

    /// Frees a frame, which the next [`alloc`](Self::alloc) returns.
    ///
    /// Context: any, with preemption off. Cost: no atomic read-modify-write while the magazine has
    /// room. Half of a full one is freed by one [`Frames::free_many`].
    ///
    /// # Safety
    /// As for [`Magazine::free`].
    #[inline]
    pub unsafe fn free(&self, frame: Pfn) {
        let is_kept = self.magazine.with(|magazine| magazine.keep(frame)) == Some(true);
        if !is_kept || self.is_drain_due() {
            self.free_slowly(frame, is_kept);
        }
    }

    /// Frees all frames of the magazine, and returns whether there were any. A call that interrupts
    /// another one on the same magazine returns false, and the other frees them before it returns.
    ///
    /// Context: any, on the magazine's own CPU, with preemption off.
    pub fn drain(&self) -> bool {
        let Some(any) = self.magazine.with(Magazine::drain) else {
            // Relaxed: read by the call that this one has interrupted.
            self.is_drain_due.store(true, Ordering::Relaxed);
            return false;
        };
        if self.is_drain_due() {
            self.drain_late();
        }
        any
    }

    /// Returns whether a call of `drain` has interrupted this call and has freed nothing. For a call
    /// that does not use the magazine any more.
    #[inline(always)]
    fn is_drain_due(&self) -> bool {
        self.is_drain_due.load(Ordering::Relaxed)
    }

    /// Drains the magazine for a call of `drain` that has interrupted this call.
    fn drain_late(&self) {
        self.magazine.with(Magazine::drain);
        step();
        // A call that has interrupted this one since then has found this still set, and has drained
        // what it freed.
        self.is_drain_due.store(false, Ordering::Relaxed);
    }

    /// Allocates a frame, unless `alloc` has taken one: from the refilled magazine, or from `Frames`
    /// if this call has interrupted another one. Drains the magazine if that is due.
    #[cold]
    fn alloc_slowly(&self, taken: Option<Pfn>) -> Result<Pfn, AllocError> {
        let allocated = match taken {
            Some(frame) => Ok(frame),
            None => match self.magazine.with(Magazine::alloc) {
                Some(allocated) => allocated,
                None => return self.alloc_beside(),
            },
        };
        if self.is_drain_due() {
            self.drain_late();
        }
        allocated
    }

    /// Allocates a frame for a call that has interrupted another one.
    fn alloc_beside(&self) -> Result<Pfn, AllocError> {
        let mut frame = [Pfn::ZERO];
        self.frames.alloc_many(self.request, &mut frame)?;
        Ok(frame[0])
    }

    /// Frees a frame, unless the magazine keeps it already: into the magazine, or directly if this
    /// call has interrupted another one. Drains the magazine if that is due.
    #[cold]
    fn free_slowly(&self, frame: Pfn, is_kept: bool) {
        // SAFETY: by the promise of the caller of `free`.
        let free = |magazine: &mut Magazine<'f, P, N>| unsafe { magazine.free(frame) };
        if !is_kept && self.magazine.with(free).is_none() {
            // SAFETY: the caller owns it, by the contract of `free`.
            unsafe { self.frames.free_many(&[frame]) }.known();
            return;
        }
        if self.is_drain_due() {
            self.drain_late();
        }
    }
}

impl<P: Platform, const N: usize> fmt::Debug for CpuMagazine<'_, P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuMagazine").field("request", &self.request).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::nested::tests::{interrupt_by, step};
    use hotmem_testkit::{Memory, PAGEBLOCK, boot};
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// Frames in the magazine.
    const N: usize = 4;
    const BOOT_FRAMES: u64 = if cfg!(miri) { 2 } else { 8 } * PAGEBLOCK;

    /// A machine on which interrupts may arrive whenever the engine asks for the CPU.
    struct Ticking;

    impl Platform for Ticking {
        fn cpu(&self) -> usize {
            step();
            0
        }
    }

    static FRAMES: Frames<Ticking> = Frames::new(Ticking);
    // SAFETY: one test uses it.
    static MAGAZINE: CpuMagazine<'_, Ticking, N> =
        unsafe { CpuMagazine::new(&FRAMES, AllocRequest::frames(1)) };

    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Alloc,
        Free,
        Drain,
    }

    use Operation::{Alloc, Drain, Free};
    const ALL: [Operation; 3] = [Alloc, Free, Drain];

    std::thread_local! {
        /// The frames that the test has allocated.
        static OWNED: RefCell<BTreeSet<Pfn>> = const { RefCell::new(BTreeSet::new()) };
        /// The number of the step that comes next, and the interrupts by step.
        static STEP: Cell<usize> = const { Cell::new(0) };
        static INTERRUPTS: RefCell<Vec<(usize, Operation)>> = const { RefCell::new(Vec::new()) };
        static FREE_AT_FIRST: Cell<u64> = const { Cell::new(0) };
        /// Calls that have begun and not returned.
        static IN_FLIGHT: Cell<u64> = const { Cell::new(0) };
        /// A call to drain has interrupted another call.
        static IS_ASKED: Cell<bool> = const { Cell::new(false) };
    }

    fn kept() -> u64 {
        let owned = OWNED.with_borrow(BTreeSet::len) as u64;
        FREE_AT_FIRST.get() - FRAMES.counts().free - owned
    }

    /// Takes the interrupt that arrives at this step.
    fn interrupt() {
        let now = STEP.replace(STEP.get() + 1);
        let arrived = INTERRUPTS.with_borrow(|all| all.iter().find(|(at, _)| *at == now).copied());
        if let Some((_, operation)) = arrived {
            perform(operation);
        }
    }

    fn perform(operation: Operation) {
        IN_FLIGHT.set(IN_FLIGHT.get() + 1);
        match operation {
            Alloc => {
                let frame = MAGAZINE.alloc().expect("there is enough");
                assert!(OWNED.with_borrow_mut(|owned| owned.insert(frame)), "{frame}: two owners");
            }
            Free => {
                let Some(frame) = OWNED.with_borrow_mut(BTreeSet::pop_first) else { return };
                // SAFETY: it was allocated by the magazine.
                unsafe { MAGAZINE.free(frame) };
            }
            Drain => {
                MAGAZINE.drain();
                IS_ASKED.set(IS_ASKED.get() | MAGAZINE.is_drain_due.load(Ordering::Relaxed));
            }
        }
        IN_FLIGHT.set(IN_FLIGHT.get() - 1);
        let hook = interrupt_by(None);
        // Each call that is interrupted may have a frame that is neither owned nor in the magazine.
        let left = kept().saturating_sub(IN_FLIGHT.get());
        assert!(left <= N as u64, "{left} frames in the magazine");
        // The call that a drain has interrupted has returned.
        if IS_ASKED.get() && MAGAZINE.magazine.with(|_| ()).is_some() {
            assert_eq!(left, 0, "not drained");
            IS_ASKED.set(false);
        }
        interrupt_by(hook);
    }

    /// Performs `script` on a magazine with `full` frames in it, while these interrupts arrive.
    /// Returns the number of steps.
    fn run(script: &[Operation], full: usize, interrupts: &[(usize, Operation)]) -> usize {
        (0..N + 2).for_each(|_| perform(Alloc));
        MAGAZINE.drain();
        (0..full).for_each(|_| perform(Free));
        STEP.set(0);
        INTERRUPTS.set(interrupts.to_vec());
        interrupt_by(Some(interrupt));
        script.iter().for_each(|&operation| perform(operation));
        interrupt_by(None);
        MAGAZINE.drain();
        assert_eq!(kept(), 0);
        while OWNED.with_borrow(|owned| !owned.is_empty()) {
            perform(Free);
        }
        MAGAZINE.drain();
        assert_eq!(kept(), 0);
        STEP.get()
    }

    /// Calls of which each is interrupted at each of its steps, and each interrupt at each of its own.
    #[test]
    fn interrupts_at_every_step_lose_nothing_and_find_no_frame_twice() {
        let memory = Memory::new(BOOT_FRAMES);
        let _hotplug = boot(&FRAMES, &memory, BOOT_FRAMES);
        // The first allocation of a frame near others also allocates their bitmaps, which stay.
        let all = core::iter::from_fn(|| FRAMES.alloc(AllocRequest::frames(1)).ok());
        drop(all.collect::<Vec<_>>());
        FREE_AT_FIRST.set(FRAMES.counts().free);
        let scripts: Vec<Vec<Operation>> = if cfg!(miri) {
            ALL.map(|one| [one].into()).into()
        } else {
            ALL.iter().flat_map(|&one| ALL.map(|two| [one, two].into())).collect()
        };
        for script in &scripts {
            for full in if cfg!(miri) { &[1][..] } else { &[0, 1, N] }.iter().copied() {
                for at in (0..run(script, full, &[])).step_by(if cfg!(miri) { 3 } else { 1 }) {
                    for first in ALL.map(|operation| (at, operation)) {
                        let steps = run(script, full, &[first]);
                        let later = if cfg!(miri) { steps..steps } else { at + 1..steps };
                        for second in later.flat_map(|at| ALL.map(|operation| (at, operation))) {
                            run(script, full, &[first, second]);
                        }
                    }
                }
            }
        }
    }
}
