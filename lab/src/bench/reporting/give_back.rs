//! Measures the time until the host has taken back all free memory.

use crate::{hosted::Hosted, qemu::host, resident};
use anyhow::{Context, Result, ensure};
use hotmem::{AllocRequest, Bytes, NoHooks, OnlineType, report::ReporterSettings};
use std::{fmt, time::Instant};

/// The way in which memory is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// The reporter.
    Hotmem,
    /// One `madvise` over all of the memory.
    Limit,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Hotmem => "hotmem",
            Subject::Limit => "limit",
        })
    }
}

/// Returns the default size: 8 GiB, or half of the available memory if that is less.
pub(super) fn default_size() -> Bytes {
    let half = host::available_memory().map_or(u64::MAX, |available| available.0 / 2);
    Bytes(Bytes::gib(8).0.min(half >> 28 << 28).max(Bytes::mib(256).0))
}

/// Writes and frees `size` bytes of memory, and returns the seconds until the host has taken back
/// all of the memory.
pub(super) fn measure(subject: Subject, size: Bytes) -> Result<f64> {
    // The list of the frames needs less than a 64th of the memory.
    host::ensure_available(Bytes(size.0 + size.0 / 64))?;
    let machine = Hosted::builder().hotplug_size(size).build()?;
    let mut hotplug = machine.boot()?;
    let hotplug_range = machine.hotplug_range();
    hotplug.announce(hotplug_range)?;
    hotplug.add(hotplug_range)?;
    hotplug.online(hotplug_range, OnlineType::Movable, &mut NoHooks)?;
    let reporter = machine.reporter(ReporterSettings::EAGER)?;
    reporter.set_on(false);

    let mut frames = Vec::with_capacity(usize::try_from(size.frames())?);
    for _ in 0..size.frames() {
        let frame = machine.frames().alloc(AllocRequest::frames(1).movable())?.into_raw();
        if let Some(address) = machine.address_of(frame.start()) {
            // SAFETY: the frame was allocated above, so this function may write to it.
            unsafe { address.write_volatile(1) };
        }
        frames.push(frame);
    }
    fastrand::Rng::with_seed(1).shuffle(&mut frames);
    // SAFETY: the frames were allocated above, and each is freed once.
    frames.drain(..).try_for_each(|frame| unsafe { machine.frames().free_raw(frame) })?;

    let address =
        machine.address_of(hotplug_range.start()).context("the plugged memory has no address")?;
    ensure!(
        resident::committed_at(address, size)? == size,
        "not all of {size} is resident after it was written"
    );
    let started = Instant::now();
    match subject {
        Subject::Hotmem => {
            reporter.set_on(true);
            reporter.settle();
        }
        Subject::Limit => machine.return_to_host(hotplug_range),
    }
    let seconds = started.elapsed().as_secs_f64();
    let still_resident = resident::committed_at(address, size)?;
    ensure!(
        still_resident.0 <= size.0 / 100,
        "{still_resident} of the free memory did not go back to the host"
    );
    Ok(seconds)
}
