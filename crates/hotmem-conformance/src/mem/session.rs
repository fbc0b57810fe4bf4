//! Drives a memory device, and keeps a model of it.

use super::blocks::Blocks;
use super::config::{Config, REQUESTED_SIZE};
use super::wire::{
    ACK, BUSY, DEVICE_ID, FEATURES, PLUG, PLUGGED, REQUEST_BYTES, RESPONSE_BYTES, Request,
    Response, STATE, UNPLUG, UNPLUG_ALL, UNPLUGGED,
};
use crate::device_type::DeviceType;
use crate::driver::Driver;
use crate::failure::{Failure, Stop, expect, require};
use crate::registers::VERSION_1;
use crate::ring::{Descriptor, read};
use core::ops::Range;

/// How often a request that is answered by BUSY is sent.
const BUSY_RETRIES: u32 = 100;
/// The queue of requests (5.15.2).
pub(super) const REQUESTS: u16 = 0;
/// The largest number of buffers of a request and its response.
const MAX_PARTS: usize = 4;
/// Up to this number, the sweep asks for the state of each block alone.
const SINGLE_BLOCKS: u64 = 1024;
/// The number of requests after which the sweep ends, so that it ends for a region of any size.
const MAX_SWEEP_REQUESTS: u32 = 1 << 16;
/// The number of blocks whose plugging is requested before a point begins. A point that needs others
/// calls [`Memory::request_blocks`].
const REQUESTED_BLOCKS: u64 = 16;

/// A memory device that is started, and what it should be like.
pub(crate) struct Memory<'a> {
    pub(super) driver: Driver<'a>,
    features: u64,
    /// The configuration at the start.
    pub(super) first: Config,
    plugged: Blocks,
    requested_size: u64,
    /// The usable region may only grow above this.
    usable_region_size: u64,
}

impl<'a> Memory<'a> {
    /// Starts a device with all features that it offers. A device that is not new is unplugged.
    pub(crate) fn start(mut driver: Driver<'a>) -> Result<Memory<'a>, Stop> {
        let features = driver.offered() & FEATURES;
        driver.restart(features)?;
        let first = Config::read(&mut driver)?;
        let mut memory = Memory {
            driver,
            features,
            first,
            plugged: Blocks::default(),
            requested_size: first.requested_size,
            usable_region_size: first.usable_region_size,
        };
        if first.plugged_size > 0 {
            memory.unplug_all()?;
        }
        let blocks = REQUESTED_BLOCKS.min(first.region_blocks());
        memory.request_blocks_if_possible(blocks)?;
        Ok(memory)
    }

    /// Resets the device and starts it again.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        self.driver.restart(self.features)
    }

    /// Resets the device, accepts all features but one, and returns whether the device agrees.
    pub(super) fn negotiate_without(&mut self, feature: u64) -> Result<bool, Failure> {
        self.driver.negotiate(self.features & !feature | VERSION_1)
    }

    /// Returns whether a feature is offered.
    pub(super) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    pub(super) fn config(&mut self) -> Result<Config, Failure> {
        Config::read(&mut self.driver)
    }

    /// Returns the address of a block.
    pub(super) fn addr(&self, block: u64) -> u64 {
        self.first.addr + block * self.first.block_size
    }

    /// Lets the host request that `blocks` blocks are plugged. Skips the point if the region is smaller.
    pub(super) fn request_blocks(&mut self, blocks: u64) -> Result<(), Stop> {
        if blocks > self.first.region_blocks() {
            return Err(Stop::Skipped("the region is too small for the point"));
        }
        let bytes = blocks * self.first.block_size;
        if self.requested_size == bytes {
            return Ok(());
        }
        self.driver.device().set_requested_size(bytes)?;
        self.requested_size = bytes;
        // The host may be another thread or process.
        self.driver.wait_for(|driver| {
            Config::read(driver).is_ok_and(|config| config.requested_size == bytes)
        });
        let config = self.config()?;
        expect("requested_size", bytes, config.requested_size)?;
        self.usable_region_size = self.usable_region_size.max(config.usable_region_size);
        Ok(())
    }

