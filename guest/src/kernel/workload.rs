//! The workload: it allocates plugged memory, fills it, checks it and frees it, as an application
//! would.
//!
//! Every frame holds its own pattern, which is checked before the frame is freed or migrated, and
//! at the end of the run.

use super::fatal::give_up;
use super::limits::MAX_DEVICES;
use super::mapped;
use super::memory::{FRAME_WORDS, FRAMES, alloc_frames};
use super::poison;
use super::progress::WATCHDOG;
use core::fmt;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{AllocRequest, Bytes, Migration, Pfn, PfnRange};
use hotmem_guest::cmdline::{Options, Release, Touch};
use hotmem_guest::frame_words;
use hotmem_guest::owned::OwnedFrames;
use hotmem_guest::pattern;
use hotmem_guest::to_usize;

/// The sizes of allocations in frames, in the order in which they are tried.
const SIZES: [u64; 3] = [PAGEBLOCK_FRAMES as u64, 64, 1];

/// The state of the workload.
pub(crate) struct Workload {
    owned: OwnedFrames,
    /// The memory that it may touch: that of each device, and last the boot memory.
    regions: [PfnRange; MAX_DEVICES + 1],
    /// The maximal number of frames that it may own: in total, and of devices' memory.
    limit: u64,
    touch: u64,
    seed: u64,
    release: Release,
    verified: u64,
    /// Its way of allocating; `None` if it has all memory that it needs or can get.
    taking: Option<Taking>,
}

#[derive(Clone, Copy)]
enum Taking {
    /// Anywhere, in pieces of one of [`SIZES`].
    Anywhere(usize),
    /// Upwards from here, pageblock by pageblock, because the allocator prefers other memory.
    Upwards(Pfn),
    /// Downwards from here, in scattered pieces, which a shrink must migrate.
    Downwards(Pfn),
}

impl Workload {
    /// Makes a workload that owns nothing.
    pub(crate) fn new(options: &Options) -> Self {
        let touch = match options.touch {
            Touch::UpTo(bytes) => bytes.frames(),
            Touch::All => u64::MAX,
        };
        // SAFETY: its nodes are frames that `own` allocates, which are mapped and never freed.
        let owned = unsafe { OwnedFrames::new(FRAME_WORDS) };
        let Options { seed, release, .. } = *options;
        let regions = [PfnRange::EMPTY; MAX_DEVICES + 1];
        let limit = touch;
        Workload { owned, regions, limit, touch, seed, release, verified: 0, taking: None }
    }

    /// Adds the region of a device.
    pub(crate) fn watch(&mut self, device: usize, region: PfnRange) {
        self.regions[device] = region;
    }

    /// Removes the region of a device.
    pub(crate) fn forget(&mut self, device: usize) {
        self.regions[device] = PfnRange::EMPTY;
    }

    /// Makes the workload allocate `work` of all memory. `boot` is the boot memory.
    pub(crate) fn work(&mut self, boot: PfnRange, work: Bytes) {
        self.regions[MAX_DEVICES] = boot;
        self.limit = work.frames();
        self.try_again();
    }

    /// Fills all free memory of `boot` with the value of free memory.
    pub(crate) fn fill_free(&mut self, boot: PfnRange) {
        self.work(boot, boot.bytes());
        while let Some(frames) = self.take_some() {
            if !self.own(frames) {
                free_frames(frames);
                break;
            }
            WATCHDOG.progress();
        }
        self.free_all();
        self.taking = None;
    }

    /// Returns the number of frames that it needs and did not get.
    pub(crate) fn lacks(&self) -> u64 {
        let anywhere = !self.regions[MAX_DEVICES].is_empty();
        if anywhere { self.limit.saturating_sub(self.owned.len()) } else { 0 }
    }

    /// Makes it try again, because memory was freed.
    pub(crate) fn try_again(&mut self) {
        self.taking = Some(Taking::Anywhere(0));
    }

    /// Makes it allocate again, because memory may have been plugged.
    pub(crate) fn memory_was_plugged(&mut self) {
        self.regions[MAX_DEVICES] = PfnRange::EMPTY;
        self.limit = self.touch;
        self.taking = Some(match self.release {
            Release::Never => Taking::Downwards(Pfn::LIMIT),
            Release::Checked | Release::Unchecked => Taking::Anywhere(0),
        });
    }

