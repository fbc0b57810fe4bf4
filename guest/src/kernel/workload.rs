//! Implements the workload, which allocates plugged memory, fills it, checks it and frees it, as an
//! application would.
//!
//! Every frame holds its own pattern. The pattern is checked before the frame is freed or migrated,
//! and at the end of the run.

use super::contents::{self, NewFrames};
use super::fatal::give_up;
use super::memory::{FRAME_WORDS, FRAMES, alloc_frames};
use super::migratable_window;
use super::progress::WATCHDOG;
use core::fmt;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{AllocRequest, Bytes, Migration, Pfn, PfnRange};
use hotmem_guest::cmdline::{Options, Release, Touch};
use hotmem_guest::frame_words::{self, each_frame};
use hotmem_guest::limits::{MAX_DAX, MAX_DEVICES, MAX_DIMMS};
use hotmem_guest::owned::OwnedFrames;
use hotmem_guest::pattern;
use hotmem_guest::to_usize;

/// The sizes of allocations in frames, in the order in which they are tried.
const SIZES: [u64; 3] = [PAGEBLOCK_FRAMES as u64, 64, 1];

/// The index of boot memory among the regions.
const BOOT_MEMORY: usize = FIRST_DAX + MAX_DAX;
/// The index of the first memory of a device that commands make RAM.
const FIRST_DAX: usize = MAX_DEVICES + MAX_DIMMS;

/// The state of the workload.
pub(crate) struct Workload {
    owned_frames: OwnedFrames,
    /// The memory that the workload may touch: the region of each device, the memory of each memory
    /// slot, memory that commands make RAM, and as the last element the boot memory.
    regions: [PfnRange; BOOT_MEMORY + 1],
    /// The number of frames that the workload may own at present.
    limit: u64,
    /// The number of frames that the workload may own after memory was plugged (`hotmem.touch`).
    touch_limit: u64,
    seed: u64,
    release: Release,
    verified_frames: u64,
    /// The strategy of the next allocation, or `None` if the workload has all memory that it needs
    /// or can get.
    strategy: Option<Strategy>,
}

#[derive(Clone, Copy)]
enum Strategy {
    /// Anywhere, in runs of one of [`SIZES`].
    Anywhere(usize),
    /// In the regions at or above this frame, pageblock by pageblock in ascending order. This
    /// strategy uses memory of the regions that `Anywhere` has not allocated.
    Upwards(Pfn),
    /// In the regions below this frame, pageblock by pageblock in descending order: a random
    /// run of each pageblock, which a shrink must migrate.
    Downwards(Pfn),
}

impl Workload {
    /// Returns a workload that owns no memory.
    pub(crate) fn new(options: &Options) -> Self {
        let touch_limit = match options.touch {
            Touch::UpTo(bytes) => bytes.frames(),
            Touch::All => u64::MAX,
        };
        // SAFETY: the set's nodes are frames that `add_owned` allocates. They are mapped and never
        // freed, and nothing else uses them.
        let owned_frames = unsafe { OwnedFrames::new(FRAME_WORDS) };
        Workload {
            owned_frames,
            regions: [PfnRange::EMPTY; BOOT_MEMORY + 1],
            limit: touch_limit,
            touch_limit,
            seed: options.seed,
            release: options.release,
            verified_frames: 0,
            strategy: None,
        }
    }

    /// Adds the region of a device.
    pub(crate) fn add_region(&mut self, device: usize, region: PfnRange) {
        self.regions[device] = region;
    }

    /// Removes the region of a device.
    pub(crate) fn remove_region(&mut self, device: usize) {
        self.regions[device] = PfnRange::EMPTY;
    }

    /// Adds the memory of a memory slot, or removes it if `dimm` is empty.
    pub(crate) fn set_dimm(&mut self, slot: u32, dimm: PfnRange) {
        self.regions[MAX_DEVICES + to_usize(slot.into())] = dimm;
    }

    /// Adds memory that a command has made RAM, or removes it if `memory` is empty.
    pub(crate) fn set_dax(&mut self, number: usize, memory: PfnRange) {
        self.regions[FIRST_DAX + number] = memory;
    }

    /// Makes the workload allocate up to `limit` of boot memory and devices' memory. `boot` is the
    /// boot memory.
    pub(crate) fn use_any_memory(&mut self, boot: PfnRange, limit: Bytes) {
        self.regions[BOOT_MEMORY] = boot;
        self.limit = limit.frames();
        self.try_again();
    }

    /// Fills all free memory of `boot` with the value of free memory, by allocating and freeing it.
    pub(crate) fn fill_free(&mut self, boot: PfnRange) {
        self.use_any_memory(boot, boot.bytes());
        while let Some(frames) = self.allocate_some() {
            let frames = frames.range();
            if !self.add_owned(frames) {
                free_frames(frames);
                break;
            }
            WATCHDOG.progress();
        }
        self.free_all();
        self.strategy = None;
    }

    /// Returns the number of frames that the workload still needs. The number is 0 if the workload
    /// may use devices' memory only.
    pub(crate) fn missing_frames(&self) -> u64 {
        let may_use_boot_memory = !self.regions[BOOT_MEMORY].is_empty();
        if may_use_boot_memory { self.limit.saturating_sub(self.owned_frames.len()) } else { 0 }
    }

