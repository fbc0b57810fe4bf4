//! Holds the records of all CPUs. The records of the first CPUs lie in [`Cpus`], those of the
//! others in boot memory.

use super::cpu_record::Cpu;
#[cfg(not(loom))]
use crate::addr::PfnRange;
#[cfg(not(loom))]
use crate::geometry::FRAME_SIZE;
use crate::outlined::Outlined;
use crate::sync::{AtomicUsize, Ordering, array_of, const_unless_loom, untracked};
#[cfg(not(loom))]
use crate::words::DirectMap;
use core::ptr::null_mut;

/// The number of records that lie in [`Cpus`] itself.
const INLINE_RECORDS: usize = if cfg!(loom) { 2 } else { 8 };

/// The records of all CPUs. If a CPU's number is not below the number of CPUs that the kernel gave
/// at boot, it shares a record with another CPU, which costs time but is correct.
pub(super) struct Cpus {
    inline_records: [Cpu; INLINE_RECORDS],
    /// The records in boot memory: that of CPU number `INLINE_RECORDS` and those that follow.
    boot_records: untracked::AtomicPtr<Cpu>,
    boot_record_count: untracked::AtomicUsize,
    /// The records below this index may have a hint, or may have counted a hiding step.
    listed_records: AtomicUsize,
}

impl Cpus {
    const_unless_loom! {
        pub(crate) fn new() -> Cpus {
            Cpus {
                inline_records: array_of![Cpu::new(); INLINE_RECORDS],
                boot_records: untracked::AtomicPtr::new(null_mut()),
                boot_record_count: untracked::AtomicUsize::new(0),
                listed_records: AtomicUsize::new(0),
            }
        }
    }

    /// Returns the record of the CPU with this number.
    pub(crate) fn get(&self, number: usize) -> &Cpu {
        self.inline_records.get(number).unwrap_or_else(|| self.get_in_boot_memory(number))
    }

    /// Does the same as [`get`](Self::get) without a function call, so that a fast path need not
    /// save registers.
    #[inline(always)]
    pub(super) fn get_inlined(&self, number: usize) -> &Cpu {
        match self.inline_records.get(number) {
            Some(cpu) => cpu,
            None => self
                .boot_records()
                .get(number - INLINE_RECORDS)
                .unwrap_or(&self.inline_records[number % INLINE_RECORDS]),
        }
    }

    fn get_in_boot_memory(&self, number: usize) -> &Cpu {
        self.get_inlined(number)
    }

    /// Returns the record of the CPU with this number, and lists it: [`listed`](Self::listed)
    /// returns it from now on.
    #[inline]
    pub(crate) fn list(&self, number: usize) -> &Cpu {
        // Relaxed: the count only grows, and it covers all records below it. A CPU that
        // synchronises with this one reads at least the count that is read here, whichever CPU
        // stored it.
        if number >= self.listed_records.load(Ordering::Relaxed) {
            self.list_first(number);
        }
        self.get(number)
    }

    #[cold]
    fn list_first(&self, number: usize) {
        let has_own_record = number < INLINE_RECORDS + self.boot_records().len();
        let index = if has_own_record { number } else { number % INLINE_RECORDS };
        if self.listed_records.load(Ordering::Relaxed) <= index {
            // Release pairs with the Acquire in `listed`.
            self.listed_records.fetch_max(index + 1, Ordering::Release);
        }
    }

    /// Iterates over the records that may have hints or hiding steps in flight.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Cpu> {
        self.first_records(self.listed_records.load(Ordering::Acquire))
    }

    /// Iterates over all records.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Cpu> {
        self.first_records(INLINE_RECORDS + self.boot_records().len())
    }

    fn first_records(&self, count: usize) -> impl Iterator<Item = &Cpu> {
        Outlined((0..count).map(|index| self.get(index)))
    }

    #[inline(always)]
    fn boot_records(&self) -> &[Cpu] {
        // Acquire pairs with the Release in `install`.
        let len = self.boot_record_count.load(Ordering::Acquire);
        if len == 0 {
            return &[];
        }
        // SAFETY: `install` has written `len` records at this pointer, and they stay valid.
        unsafe { core::slice::from_raw_parts(self.boot_records.load(Ordering::Relaxed), len) }
    }

    /// Writes the records of the CPUs `INLINE_RECORDS` to `cpus` (excluded) to `memory`. Boot only,
    /// single-threaded.
    ///
    /// # Safety
    /// The same as for [`Frames::install_cpus`](crate::frames::Frames::install_cpus).
    #[cfg(not(loom))]
    pub(crate) unsafe fn install(&self, cpus: u32, memory: *mut u8) {
        let (records, len) = (memory.cast::<Cpu>(), boot_records_needed(cpus));
        for index in 0..len {
            // SAFETY: the caller promises that `memory` has space for `len` records.
            unsafe { records.add(index).write(Cpu::new()) };
        }
        self.boot_records.store(records, Ordering::Relaxed);
        self.boot_record_count.store(len, Ordering::Release);
    }

    /// Returns the frames of boot memory that hold records.
    #[cfg(not(loom))]
    pub(crate) fn memory(&self, direct_map: DirectMap) -> Option<PfnRange> {
        let records = self.boot_records();
        if records.is_empty() {
            return None;
        }
        let start = direct_map.frame_at(self.boot_records.load(Ordering::Relaxed).cast())?;
        PfnRange::with_len(start, (size_of_val(records) as u64).div_ceil(FRAME_SIZE))
    }
}

/// Returns the number of frames of boot memory that the records of this many CPUs need.
#[cfg(not(loom))]
pub(crate) const fn cpu_frames(cpus: u32) -> u64 {
    (boot_records_needed(cpus) as u64 * size_of::<Cpu>() as u64).div_ceil(FRAME_SIZE)
}

#[cfg(not(loom))]
const fn boot_records_needed(cpus: u32) -> usize {
    (cpus as usize).saturating_sub(INLINE_RECORDS)
}

#[cfg(not(loom))]
const _: () = assert!(align_of::<Cpu>() as u64 <= FRAME_SIZE);
