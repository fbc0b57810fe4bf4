//! Points of memory statistics (5.5.6.3).

use super::services::Service;
use super::session::Balloon;
use crate::device::Unsupported;
use crate::failure::{Failure, Stop, expect};

type Result = core::result::Result<(), Stop>;

/// The tag of free memory in bytes (5.5.6.4).
const MEMFREE: u16 = 4;
/// A tag that no version of the specification defines.
const UNKNOWN: u16 = 0x7777;

pub(crate) fn held_until_asked(balloon: &mut Balloon<'_>) -> Result {
    let queue = offer(balloon, &[(MEMFREE, 1 << 30)])?;
    if balloon.driver.settle(queue)?.is_some() {
        return Err(Failure::UnexpectedAnswer { queue }.into());
    }
    ask(balloon, queue)
}

pub(crate) fn unknown_tag(balloon: &mut Balloon<'_>) -> Result {
    let queue = offer(balloon, &[(MEMFREE, 1 << 30)])?;
    ask(balloon, queue)?;
    let free = 3 << 29;
    offer(balloon, &[(UNKNOWN, 7), (MEMFREE, free)])?;
    let mut found = Ok(None);
    balloon.driver.wait_for(|driver| {
        found = driver.device().statistic(MEMFREE);
        found != Ok(None) && found != Ok(Some(1 << 30))
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

/// Makes a buffer with statistics available, and returns the number of its queue.
fn offer(balloon: &mut Balloon<'_>, entries: &[(u16, u64)]) -> core::result::Result<u16, Stop> {
    let queue = balloon.queue(Service::Statistics)?;
    let mut bytes = [0; 40];
    for (place, (tag, value)) in bytes.chunks_exact_mut(10).zip(entries) {
        place[..2].copy_from_slice(&tag.to_le_bytes());
        place[2..].copy_from_slice(&value.to_le_bytes());
    }
    let buffer = balloon.driver.readable(&bytes[..10 * entries.len()])?;
    balloon.driver.push(queue, &[buffer])?;
    balloon.driver.notify(queue);
    Ok(queue)
}
