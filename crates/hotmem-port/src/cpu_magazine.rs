//! Keeps single frames for one CPU, whose interrupt handlers may also allocate and free them.

use crate::magazine::Magazine;
use crate::nested::{Nested, interruption_point};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use hotmem::{AllocError, AllocRequest, Frames, Pfn, Platform};
use hotmem_invariant::OrRecordViolation;

/// A [`Magazine`] for one CPU that may be used from any context: interrupts stay enabled, and the
/// handlers of interrupts and NMIs may use it. Only preemption must be off. Most pairs of alloc and
/// free cost no atomic read-modify-write.
///
/// A kernel has one magazine for each CPU, beside its other data of that CPU. A call that interrupts
/// another call on the same magazine uses [`Frames`] directly. No call waits.
///
/// Frames in a magazine count as allocated: they prevent the removal of their memory, and a
/// poisoned frame is quarantined only when it leaves the magazine. So a kernel
/// [drains](Self::drain) its magazines when the engine calls
/// [`Platform::drain_magazines`](hotmem::Platform::drain_magazines). Only its own CPU can drain a
/// magazine. To drain the magazines of other CPUs, the kernel sends these CPUs an interrupt whose
/// handler calls `drain`. If frames stay in the magazine of another CPU, a removal of their memory
/// finds frames in use and calls [`Hooks::migrate`](hotmem::Hooks::migrate) for them. That hook may
/// send the interrupt and wait until it was handled, because the control path may wait. If the hook
/// does not drain the magazines, the removal fails and names these frames as its blocker, and the
/// frames stay allocated.
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
/// // SAFETY: the frame was allocated from this magazine, and nothing uses it any more.
/// unsafe { MAGAZINE.free(page) };
/// # Ok(())
/// # }
/// ```
pub struct CpuMagazine<'f, P: Platform, const N: usize> {
    frames: &'f Frames<P>,
    request: AllocRequest,
    magazine: Nested<Magazine<'f, P, N>>,
    /// Whether a call of `drain` has interrupted another call. Then the interrupted call drains the
    /// magazine before it returns.
    is_drain_due: AtomicBool,
}

impl<'f, P: Platform, const N: usize> CpuMagazine<'f, P, N> {
    /// Creates an empty magazine, whose frames are allocated as `request`, which is for one frame.
    ///
    /// # Safety
    /// All calls of the magazine's methods are made on one CPU. A caller stays on that CPU from the
    /// moment at which it chooses the magazine of its CPU until its call returns. Meanwhile, other code
    /// on that CPU uses the magazine only if that code returns before the caller continues: handlers
    /// of interrupts and NMIs may use the magazine, other threads may not. If the kernel assigns the
    /// magazine to another CPU, all calls on the old CPU happen before any call on the new CPU.
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
    /// frames. An empty magazine is refilled with up to `N / 2` frames by one [`Frames::alloc_many`].
    ///
    /// # Errors
    /// [`AllocError`] if the magazine is empty and no frame could be allocated.
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
    /// Context: any, with preemption off. Cost: no atomic read-modify-write while the magazine is not
    /// full. Half of a full magazine is freed by one [`Frames::free_many`].
    ///
    /// # Safety
    /// As for [`Magazine::free`].
    #[inline]
    pub unsafe fn free(&self, frame: Pfn) {
        let is_in_magazine = self.magazine.with(|magazine| magazine.put(frame)) == Some(true);
        if !is_in_magazine || self.is_drain_due() {
            self.free_slowly(frame, is_in_magazine);
        }
    }

    /// Frees all frames of the magazine, and returns whether there were any. If this call interrupts
    /// another call on the same magazine, this call returns false, and the other call frees the frames
    /// before it returns.
    ///
    /// Context: any, on the magazine's own CPU, with preemption off.
    pub fn drain(&self) -> bool {
        let Some(had_frames) = self.magazine.with(Magazine::drain) else {
            // Relaxed suffices, because the interrupted call on this CPU reads the flag.
            self.is_drain_due.store(true, Ordering::Relaxed);
            return false;
        };
        if self.is_drain_due() {
            self.drain_late();
        }
        had_frames
    }

    /// Returns whether a call of `drain` has interrupted this call and has freed nothing. A call reads
    /// this after its last access to the magazine.
    #[inline(always)]
    fn is_drain_due(&self) -> bool {
        self.is_drain_due.load(Ordering::Relaxed)
    }

    /// Drains the magazine for a call of `drain` that has interrupted this call.
    fn drain_late(&self) {
        self.magazine.with(Magazine::drain);
        interruption_point();
        // Clear the flag. A call that has interrupted this call after the drain above has found the
        // flag set and has drained the magazine itself, so the magazine is empty.
        self.is_drain_due.store(false, Ordering::Relaxed);
    }