    /// Lets the host request that `blocks` blocks are plugged. If it has no means to do so, the requested
    /// size remains.
    pub(super) fn request_blocks_if_possible(&mut self, blocks: u64) -> Result<(), Stop> {
        match self.request_blocks(blocks) {
            Ok(()) | Err(Stop::Skipped(_)) => Ok(()),
            Err(stop) => Err(stop),
        }
    }

    /// Returns the number of requested blocks. Skips the point if they are fewer than `needed`.
    pub(super) fn requested_blocks(&self, needed: u64) -> Result<u64, Stop> {
        let blocks = self.requested_size / self.first.block_size;
        if blocks < needed {
            return Err(Stop::Skipped("the requested size is too small for the point"));
        }
        Ok(blocks)
    }

    /// Returns the number of the last usable block.
    pub(super) fn last_usable_block(&mut self) -> Result<u64, Stop> {
        self.requested_blocks(1)?;
        let usable = self.config()?.usable_blocks();
        require("usable_region_size must be at least requested_size", usable > 0, usable)?;
        Ok(usable - 1)
    }

    /// Sends a request, and again if the device is busy.
    pub(super) fn ask(&mut self, request: Request) -> Result<Response, Stop> {
        self.ask_in_parts(request, &[REQUEST_BYTES], &[RESPONSE_BYTES])
    }

    /// Sends a request in buffers of the lengths `readable`, for a response in buffers of the lengths
    /// `writable`, and again if the device is busy. The buffers are not adjacent, so that no device can
    /// take several of them for one.
    pub(super) fn ask_in_parts(
        &mut self,
        request: Request,
        readable: &[usize],
        writable: &[usize],
    ) -> Result<Response, Stop> {
        for _ in 0..BUSY_RETRIES {
            self.driver.clear_buffers()?;
            let (chain, parts) = self.place(request, readable, writable)?;
            let used_len = self.driver.send(REQUESTS, &chain[..parts.end])?;
            let response = self.response(&chain[parts], used_len)?;
            if response.kind != BUSY {
                return Ok(response);
            }
        }
        Err(Failure::Busy.into())
    }

    /// Places the parts of a request and of its response. Returns their buffers, and the indices of those
    /// of the response, which are the last.
    pub(super) fn place(
        &mut self,
        request: Request,
        readable: &[usize],
        writable: &[usize],
    ) -> Result<([Descriptor; MAX_PARTS], Range<usize>), Failure> {
        let mut chain = [Descriptor::default(); MAX_PARTS];
        let bytes = request.to_bytes();
        let mut rest = &bytes[..];
        for (place, &len) in chain.iter_mut().zip(readable) {
            let (part, behind) = rest.split_at(len);
            *place = self.driver.readable(part)?;
            rest = behind;
        }
        let parts = readable.len()..readable.len() + writable.len();
        for (place, &len) in chain[parts.clone()].iter_mut().zip(writable) {
            *place = self.driver.buffers.writable(len);
        }
        Ok((chain, parts))
    }

    /// Reads the response that the device has written to some buffers.
    pub(super) fn response(
        &mut self,
        parts: &[Descriptor],
        used_len: u32,
    ) -> Result<Response, Failure> {
        let mut bytes = [0; RESPONSE_BYTES];
        let mut places = bytes.iter_mut();
        for part in parts {
            for (addr, place) in (part.addr..part.addr + u64::from(part.len)).zip(&mut places) {
                [*place] = read(self.driver.device(), addr)?;
            }
        }
        Ok(Response::from_bytes(bytes, used_len))
    }

    /// Sends a request, and fails unless the type of the response is `expected`.
    pub(super) fn expect(&mut self, request: Request, expected: u16) -> Result<Response, Stop> {
        let response = self.ask(request)?;
        response.check_kind(request, expected)?;
        Ok(response)
    }

