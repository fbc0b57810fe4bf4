//! Points of inflate and deflate requests (5.5.6).
//!
//! A device may change the contents of pages that it gets, and need not. A point that asks whether the
//! device has taken a page gives it a single page first. If the contents of that are lost, those of each
//! page of a longer request must be lost as well.

use super::services::Service::{Deflate, Inflate};
use super::session::{Balloon, MAX_PAGES};
use crate::failure::{Stop, expect, require_contents};
use crate::ring::{read, write};
use core::ops::Range;

type Result = core::result::Result<(), Stop>;

pub(crate) fn pfns_257(balloon: &mut Balloon<'_>) -> Result {
    need_loss_of_contents(balloon)?;
    let pages = 0..u32::try_from(MAX_PAGES).unwrap_or(0);
    balloon.mark(pages.clone())?;
    balloon.send_pages(Inflate, pages.clone(), &[4 * MAX_PAGES])?;
    balloon.send_pages(Deflate, pages.clone(), &[4 * MAX_PAGES])?;
    expect_loss_of_contents(balloon, pages)
}

pub(crate) fn split_array(balloon: &mut Balloon<'_>) -> Result {
    need_loss_of_contents(balloon)?;
    // The second division is inside of a number.
    for lengths in [[8, 8], [6, 10]] {
        balloon.mark(0..4)?;
        balloon.send_pages(Inflate, 0..4, &lengths)?;
        balloon.send_pages(Deflate, 0..4, &[16])?;
        expect_loss_of_contents(balloon, 0..4)?;
    }
    Ok(())
}

pub(crate) fn used_len_zero(balloon: &mut Balloon<'_>) -> Result {
    for service in [Inflate, Deflate] {
        let used_len = balloon.send_pages(service, 0..1, &[4])?;
        expect("the used length of a chain that the device only reads", 0u32, used_len)?;
    }
    Ok(())
}

pub(crate) fn contents_writable(balloon: &mut Balloon<'_>) -> Result {
    balloon.send_pages(Inflate, 0..2, &[8])?;
    balloon.send_pages(Deflate, 0..2, &[8])?;
    for page in 0..2 {
        let addr = balloon.page(page);
        write(balloon.driver.device(), addr, &0x1234_5678_9abc_def0u64.to_le_bytes())?;
        let found = u64::from_le_bytes(read(balloon.driver.device(), addr)?);
        expect("the contents of a deflated page", 0x1234_5678_9abc_def0u64, found)?;
    }
    Ok(())
}

/// Skips the point if a page that is given to the device alone keeps its contents, as it may if the host's
/// pages are larger.
fn need_loss_of_contents(balloon: &mut Balloon<'_>) -> Result {
    balloon.mark(0..1)?;
    balloon.send_pages(Inflate, 0..1, &[4])?;
    balloon.send_pages(Deflate, 0..1, &[4])?;
    if balloon.is_kept(0)? {
        return Err(Stop::Skipped("the device keeps the contents of inflated pages"));
    }
    Ok(())
}

fn expect_loss_of_contents(balloon: &mut Balloon<'_>, pages: Range<u32>) -> Result {
    for page in pages {
        let rule = "each page of a request must lose its contents, as a single page does";
        require_contents(rule, !balloon.is_kept(page)?, balloon.page(page))?;
    }
    Ok(())
}
