//! Touches memory of this process, which the host backs, as a kernel does for pages that must be
//! zero.
//!
//! All times are CPU times of the thread, which include the host's faults. The published figures
//! are CPU times as well.

use super::{Subject, TIME};
use crate::bench::fragmentation::machine;
use crate::bench::frames::cpu_time;
use crate::bench::record::{Metric, Sample};
use crate::hosted::{HostPages, Hosted};
use anyhow::{Context, Result, ensure};
use hotmem::{
    AllocRequest, Bytes, Contents, PfnRange,
    geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES},
    report::ReporterSettings,
};
use std::time::Duration;

/// The time for freeing all frames again, which fills them if free memory has defined contents.
pub(super) const FREE_TIME: Metric = ("freeing", "s");
/// The time for the first frame of a pageblock, in which the host backs that frame or the
/// pageblock.
const FIRST_FRAME: Metric = ("first_frame", "s");
/// The time for one of the other frames of a pageblock.
pub(super) const OTHER_FRAME: Metric = ("other_frame", "s");

/// The times of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    touching: Duration,
    freeing: Duration,
    /// The part of `touching` that the first frames of all pageblocks took.
    first_frames: Duration,
    pageblocks: u64,
}

/// The frames of all memory, each allocated alone.
type Held = Vec<PfnRange>;

/// Measures one subject on a machine of `size`.
pub(super) fn measure(subject: Subject, size: Bytes, pages: HostPages) -> Result<Costs> {
    let machine = machine(size)?;
    machine.set_host_pages(pages).context("setting the pages by which the host backs memory")?;
    match subject {
        Subject::Hotmem => machine.keep_zero_marks(),
        // None of the memory was touched, so all of it is zero.
        Subject::Filled => machine.frames().set_contents(Contents::Filled(0))?,
        Subject::NoMarks | Subject::Resident => {}
    }
    let mut held = Vec::with_capacity(usize::try_from(size.frames())?);
    allocate_all(&machine, size, &mut held, |address| {
        // SAFETY: `allocate_all` has allocated the frame at `address`.
        unsafe { address.write_bytes(0xa5, usize::try_from(FRAME_SIZE).unwrap_or(0)) };
    })?;
    free_all(&machine, &mut held)?;
    let reporter = machine.reporter(ReporterSettings::EAGER)?;
    if subject.is_reported() {
        reporter.settle();
        let reported = machine.frames().counts().reported;
        ensure!(reported == size.frames(), "{reported} of {} frames were reported", size.frames());
    }
    drop(reporter);

    let mut first_frames = Duration::ZERO;
    let started = cpu_time();
    allocate_all(&machine, size, &mut held, |address| {
        // SAFETY: `allocate_all` has allocated the frame at `address`.
        unsafe { address.cast::<u64>().write_volatile(1) };
    })
    .map(|of_first_frames| first_frames = of_first_frames)?;
    let touching = cpu_time() - started;
    check_zero(&machine, &held)?;
    let started = cpu_time();
    free_all(&machine, &mut held)?;
    let freeing = cpu_time() - started;
    let pageblocks = size.frames() / PAGEBLOCK_FRAMES as u64;
    Ok(Costs { touching, freeing, first_frames, pageblocks })
}

/// Allocates all memory in single frames that are zero, and calls `touch` with the address of each.
/// Returns the time that the first frames of all pageblocks took.
fn allocate_all(
    machine: &Hosted,
    size: Bytes,
    held: &mut Held,
    touch: impl Fn(*mut u8),
) -> Result<Duration> {
    let mut first_frames = Duration::ZERO;
    for index in 0..size.frames() {
        let started = index.is_multiple_of(PAGEBLOCK_FRAMES as u64).then(cpu_time);
        let frame = machine.frames().alloc_zeroed(AllocRequest::frames(1).movable())?.into_raw();
        touch(address_of(machine, frame)?);
        held.push(frame);
        first_frames += started.map_or(Duration::ZERO, |started| cpu_time() - started);
    }
    let is_in_order = |part: &[PfnRange]| {
        let block = |frame: &PfnRange| frame.start().number() / PAGEBLOCK_FRAMES as u64;
        part.iter().all(|frame| block(frame) == block(&part[0]))
    };
    ensure!(
        held.chunks(PAGEBLOCK_FRAMES).all(is_in_order),
        "frames of several pageblocks were allocated in turn"
    );
    Ok(first_frames)
}

/// Frees all frames, filled if free memory has defined contents.
fn free_all(machine: &Hosted, held: &mut Held) -> Result<()> {
    // SAFETY: `allocate_all` has allocated the frames, and each is freed once.
    held.drain(..).try_for_each(|frame| unsafe { machine.frames().fill_and_free_raw(frame) })?;
    Ok(())
}

/// Checks that all frames are zero after the word that was written.
fn check_zero(machine: &Hosted, held: &Held) -> Result<()> {
    for &frame in held {
        let words: *const u64 = address_of(machine, frame)?.cast();
        let mut words = (1..usize::try_from(FRAME_SIZE / 8)?).map(|index| {
            // SAFETY: the caller holds the frame, and the index lies within it.
            unsafe { words.add(index).read() }
        });
        ensure!(words.all(|word| word == 0), "{frame} is not zero");
    }
    Ok(())
}

/// Returns the address of a frame.
pub(super) fn address_of(machine: &Hosted, frame: PfnRange) -> Result<*mut u8> {
    let address = machine.address_of(frame.start());
    Ok(address.with_context(|| format!("{frame} has no address"))?.as_ptr())
}

impl Costs {
    /// Adds the figures of one run to the sample.
    pub(super) fn record(&self, case: &str, subject: &str, sample: &mut Sample) {
        let pageblocks = self.pageblocks as f64;
        let other_frames = pageblocks * (PAGEBLOCK_FRAMES - 1) as f64;
        let of_others = self.touching.saturating_sub(self.first_frames);
        for (metric, seconds) in [
            (TIME, self.touching.as_secs_f64()),
            (FREE_TIME, self.freeing.as_secs_f64()),
            (FIRST_FRAME, self.first_frames.as_secs_f64() / pageblocks),
            (OTHER_FRAME, of_others.as_secs_f64() / other_frames),
        ] {
            sample.add(case, subject, metric, seconds);
        }
    }
}
