//! Drives a balloon, and keeps a model of it.

use super::services::{Queues, Service};
use super::wire::{DEVICE_ID, FEATURES, NUM_PAGES, PAGE_POISON, POISON_VALUE};
use crate::device_type::DeviceType;
use crate::driver::{Driver, PAGE_BYTES};
use crate::failure::{Failure, Stop, expect, require_contents};
use crate::ring::{Descriptor, read, write};

/// The bytes at both ends of a page that show whether its contents are kept.
const MARK_BYTES: usize = 64;
/// The byte of pages before they are given to the device.
const MARK: u8 = 0x5a;

/// A balloon that is started, and what it should be like.
pub(crate) struct Balloon<'a> {
    pub(super) driver: Driver<'a>,
    offered: u64,
    queues: Queues,
    num_pages: u32,
}

impl<'a> Balloon<'a> {
    /// Starts a balloon with all services that it offers, and without page poison.
    pub(crate) fn start(mut driver: Driver<'a>) -> Result<Balloon<'a>, Stop> {
        let offered = driver.offered();
        let queues = Queues::find(&mut driver, offered);
        let mut balloon = Balloon { driver, offered, queues, num_pages: 0 };
        balloon.driver.restart(offered & FEATURES)?;
        balloon.num_pages = balloon.driver.config(NUM_PAGES);
        Ok(balloon)
    }

    /// Resets the balloon, and starts it with a poison value (5.5.6.6).
    pub(super) fn restart_with_poison(&mut self, value: u32) -> Result<(), Stop> {
        if self.offered & PAGE_POISON == 0 {
            return Err(Stop::Skipped("PAGE_POISON is not offered"));
        }
        let features = self.offered & FEATURES | PAGE_POISON;
        self.driver.accept(features)?;
        self.driver.set_config(POISON_VALUE, value);
        Ok(self.driver.start()?)
    }

    /// Returns the number of a service's queue. Skips the point if the service is not offered.
    pub(super) fn queue(&self, service: Service) -> Result<u16, Stop> {
        self.queues.number(service).ok_or(Stop::Skipped("the service is not offered"))
    }

    /// Returns the address of a page that may be given to the device.
    pub(super) fn page(&self, number: u32) -> u64 {
        self.driver.pages() + PAGE_BYTES * u64::from(number)
    }

    /// Returns a buffer that is a whole page.
    pub(super) fn page_buffer(&self, number: u32, device_writes: bool) -> Descriptor {
        Descriptor { addr: self.page(number), len: 4096, device_writes }
    }

    /// Sends the numbers of pages in buffers of these lengths in bytes. The buffers are not adjacent, so
    /// that no device can take several of them for one. Returns the used length.
    pub(super) fn send_pages(
        &mut self,
        service: Service,
        pages: core::ops::Range<u32>,
        lengths: &[usize],
    ) -> Result<u32, Stop> {
        let queue = self.queue(service)?;
        self.driver.clear_buffers()?;
        let mut numbers = [0; 4 * MAX_PAGES];
        let mut len = 0;
        for (place, page) in numbers.chunks_exact_mut(4).zip(pages) {
            let frame = self.page(page) / PAGE_BYTES;
            place.copy_from_slice(&frame.to_le_bytes()[..4]);
            len += 4;
        }
        let mut chain = [Descriptor::default(); MAX_PARTS];
        let mut rest = &numbers[..len];
        for (place, &len) in chain.iter_mut().zip(lengths) {
            let (part, behind) = rest.split_at(len);
            *place = self.driver.readable(part)?;
            rest = behind;
        }
        self.driver.send(queue, &chain[..lengths.len()])
    }

    /// Marks pages, so that it shows whether their contents are kept.
    pub(super) fn mark(&mut self, pages: core::ops::Range<u32>) -> Result<(), Failure> {
        for page in pages {
            for addr in self.marks(page) {
                write(self.driver.device(), addr, &[MARK; MARK_BYTES])?;
            }
        }
        Ok(())
    }

    /// Returns whether a page still has its mark.
    pub(super) fn is_kept(&mut self, page: u32) -> Result<bool, Failure> {
        for addr in self.marks(page) {
            if read(self.driver.device(), addr)? != [MARK; MARK_BYTES] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fails the point unless a page still has its mark.
    pub(super) fn expect_kept(&mut self, rule: &'static str, page: u32) -> Result<(), Failure> {
        require_contents(rule, self.is_kept(page)?, self.page(page))
    }

    fn marks(&self, page: u32) -> [u64; 2] {
        let start = self.page(page);
        [start, start + PAGE_BYTES - MARK_BYTES as u64]
    }

    /// Checks the configuration against the model, and that the device has done nothing more than it
    /// was asked.
    pub(crate) fn finish(&mut self) -> Result<(), Stop> {
        self.driver.finish()?;
        Ok(expect("num_pages", self.num_pages, self.driver.config(NUM_PAGES))?)
    }
}

/// The largest number of buffers for numbers of pages.
const MAX_PARTS: usize = 2;
/// The largest number of pages in one request of the suite.
pub(super) const MAX_PAGES: usize = 257;

/// Balloons, for the points of any device.
pub(crate) const TYPE: DeviceType =
    DeviceType { id: DEVICE_ID, features: FEATURES, change_by_host, read_host_field, send_request };

fn read_host_field(driver: &mut Driver<'_>) -> u64 {
    driver.config(NUM_PAGES).into()
}

fn change_by_host(driver: &mut Driver<'_>) -> Result<(), Stop> {
    let pages = driver.config(NUM_PAGES) ^ 1;
    Ok(driver.device().set_balloon_pages(pages)?)
}

/// Gives a page to the balloon.
fn send_request(driver: &mut Driver<'_>) -> Result<(), Stop> {
    let frame = driver.pages() / PAGE_BYTES;
    driver.clear_buffers()?;
    let request = driver.readable(&frame.to_le_bytes()[..4])?;
    driver.send(0, &[request])?;
    Ok(())
}
