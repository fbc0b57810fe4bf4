//! Points of memory statistics (5.5.6.3).

use super::services::Service;
use super::session::Balloon;
use crate::device::Unsupported;
use crate::failure::{Failure, Stop, expect};

type Result = core::result::Result<(), Stop>;

/// The tags of memory that was swapped in, of free memory and of all memory, in bytes (5.5.6.4).
const SWAP_IN: u16 = 0;
const MEMFREE: u16 = 4;
const MEMTOT: u16 = 5;
/// A tag that no version of the specification defines.
const UNKNOWN: u16 = 0x7777;

/// The free memory that is reported first.
const FREE: u64 = 1 << 30;
/// The size of a statistic in bytes (5.5.6.3).
const ENTRY_BYTES: usize = 10;
/// A buffer has the size of this number of statistics, so that its size is also a multiple of 6, as
/// 5.5.6.3.1 demands although a statistic has 10 bytes.
const ENTRIES: usize = 3;

pub(crate) fn held_until_asked(balloon: &mut Balloon<'_>) -> Result {
    let queue = offer(balloon, SWAP_IN, FREE)?;
    if balloon.driver.settle(queue)?.is_some() {
        return Err(Failure::UnexpectedAnswer { queue }.into());
    }
    ask(balloon, queue)
}

pub(crate) fn unknown_tag(balloon: &mut Balloon<'_>) -> Result {
    let queue = offer(balloon, UNKNOWN, FREE)?;
    ask(balloon, queue)?;
    let free = FREE + FREE / 2;
    offer(balloon, UNKNOWN, free)?;
    let mut found = Ok(None);
    balloon.driver.wait_for(|driver| {
        found = driver.device().statistic(MEMFREE);
        found != Ok(None) && found != Ok(Some(FREE))
    });
    if found != Err(Unsupported) {
        let found = found.ok().flatten().unwrap_or(0);
        expect("the free memory, reported behind an unknown statistic", free, found)?;
    }
    // The device still answers.
    ask(balloon, queue)
}

/// Lets the device take its buffer, asks for statistics, and waits until it gives the buffer back.
///
/// A device on a thread may take the buffer only after it was asked, so it is asked once more.
fn ask(balloon: &mut Balloon<'_>, queue: u16) -> Result {
    if balloon.driver.settle(queue)?.is_some() {
        return Ok(());
    }
    balloon.driver.device().ask_statistics()?;
    match balloon.driver.wait(queue) {
        Err(Failure::NoAnswer { .. }) => balloon.driver.device().ask_statistics()?,
        Err(failure) => return Err(failure.into()),
        Ok(_) => return Ok(()),
    }
    balloon.driver.wait(queue)?;
    Ok(())
}

/// Makes a buffer with statistics available: first one with the tag `first`, then the free memory. Returns
/// the number of the queue.
///
/// A point calls it with the same tag each time, because a driver must supply the same statistics in all
/// buffers (5.5.6.3.1).
fn offer(balloon: &mut Balloon<'_>, first: u16, free: u64) -> core::result::Result<u16, Stop> {
    let queue = balloon.queue(Service::Statistics)?;
    let entries: [(u16, u64); ENTRIES] = [(first, 7), (MEMFREE, free), (MEMTOT, 4 * FREE)];
    let mut bytes = [0; ENTRY_BYTES * ENTRIES];
    for (place, (tag, value)) in bytes.chunks_exact_mut(ENTRY_BYTES).zip(entries) {
        place[..2].copy_from_slice(&tag.to_le_bytes());
        place[2..].copy_from_slice(&value.to_le_bytes());
    }
    let buffer = balloon.driver.readable(&bytes)?;
    balloon.driver.push(queue, &[buffer])?;
    balloon.driver.notify(queue);
    Ok(queue)
}