    /// Sends a request for the blocks from `block` on, and fails unless it is answered as `expected`.
    pub(super) fn expect_at(
        &mut self,
        kind: u16,
        block: u64,
        blocks: u16,
        expected: u16,
    ) -> Result<Response, Stop> {
        let addr = self.addr(block);
        self.expect(Request { kind, addr, blocks, padding: 0 }, expected)
    }

    /// Plugs blocks that are unplugged.
    pub(super) fn plug(&mut self, block: u64, blocks: u16) -> Result<(), Stop> {
        self.expect_at(PLUG, block, blocks, ACK)?;
        self.plugged.insert(block..block + u64::from(blocks));
        Ok(())
    }

    /// Unplugs blocks that are plugged.
    pub(super) fn unplug(&mut self, block: u64, blocks: u16) -> Result<(), Stop> {
        self.expect_at(UNPLUG, block, blocks, ACK)?;
        self.plugged.remove(&(block..block + u64::from(blocks)));
        Ok(())
    }

    /// Unplugs all blocks.
    pub(super) fn unplug_all(&mut self) -> Result<(), Stop> {
        self.expect(Request { kind: UNPLUG_ALL, addr: 0, blocks: 0, padding: 0 }, ACK)?;
        self.plugged.clear();
        // Only this request may shrink the usable region.
        self.usable_region_size = self.config()?.usable_region_size;
        Ok(())
    }

    /// Fails unless blocks are in the state `expected`.
    pub(super) fn expect_state(
        &mut self,
        block: u64,
        blocks: u16,
        expected: u16,
    ) -> Result<(), Stop> {
        let addr = self.addr(block);
        let request = Request { kind: STATE, addr, blocks, padding: 0 };
        Ok(self.ask(request)?.check_state(request, expected)?)
    }

    /// Checks the configuration and the state of every block against the model, and that the device
    /// has done nothing more than it was asked.
    pub(crate) fn finish(&mut self) -> Result<(), Stop> {
        self.driver.finish()?;
        self.check_config()?;
        let usable = self.config()?.usable_blocks();
        let mut block = 0;
        for _ in 0..MAX_SWEEP_REQUESTS {
            if block >= usable {
                break;
            }
            let limit =
                if block < SINGLE_BLOCKS { 1 } else { (usable - block).min(u16::MAX.into()) };
            let blocks = self.plugged.same_state(block, limit);
            let expected = if self.plugged.contains(block) { PLUGGED } else { UNPLUGGED };
            self.expect_state(block, u16::try_from(blocks).unwrap_or(1), expected)?;
            block += blocks;
        }
        Ok(self.driver.finish()?)
    }

    /// Checks the configuration against the model.
    fn check_config(&mut self) -> Result<(), Failure> {
        let config = self.config()?;
        config.check_constants(&self.first)?;
        expect("plugged_size", self.plugged.count() * self.first.block_size, config.plugged_size)?;
        expect("requested_size", self.requested_size, config.requested_size)?;
        require(
            "usable_region_size must not shrink",
            config.usable_region_size >= self.usable_region_size,
            config.usable_region_size,
        )
    }
}

/// Memory devices, for the points of any device.
pub(crate) const TYPE: DeviceType =
    DeviceType { id: DEVICE_ID, features: FEATURES, change_by_host, read_host_field, send_request };

fn read_host_field(driver: &mut Driver<'_>) -> u64 {
    driver.config_u64(REQUESTED_SIZE)
}

fn change_by_host(driver: &mut Driver<'_>) -> Result<(), Stop> {
    let config = Config::read(driver)?;
    let bytes = if config.requested_size == 0 { config.block_size } else { 0 };
    Ok(driver.device().set_requested_size(bytes)?)
}

fn send_request(driver: &mut Driver<'_>) -> Result<(), Stop> {
    let addr = Config::read(driver)?.addr;
    driver.clear_buffers()?;
    let request = Request { kind: STATE, addr, blocks: 1, padding: 0 };
    let request = driver.readable(&request.to_bytes())?;
    let response = driver.buffers.writable(RESPONSE_BYTES);
    driver.send(REQUESTS, &[request, response])?;
    Ok(())
}
