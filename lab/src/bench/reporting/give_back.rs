//! Measures the time until the host has all free memory.

use crate::{hosted::Hosted, qemu::host, resident};
use anyhow::{Context, Result, ensure};
use hotmem::{AllocRequest, Bytes, NoHooks, OnlineType, report::Settings};
use std::{fmt, time::Instant};

/// The way in which memory is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// The reporter.
    Hotmem,
    /// One `madvise` over all of it.
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

/// Returns a default size that suits this host.
pub(super) fn usual_size() -> Bytes {
    let spare = host::available_memory().map_or(u64::MAX, |available| available.0 / 2);
    Bytes(Bytes::gib(8).0.min(spare >> 28 << 28).max(Bytes::mib(256).0))
}

/// Returns the seconds until the host has all of the memory.
pub(super) fn measure(subject: Subject, size: Bytes) -> Result<f64> {
    // The list of the frames is small compared with the frames.
    host::ensure_available(Bytes(size.0 + size.0 / 64))?;
    let machine = Hosted::builder().room(size).build()?;
    let mut hotplug = machine.boot()?;
    let room = machine.room();
    hotplug.announce(room)?;
    hotplug.add(room)?;
    hotplug.online(room, OnlineType::Movable, &mut NoHooks)?;
    let reporter = machine.reporter(Settings::EAGER)?;
    reporter.set_on(false);

    let mut frames = Vec::with_capacity(usize::try_from(size.frames())?);
    for _ in 0..size.frames() {
        let frame = machine.frames().alloc(AllocRequest::frames(1).movable())?.into_raw();
        if let Some(address) = machine.address_of(frame.start()) {
            // SAFETY: the frame was allocated just now.
            unsafe { address.write_volatile(1) };
        }
        frames.push(frame);
    }
    fastrand::Rng::with_seed(1).shuffle(&mut frames);
    // SAFETY: they were taken above, and are freed once.
    frames.drain(..).try_for_each(|frame| unsafe { machine.frames().free_raw(frame) })?;

    let address = machine.address_of(room.start()).context("the room is nowhere")?;
    ensure!(resident::held_at(address, size)? == size, "not all of {size} was touched");
    let started = Instant::now();
    match subject {
        Subject::Hotmem => {
            reporter.set_on(true);
            reporter.settle();
        }
        Subject::Limit => machine.give_back(room),
    }
    let seconds = started.elapsed().as_secs_f64();
    let held = resident::held_at(address, size)?;
    ensure!(held.0 <= size.0 / 100, "{held} did not go back to the host");
    Ok(seconds)
}