    /// Makes the workload allocate again, because memory was freed.
    pub(crate) fn try_again(&mut self) {
        self.strategy = Some(Strategy::Anywhere(0));
    }

    /// Makes the workload allocate devices' memory only, because memory may have been plugged.
    pub(crate) fn memory_was_plugged(&mut self) {
        self.regions[BOOT_MEMORY] = PfnRange::EMPTY;
        self.limit = self.touch_limit;
        self.strategy = Some(match self.release {
            Release::Never => Strategy::Downwards(Pfn::LIMIT),
            Release::Checked | Release::Unchecked => Strategy::Anywhere(0),
        });
    }

    /// Allocates some frames and fills them. Returns the amount, or `None` if the workload has all
    /// memory that it needs or can get.
    pub(crate) fn touch_some(&mut self) -> Option<Bytes> {
        let frames = self.allocate_some()?.check();
        for frame in each_frame(frames) {
            // SAFETY: the frame was just allocated, so it is mapped and has no other user.
            unsafe { pattern::write(FRAME_WORDS, frame, self.seed) }
        }
        if !self.add_owned(frames) {
            self.strategy = None;
            free_frames(frames);
            return None;
        }
        WATCHDOG.progress();
        Some(frames.bytes())
    }

    /// Returns the amount of memory that was checked since the last call.
    pub(crate) fn take_verified(&mut self) -> Bytes {
        Bytes(core::mem::take(&mut self.verified_frames) * FRAME_SIZE)
    }

    /// Checks all memory that the workload owns, and frees it.
    pub(crate) fn verify_and_free_all(&mut self) {
        let mut from = Pfn::ZERO;
        while let Some(next) = self.verify_some(from) {
            from = next;
        }
        self.free_all();
    }

    /// Checks the workload's next frames at or above `from`, at most as many as a pageblock has.
    /// Returns the frame at which to continue, or `None` if there were no more frames.
    pub(crate) fn verify_some(&mut self, from: Pfn) -> Option<Pfn> {
        let run = self.owned_frames.first_run(PfnRange::new(from, self.end())?)?;
        let part = run.chunks(PAGEBLOCK_FRAMES as u64).next()?;
        self.verify(part);
        Some(part.end())
    }

    /// Frees all memory that the workload owns. Returns the amount.
    pub(crate) fn free_all(&mut self) -> Bytes {
        let old_len = self.owned_frames.len();
        let mut remaining = PfnRange::new(Pfn::ZERO, self.end()).unwrap_or(PfnRange::EMPTY);
        while let Some(run) = self.owned_frames.first_run(remaining) {
            self.owned_frames.remove(run);
            run.chunks(PAGEBLOCK_FRAMES as u64).for_each(free_frames);
            remaining = remaining.split_at(run.end()).1;
        }
        WATCHDOG.progress();
        Bytes((old_len - self.owned_frames.len()) * FRAME_SIZE)
    }

    /// Migrates the first run of frames of `used` that the workload owns. `used` is a run within
    /// one pageblock. Returns `None` if the workload owns no frame of `used`.
    pub(crate) fn migrate(&mut self, used: PfnRange) -> Option<Migration> {
        let owned_run = self.owned_frames.first_run(used)?;
        if self.release != Release::Unchecked {
            self.verify(owned_run);
        }
        if self.release != Release::Never {
            self.owned_frames.remove(owned_run);
            free_frames(owned_run);
            return Some(Migration::Freed);
        }
        let moved = each_frame(owned_run).take_while(|&frame| self.move_frame(frame)).count();
        Some(if moved == 0 { Migration::Retry } else { Migration::Moved })
    }

    /// Frees frames that have lost their contents. Returns whether the workload owned them.
    pub(crate) fn abandon(&mut self, frames: PfnRange) -> bool {
        let is_owner = self.owned_frames.first_run(frames) == Some(frames);
        if is_owner {
            self.owned_frames.remove(frames);
            free_frames(frames);
        }
        is_owner
    }

    /// Frees the workload's memory in the pageblock `within`, if `hotmem.release` is not `off`.
    pub(crate) fn discard(&mut self, within: PfnRange) {
        if self.release != Release::Never {
            while self.migrate(within).is_some() {}
        }
    }

    /// Migrates the frame `from`. Returns whether there was a frame to which it could be migrated.
    fn move_frame(&mut self, from: Pfn) -> bool {
        let Ok(new) = alloc_frames(migratable_window::request_elsewhere(from)) else {
            return false;
        };
        if !self.add_owned(new) {
            free_frames(new);
            return false;
        }
        let to = new.start();
        // SAFETY: the workload owns both frames. They are mapped and differ.
        unsafe {
            let (source, copy) = (FRAME_WORDS.pointer(from), FRAME_WORDS.pointer(to));
            source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
            pattern::check_copy(FRAME_WORDS, to, from, self.seed)
                .unwrap_or_else(|mismatch| give_up(mismatch));
            // The pattern depends on the frame's number, so write that of the new frame.
            pattern::write(FRAME_WORDS, to, self.seed);
        }
        let old = PfnRange::with_len(from, 1).unwrap_or(PfnRange::EMPTY);
        self.owned_frames.remove(old);
        free_frames(old);
        true
    }