    /// Finishes [`alloc`](Self::alloc). If `taken` is `None`, allocates a frame: from the refilled
    /// magazine, or from `Frames` if this call has interrupted another call. Drains the magazine if a
    /// drain is due.
    #[cold]
    fn alloc_slowly(&self, taken: Option<Pfn>) -> Result<Pfn, AllocError> {
        let allocated = match taken {
            Some(frame) => Ok(frame),
            None => match self.magazine.with(Magazine::alloc) {
                Some(allocated) => allocated,
                None => return self.alloc_from_frames(),
            },
        };
        if self.is_drain_due() {
            self.drain_late();
        }
        allocated
    }

    /// Allocates a frame for a call that has interrupted another call on the magazine.
    fn alloc_from_frames(&self) -> Result<Pfn, AllocError> {
        let mut frame = [Pfn::ZERO];
        self.frames.alloc_many(self.request, &mut frame)?;
        Ok(frame[0])
    }

    /// Finishes [`free`](Self::free). Unless the magazine has the frame already, frees the frame into
    /// the magazine, or to `Frames` if this call has interrupted another call. Drains the magazine if
    /// a drain is due.
    #[cold]
    fn free_slowly(&self, frame: Pfn, is_in_magazine: bool) {
        // SAFETY: by the promise of the caller of `free`.
        let free = |magazine: &mut Magazine<'f, P, N>| unsafe { magazine.free(frame) };
        if !is_in_magazine && self.magazine.with(free).is_none() {
            // SAFETY: by the promise of the caller of `free`, which owns the frame.
            unsafe { self.frames.free_many(&[frame]) }.or_record_violation();
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
    use crate::nested::tests::{interrupt_by, interruption_point};
    use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
    use hotmem::{AlwaysMapped, Bytes, Hotplug, PfnRange};
    use std::alloc::{Layout, alloc_zeroed};
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// The capacity of the magazine in frames.
    const N: usize = 4;
    const BOOT_BYTES: u64 = if cfg!(miri) { 2 } else { 8 } * PAGEBLOCK_FRAMES as u64 * FRAME_SIZE;

    /// A platform on which an interrupt may also arrive whenever the engine asks for the CPU number.
    struct InterruptedCpu;

    impl Platform for InterruptedCpu {
        const COUNTS_ALLOCATED: bool = true;

        fn cpu(&self) -> usize {
            interruption_point();
            0
        }
    }

    static FRAMES: Frames<InterruptedCpu> = Frames::new(InterruptedCpu);
    // SAFETY: the thread of one test makes all calls.
    static MAGAZINE: CpuMagazine<'_, InterruptedCpu, N> =
        unsafe { CpuMagazine::new(&FRAMES, AllocRequest::frames(1)) };

    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Alloc,
        Free,
        Drain,
    }

    use Operation::{Alloc, Drain, Free};
    const ALL_OPERATIONS: [Operation; 3] = [Alloc, Free, Drain];

    std::thread_local! {
        /// The frames that the test has allocated.
        static OWNED: RefCell<BTreeSet<Pfn>> = const { RefCell::new(BTreeSet::new()) };
        /// The number of the next step.
        static STEP: Cell<usize> = const { Cell::new(0) };
        /// The steps at which interrupts arrive, and the operations of their handlers.
        static INTERRUPTS: RefCell<Vec<(usize, Operation)>> = const { RefCell::new(Vec::new()) };
        /// The number of calls that have begun and not returned.
        static CALLS_IN_PROGRESS: Cell<u64> = const { Cell::new(0) };
        /// Whether a call to drain has interrupted another call, which has not returned yet.
        static IS_DRAIN_EXPECTED: Cell<bool> = const { Cell::new(false) };
    }

    /// Returns the number of frames that the magazine has: those that are allocated and that the test
    /// does not own.
    fn frames_in_magazine() -> u64 {
        let owned = OWNED.with_borrow(BTreeSet::len) as u64;
        FRAMES.allocated_frames().expect("this platform counts") - owned
    }

    /// Handles the interrupt that arrives at this step, if any.
    fn interrupt() {
        let step = STEP.replace(STEP.get() + 1);
        let arrived =
            INTERRUPTS.with_borrow(|all| all.iter().find(|(arrival, _)| *arrival == step).copied());
        if let Some((_, operation)) = arrived {
            perform(operation);
        }
    }

    /// Calls the magazine. A free does nothing if the test owns no frame.
    fn perform(operation: Operation) {
        if matches!(operation, Free) && OWNED.with_borrow(BTreeSet::is_empty) {
            return;
        }
        CALLS_IN_PROGRESS.set(CALLS_IN_PROGRESS.get() + 1);
        match operation {
            Alloc => {
                let frame = MAGAZINE.alloc().expect("the machine has free frames");
                let is_new = OWNED.with_borrow_mut(|owned| owned.insert(frame));
                assert!(is_new, "{frame} is allocated twice");
            }
            Free => {
                let frame = OWNED.with_borrow_mut(BTreeSet::pop_first).expect("a frame is owned");
                // SAFETY: the frame was allocated from the magazine, and nothing uses it.
                unsafe { MAGAZINE.free(frame) };
            }
            Drain => {
                MAGAZINE.drain();
                let is_due = MAGAZINE.is_drain_due.load(Ordering::Relaxed);
                IS_DRAIN_EXPECTED.set(IS_DRAIN_EXPECTED.get() | is_due);
            }
        }
        CALLS_IN_PROGRESS.set(CALLS_IN_PROGRESS.get() - 1);
        let handler = interrupt_by(None);
        // Each call in flight may have a frame that is neither owned by the test nor in the magazine.
        let min_frames = frames_in_magazine().saturating_sub(CALLS_IN_PROGRESS.get());
        assert!(min_frames <= N as u64, "{min_frames} frames exceed the capacity of the magazine");
        // If no call uses the magazine now, the call that a drain has interrupted has returned.
        if IS_DRAIN_EXPECTED.get() && MAGAZINE.magazine.with(|_| ()).is_some() {
            assert_eq!(min_frames, 0, "the interrupted call has not drained the magazine");
            IS_DRAIN_EXPECTED.set(false);
        }
        interrupt_by(handler);
    }

    /// Performs the operations of `script` on a magazine with `frames` frames, while `interrupts`
    /// arrive. Checks that the magazine loses no frame. Returns the number of steps.
    fn run(script: &[Operation], frames: usize, interrupts: &[(usize, Operation)]) -> usize {
        (0..N + 2).for_each(|_| perform(Alloc));
        MAGAZINE.drain();
        (0..frames).for_each(|_| perform(Free));
        STEP.set(0);
        INTERRUPTS.set(interrupts.to_vec());
        interrupt_by(Some(interrupt));
        script.iter().for_each(|&operation| perform(operation));
        interrupt_by(None);
        MAGAZINE.drain();
        assert_eq!(frames_in_magazine(), 0);
        while OWNED.with_borrow(|owned| !owned.is_empty()) {
            perform(Free);
        }
        MAGAZINE.drain();
        assert_eq!(frames_in_magazine(), 0);
        STEP.get()
    }

    /// Interrupts each script at each step, and each interrupt handler at each of its own steps.
    #[test]
    fn interrupts_at_every_step_lose_no_frame_and_allocate_no_frame_twice() {
        let size = usize::try_from(BOOT_BYTES).expect("the size is small");
        let layout = Layout::from_size_align(size, 4096).expect("the alignment is a power of two");
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        assert!(!memory.is_null());
        // SAFETY: nothing else uses the memory, which is never freed, as `FRAMES` is not.
        let mapping = unsafe { AlwaysMapped::new(memory, PfnRange::ALL) };
        // SAFETY: the map names only this memory.
        let hotplug = unsafe { Hotplug::bootstrap(&FRAMES, mapping, &[(0..BOOT_BYTES).into()]) };
        let _hotplug = hotplug.expect("the memory is large enough to boot");
        // Allocate a frame of each pageblock once. This also allocates the bitmaps of the pageblocks,
        // which stay allocated, so the number of free frames does not change because of bitmaps later.
        let memory = PfnRange::from_bytes(0, Bytes(BOOT_BYTES)).expect("whole frames");
        for pageblock in memory.chunks(PAGEBLOCK_FRAMES as u64) {
            let request = AllocRequest::frames(1).within(pageblock.start()..pageblock.end());
            drop(FRAMES.alloc(request).expect("the pageblock has free frames"));
        }
        let free_before = FRAMES.counts_in(PfnRange::ALL).free;
        let scripts: Vec<Vec<Operation>> = if cfg!(miri) {
            ALL_OPERATIONS.map(|one| [one].into()).into()
        } else {
            ALL_OPERATIONS
                .iter()
                .flat_map(|&one| ALL_OPERATIONS.map(|two| [one, two].into()))
                .collect()
        };
        for script in &scripts {
            for frames in if cfg!(miri) { &[1][..] } else { &[0, 1, N] }.iter().copied() {
                for step in (0..run(script, frames, &[])).step_by(if cfg!(miri) { 9 } else { 1 }) {
                    for first in ALL_OPERATIONS.map(|operation| (step, operation)) {
                        let steps = run(script, frames, &[first]);
                        let later_steps = if cfg!(miri) { steps..steps } else { step + 1..steps };
                        for second in later_steps
                            .flat_map(|step| ALL_OPERATIONS.map(|operation| (step, operation)))
                        {
                            run(script, frames, &[first, second]);
                        }
                    }
                }
            }
        }
        assert_eq!(FRAMES.counts_in(PfnRange::ALL).free, free_before);
    }
}
