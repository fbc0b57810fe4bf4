//! Reads the configuration of a memory device (5.15.4).

use crate::driver::Driver;
use crate::failure::{Failure, expect};

/// The offsets of the fields.
pub(super) const NODE_ID: u64 = 8;
pub(super) const PLUGGED_SIZE: u64 = 40;
pub(super) const REQUESTED_SIZE: u64 = 48;
pub(super) const SIZE: u64 = 56;

/// How often the configuration is read until its generation stays the same.
const MAX_READS: u32 = 100;
/// The smallest block: a page.
const MIN_BLOCK: u64 = 4096;

#[derive(Clone, Copy)]
pub(super) struct Config {
    pub(super) block_size: u64,
    pub(super) node_id: u16,
    pub(super) addr: u64,
    pub(super) region_size: u64,
    pub(super) usable_region_size: u64,
    pub(super) plugged_size: u64,
    pub(super) requested_size: u64,
}

impl Config {
    /// Reads the configuration again as long as its generation changes meanwhile (2.5.1).
    pub(super) fn read(driver: &mut Driver<'_>) -> Result<Config, Failure> {
        let mut reads = 0;
        loop {
            let generation = driver.generation();
            let config = Config::read_once(driver);
            reads += 1;
            // A device whose generation never rests has no point that fails for this alone.
            if driver.generation() == generation || reads == MAX_READS {
                config.check_region()?;
                return Ok(config);
            }
        }
    }

    /// Checks what the points need to compute addresses.
    fn check_region(&self) -> Result<(), Failure> {
        let is_possible = self.block_size >= MIN_BLOCK
            && self.region_size >= self.block_size
            && self.addr.checked_add(self.region_size).is_some()
            && self.usable_region_size <= self.region_size
            && self.requested_size <= self.region_size;
        if is_possible { Ok(()) } else { Err(Failure::Region) }
    }

    fn read_once(driver: &mut Driver<'_>) -> Config {
        Config {
            block_size: driver.config_u64(0),
            node_id: driver.config_u16(NODE_ID),
            addr: driver.config_u64(16),
            region_size: driver.config_u64(24),
            usable_region_size: driver.config_u64(32),
            plugged_size: driver.config_u64(PLUGGED_SIZE),
            requested_size: driver.config_u64(REQUESTED_SIZE),
        }
    }

    /// Checks that fields that cannot change are those of `first`.
    pub(super) fn check_constants(&self, first: &Config) -> Result<(), Failure> {
        expect("block_size", first.block_size, self.block_size)?;
        expect("node_id", first.node_id, self.node_id)?;
        expect("addr", first.addr, self.addr)?;
        expect("region_size", first.region_size, self.region_size)
    }

    pub(super) fn region_blocks(&self) -> u64 {
        self.region_size / self.block_size
    }

    pub(super) fn usable_blocks(&self) -> u64 {
        self.usable_region_size / self.block_size
    }
}