    /// Allocates some frames and fills them. Returns the amount, or `None` if it has all memory
    /// that it needs or can get.
    pub(crate) fn touch_some(&mut self) -> Option<Bytes> {
        let frames = self.take_some()?;
        poison::check(frames);
        for frame in each(frames) {
            // SAFETY: the frame was just allocated, so it is mapped and has no other user.
            unsafe { pattern::write(FRAME_WORDS, frame, self.seed) }
        }
        if !self.own(frames) {
            self.taking = None;
            free_frames(frames);
            return None;
        }
        WATCHDOG.progress();
        Some(frames.bytes())
    }

    /// Returns the amount of memory that was checked since the last call.
    pub(crate) fn take_verified(&mut self) -> Bytes {
        Bytes(core::mem::take(&mut self.verified) * FRAME_SIZE)
    }

    /// Checks all memory that it owns, and frees it.
    pub(crate) fn verify_and_free_all(&mut self) {
        let mut from = Pfn::ZERO;
        while let Some(next) = self.verify_some(from) {
            from = next;
        }
        self.free_all();
    }

    /// Checks the next pageblock's worth of its memory from here up. Returns where to continue, or
    /// `None` at the end.
    pub(crate) fn verify_some(&mut self, from: Pfn) -> Option<Pfn> {
        let run = self.owned.first_run(PfnRange::new(from, self.end())?)?;
        let part = run.chunks(PAGEBLOCK_FRAMES as u64).next()?;
        self.verify(part);
        Some(part.end())
    }

    /// Frees all memory that it owns. Returns the amount.
    pub(crate) fn free_all(&mut self) -> Bytes {
        let before = self.owned.len();
        let mut rest = PfnRange::new(Pfn::ZERO, self.end()).unwrap_or(PfnRange::EMPTY);
        while let Some(run) = self.owned.first_run(rest) {
            self.owned.remove(run);
            run.chunks(PAGEBLOCK_FRAMES as u64).for_each(free_frames);
            rest = rest.split_at(run.end()).1;
        }
        WATCHDOG.progress();
        Bytes((before - self.owned.len()) * FRAME_SIZE)
    }

    /// Migrates these frames, a run within one pageblock. Returns `None` if it does not own them.
    pub(crate) fn migrate(&mut self, used: PfnRange) -> Option<Migration> {
        let mine = self.owned.first_run(used)?;
        if self.release != Release::Unchecked {
            self.verify(mine);
        }
        if self.release != Release::Never {
            self.owned.remove(mine);
            free_frames(mine);
            return Some(Migration::Gone);
        }
        let moved = each(mine).take_while(|&frame| self.move_frame(frame)).count();
        Some(if moved == 0 { Migration::Retry } else { Migration::Moved })
    }

    /// Frees its memory in this pageblock, if it should free memory that a shrink needs.
    pub(crate) fn discard(&mut self, within: PfnRange) {
        if self.release != Release::Never {
            while self.migrate(within).is_some() {}
        }
    }

    /// Migrates a frame. Returns whether there was a frame to migrate it to.
    fn move_frame(&mut self, from: Pfn) -> bool {
        let Ok(new) = alloc_frames(mapped::elsewhere(from)) else { return false };
        if !self.own(new) {
            free_frames(new);
            return false;
        }
        let to = new.start();
        // SAFETY: the workload owns both frames, which are mapped and differ.
        unsafe {
            let (source, copy) = (FRAME_WORDS.pointer(from), FRAME_WORDS.pointer(to));
            source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
            pattern::check_copy(FRAME_WORDS, to, from, self.seed).unwrap_or_else(|m| give_up(m));
            // The new frame gets a pattern of its own.
            pattern::write(FRAME_WORDS, to, self.seed);
        }
        let old = PfnRange::with_len(from, 1).unwrap_or(PfnRange::EMPTY);
        self.owned.remove(old);
        free_frames(old);
        true
    }

