//! Points of free page reports (5.5.6.7).

use super::services::Service;
use super::session::Balloon;
use crate::driver::PAGE_BYTES;
use crate::failure::{Stop, require_contents};
use crate::ring::{Descriptor, read, write};

type Result = core::result::Result<(), Stop>;

const POISON: u8 = 0xaa;

pub(crate) fn readable_untouched(balloon: &mut Balloon<'_>) -> Result {
    let queue = balloon.queue(Service::Reports)?;
    balloon.mark(0..2)?;
    let chain = [balloon.page_buffer(0, false), balloon.page_buffer(1, true)];
    balloon.driver.send(queue, &chain)?;
    Ok(balloon.expect_kept("a page that the device only reads must keep its contents", 0)?)
}

pub(crate) fn poison_kept(balloon: &mut Balloon<'_>) -> Result {
    let queue = balloon.queue(Service::Reports)?;
    balloon.restart_with_poison(u32::from_le_bytes([POISON; 4]))?;
    let start = balloon.page(0);
    for offset in (0..PAGE_BYTES).step_by(64) {
        write(balloon.driver.device(), start + offset, &[POISON; 64])?;
    }
    balloon.driver.send(queue, &[balloon.page_buffer(0, true)])?;
    for offset in (0..PAGE_BYTES).step_by(64) {
        let is_poison = read(balloon.driver.device(), start + offset)? == [POISON; 64];
        require_contents("a reported page must hold the poison value", is_poison, start + offset)?;
    }
    Ok(())
}

/// The pages of the report alternate with pages that are not reported.
pub(crate) fn entries_32(balloon: &mut Balloon<'_>) -> Result {
    const ENTRIES: u32 = 32;
    let queue = balloon.queue(Service::Reports)?;
    balloon.mark(0..2 * ENTRIES)?;
    let mut chain = [Descriptor { addr: 0, len: 0, device_writes: true }; ENTRIES as usize];
    for (buffer, page) in chain.iter_mut().zip((0..).step_by(2)) {
        *buffer = balloon.page_buffer(page, true);
    }
    balloon.driver.send(queue, &chain)?;
    let is_first_kept = balloon.is_kept(0)?;
    for page in (0..2 * ENTRIES).step_by(2) {
        let is_alike = balloon.is_kept(page)? == is_first_kept;
        require_contents(
            "the device must treat all pages of a report like the first",
            is_alike,
            balloon.page(page),
        )?;
        balloon.expect_kept("a page that is not reported must keep its contents", page + 1)?;
    }
    Ok(())
}