    fn allocate_some(&mut self) -> Option<NewFrames> {
        loop {
            let missing = self.limit.saturating_sub(self.owned_frames.len());
            self.strategy = self.strategy.filter(|_| missing > 0);
            match self.strategy? {
                Strategy::Anywhere(size) => {
                    let frames = SIZES[size].min(missing);
                    match contents::alloc_unchecked(AllocRequest::frames(frames).movable()) {
                        Ok(new) if self.is_in_a_region(new.range()) => return Some(new),
                        Ok(elsewhere) => free_frames(elsewhere.range()),
                        Err(_) => {}
                    }
                    self.strategy = Some(if size + 1 < SIZES.len() {
                        Strategy::Anywhere(size + 1)
                    } else {
                        Strategy::Upwards(Pfn::ZERO)
                    });
                }
                Strategy::Upwards(pfn) => {
                    let block = self.block_from(pfn);
                    let next = block.and_then(|block| block.checked_add(PAGEBLOCK_FRAMES as u64));
                    self.strategy = next.map(Strategy::Upwards);
                    let pfn = block?;
                    let frames = (PAGEBLOCK_FRAMES as u64).min(missing);
                    let request = AllocRequest::frames(frames).movable().at(pfn);
                    if let Ok(new) = contents::alloc_unchecked(request) {
                        return Some(new);
                    }
                }
                Strategy::Downwards(end) => {
                    let block = self.block_below(end);
                    self.strategy = block.map(Strategy::Downwards);
                    let (first, frames) = random_run(block?, self.seed);
                    let request = AllocRequest::frames(frames.min(missing)).movable();
                    if let Ok(new) = contents::alloc_unchecked(request.at(first)) {
                        return Some(new);
                    }
                }
            }
        }
    }

    /// Returns the regions that are not empty.
    fn regions(&self) -> impl Iterator<Item = PfnRange> {
        self.regions.into_iter().filter(|region| !region.is_empty())
    }

    fn is_in_a_region(&self, frames: PfnRange) -> bool {
        self.regions().any(|region| region.covers(frames))
    }

    /// Returns the first frame of a region at or above `pfn`.
    fn block_from(&self, pfn: Pfn) -> Option<Pfn> {
        let above = self.regions().filter(|region| pfn < region.end());
        above.map(|region| region.start().max(pfn)).min()
    }

    /// Returns the start of the last pageblock of a region below `pfn`.
    fn block_below(&self, pfn: Pfn) -> Option<Pfn> {
        let below = self.regions().filter(|region| region.start() < pfn);
        let end = below.map(|region| region.end().min(pfn)).max()?;
        Pfn::new(end.number().checked_sub(PAGEBLOCK_FRAMES as u64)?)
    }

    /// Returns the end of the highest region.
    fn end(&self) -> Pfn {
        self.regions().map(PfnRange::end).max().unwrap_or(Pfn::ZERO)
    }

    /// Adds frames to the set of owned frames. Returns whether there was memory for the set's
    /// nodes.
    fn add_owned(&mut self, frames: PfnRange) -> bool {
        // Nodes are never freed, so they must not lie in a device's memory.
        let devices = &self.regions[..BOOT_MEMORY];
        let devices = devices.iter().filter(|region| !region.is_empty());
        let lowest = devices.map(|region| region.start()).min().unwrap_or(Pfn::LIMIT);
        let request = AllocRequest::frames(1).within(..lowest);
        let table = || Some(alloc_frames(request).ok()?.start());
        self.owned_frames.insert(frames, table).is_ok()
    }

    fn verify(&mut self, frames: PfnRange) {
        for frame in each_frame(frames) {
            // SAFETY: the workload owns the frame, so it is mapped and has no other user.
            let found = unsafe { pattern::check(FRAME_WORDS, frame, self.seed) };
            found.unwrap_or_else(|mismatch| give_up(mismatch));
        }
        self.verified_frames += frames.frames();
        WATCHDOG.progress();
    }
}

/// Returns a random run of a pageblock: its first frame and its length.
fn random_run(block: Pfn, seed: u64) -> (Pfn, u64) {
    let block_frames = PAGEBLOCK_FRAMES as u64;
    let random = pattern::mix_bits(block.number() ^ seed);
    let skipped = random % block_frames;
    let frames = 1 + (random >> 32) % (block_frames - skipped);
    (block.checked_add(skipped).unwrap_or(block), frames)
}

/// Frees frames that the workload has allocated and does not use any more.
fn free_frames(frames: PfnRange) {
    // SAFETY: the workload has allocated the frames, and has removed them from its set or never
    // added them.
    unsafe { FRAMES.fill_and_free_raw(frames) }.unwrap_or_else(|error| give_up_refused(error));
}

fn give_up_refused(error: impl fmt::Display) -> ! {
    give_up(format_args!("the engine refused to take frames back: {error}"))
}