    fn take_some(&mut self) -> Option<PfnRange> {
        loop {
            let left = self.limit.saturating_sub(self.owned.len());
            self.taking = self.taking.filter(|_| left > 0);
            match self.taking? {
                Taking::Anywhere(size) => {
                    let frames = SIZES[size].min(left);
                    match alloc_frames(AllocRequest::frames(frames).movable()) {
                        Ok(range) if self.is_plugged(range) => return Some(range),
                        Ok(elsewhere) => free_frames(elsewhere),
                        Err(_) => {}
                    }
                    self.taking = Some(if size + 1 < SIZES.len() {
                        Taking::Anywhere(size + 1)
                    } else {
                        Taking::Upwards(Pfn::ZERO)
                    });
                }
                Taking::Upwards(pfn) => {
                    let block = self.block_from(pfn);
                    let next = block.and_then(|block| block.checked_add(PAGEBLOCK_FRAMES as u64));
                    self.taking = next.map(Taking::Upwards);
                    let pfn = block?;
                    let frames = (PAGEBLOCK_FRAMES as u64).min(left);
                    if let Ok(range) = alloc_frames(AllocRequest::frames(frames).movable().at(pfn))
                    {
                        return Some(range);
                    }
                }
                Taking::Downwards(end) => {
                    let block = self.block_below(end);
                    self.taking = block.map(Taking::Downwards);
                    let (first, frames) = scatter(block?, self.seed);
                    let want = AllocRequest::frames(frames.min(left)).movable();
                    if let Ok(range) = alloc_frames(want.at(first)) {
                        return Some(range);
                    }
                }
            }
        }
    }

    /// Returns the regions of devices.
    fn regions(&self) -> impl Iterator<Item = PfnRange> {
        self.regions.into_iter().filter(|region| !region.is_empty())
    }

    fn is_plugged(&self, frames: PfnRange) -> bool {
        self.regions().any(|region| region.covers(frames))
    }

    /// Returns the first pageblock of a device's memory from here up.
    fn block_from(&self, pfn: Pfn) -> Option<Pfn> {
        let above = self.regions().filter(|region| pfn < region.end());
        above.map(|region| region.start().max(pfn)).min()
    }

    /// Returns the last pageblock of a device's memory below here.
    fn block_below(&self, pfn: Pfn) -> Option<Pfn> {
        let below = self.regions().filter(|region| region.start() < pfn);
        let end = below.map(|region| region.end().min(pfn)).max()?;
        Pfn::new(end.number().checked_sub(PAGEBLOCK_FRAMES as u64)?)
    }

    /// Returns the end of the highest region.
    fn end(&self) -> Pfn {
        self.regions().map(PfnRange::end).max().unwrap_or(Pfn::ZERO)
    }

    /// Adds frames to the set. Returns whether there was memory for its nodes.
    fn own(&mut self, frames: PfnRange) -> bool {
        // Nodes are never freed, so they must not lie in a device's memory.
        let devices = &self.regions[..MAX_DEVICES];
        let devices = devices.iter().filter(|region| !region.is_empty());
        let lowest = devices.map(|region| region.start()).min().unwrap_or(Pfn::LIMIT);
        let want = AllocRequest::frames(1).within(..lowest);
        let table = || Some(alloc_frames(want).ok()?.start());
        self.owned.insert(frames, table).is_ok()
    }

    fn verify(&mut self, frames: PfnRange) {
        for frame in each(frames) {
            // SAFETY: the workload owns the frame, so it is mapped.
            let found = unsafe { pattern::check(FRAME_WORDS, frame, self.seed) };
            found.unwrap_or_else(|mismatch| give_up(mismatch));
        }
        self.verified += frames.frames();
        WATCHDOG.progress();
    }
}

/// Returns a random piece of a pageblock: its first frame and its length.
fn scatter(block: Pfn, seed: u64) -> (Pfn, u64) {
    let all = PAGEBLOCK_FRAMES as u64;
    let random = pattern::mix(block.number() ^ seed);
    let skipped = random % all;
    let frames = 1 + (random >> 32) % (all - skipped);
    (block.checked_add(skipped).unwrap_or(block), frames)
}

fn each(frames: PfnRange) -> impl Iterator<Item = Pfn> {
    (frames.start().number()..frames.end().number()).filter_map(Pfn::new)
}

/// Frees frames that were allocated, once.
fn free_frames(frames: PfnRange) {
    // SAFETY: the workload owned them, and has removed them from its set.
    unsafe { FRAMES.free_raw_filled(frames) }.unwrap_or_else(|error| refused(error));
}

fn refused(error: impl fmt::Display) -> ! {
    give_up(format_args!("the engine refused to take frames back: {error}"))
}
