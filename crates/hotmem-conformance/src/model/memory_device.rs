//! Models a memory device (5.15) by a flag for each block.

use super::deviation::Deviation;
use super::queue::{Answer, Buffer, Chain};
use super::ram::Ram;
use crate::device::Inaccessible;
use std::ops::Range;

const PLUG: u16 = 0;
const UNPLUG: u16 = 1;
const UNPLUG_ALL: u16 = 2;
const STATE: u16 = 3;
const ACK: u16 = 0;
const NACK: u16 = 1;
const ERROR: u16 = 3;
const PLUGGED: u16 = 0;
const UNPLUGGED: u16 = 1;
const MIXED: u16 = 2;

/// The feature `VIRTIO_MEM_F_UNPLUGGED_INACCESSIBLE`.
const UNPLUGGED_INACCESSIBLE: u64 = 1 << 1;
/// The address of the region: a multiple of 96 KiB as well as of 128 KiB.
const ADDR: u64 = 6 << 30;
const BLOCKS: usize = 64;
/// How much the usable region exceeds the requested size, in blocks.
const USABLE_BLOCKS_BEYOND: usize = 16;
/// The node for which the VMM has made the device.
pub(super) const NODE: u16 = 3;

pub(super) struct MemoryDevice {
    deviation: Option<Deviation>,
    block_size: u64,
    region_size: u64,
    blocks: Vec<bool>,
    usable: usize,
    requested: usize,
    /// The number of plugged blocks, as the device compares it with the requested number.
    counted: usize,
    accepted: u64,
}

impl MemoryDevice {
    pub(super) const ID: u32 = 24;
    /// `ACPI_PXM` and `UNPLUGGED_INACCESSIBLE`.
    pub(super) const FEATURES: u64 = 3;
    pub(super) const QUEUES: usize = 1;

    pub(super) fn new(deviation: Option<Deviation>) -> MemoryDevice {
        let is = |wanted| deviation == Some(wanted);
        let block_size = if is(Deviation::BlocksOf96Kib) { 96 << 10 } else { 128 << 10 };
        let rest = if is(Deviation::RegionEndsWithinBlock) { 4096 } else { 0 };
        MemoryDevice {
            deviation,
            block_size,
            region_size: block_size * BLOCKS as u64 + rest,
            blocks: vec![false; BLOCKS],
            usable: USABLE_BLOCKS_BEYOND,
            requested: 0,
            counted: 0,
            accepted: 0,
        }
    }

    pub(super) fn region(&self) -> Range<u64> {
        ADDR..ADDR + self.region_size
    }

    pub(super) fn config(&self) -> Vec<u8> {
        let node = if self.deviates(Deviation::OtherNode) { NODE + 1 } else { NODE };
        let bytes = |blocks: usize| blocks as u64 * self.block_size;
        let plugged = self.blocks.iter().filter(|&&plugged| plugged).count();
        let fields = [
            self.block_size,
            node.into(),
            ADDR,
            self.region_size,
            bytes(self.usable),
            if self.deviates(Deviation::PluggedSizeStays) { 0 } else { bytes(plugged) },
            bytes(self.requested),
        ];
        fields.iter().flat_map(|field| field.to_le_bytes()).collect()
    }

    /// Returns whether the configuration changes.
    pub(super) fn write_config(&mut self, offset: usize) -> bool {
        let changes = self.deviates(Deviation::RequestedSizeWritable) && offset == 48;
        self.requested += usize::from(changes);
        changes
    }

    pub(super) fn set_requested_size(&mut self, bytes: u64) {
        let blocks = bytes / self.block_size;
        self.requested = usize::try_from(blocks).unwrap_or(BLOCKS).min(BLOCKS);
        let usable = self.usable_for_requested();
        if self.deviates(Deviation::UsableBelowRequested) && self.requested > BLOCKS / 2 {
            self.usable = self.requested - 1;
        } else if self.deviates(Deviation::UsableShrinks) && self.requested == 0 {
            self.usable = 0;
        } else {
            self.usable = self.usable.max(usable);
        }
    }

    pub(super) fn accept(&mut self, features: u64) {
        self.accepted = features;
    }

    pub(super) fn reset(&mut self, was_started: bool, ram: &mut Ram) {
        self.accepted = 0;
        if self.deviates(Deviation::ResetShrinksRegion) && was_started {
            self.region_size -= self.block_size;
        }
        if self.deviates(Deviation::ResetDiscardsContents) {
            ram.fill(ADDR, self.block_size * BLOCKS as u64, 0);
        }
        let plugged = self.blocks.iter().filter(|&&plugged| plugged).count();
        if self.deviates(Deviation::ResetUnplugsLast) && plugged > 1 {
            let last = self.blocks.iter().rposition(|&plugged| plugged);
            self.set(last.into_iter(), false, ram);
        }
    }

    /// Carries out the request in a chain.
    pub(super) fn serve(&mut self, chain: &Chain, ram: &mut Ram) -> Answer {
        let mut request = chain.contents(ram);
        if let Some(&buffer) = chain.readable.first()
            && self.deviates(Deviation::RequestExceedsDescriptor)
        {
            request = Buffer { len: 24, ..buffer }.contents(ram);
        }
        let is_split = self.deviates(Deviation::RequestInOneDescriptor) && chain.readable.len() > 1;
        let (kind, state) = match request.first_chunk::<24>() {
            Some(request) if !is_split => self.handle(request, ram),
            _ => (ERROR, 0),
        };
        if kind == ERROR
            && self.deviates(Deviation::UnknownTypeLosesOthers)
            && request.first().is_some_and(|&kind| u16::from(kind) > STATE)
        {
            return Answer::LosesBatch;
        }
        let mut response = [0; 10];
        response[..2].copy_from_slice(&kind.to_le_bytes());
        response[8..].copy_from_slice(&state.to_le_bytes());
        let first = chain.writable.first().map_or(0, |buffer| buffer.len as usize);
        let len =
            if self.deviates(Deviation::ResponseInOneDescriptor) { first.min(10) } else { 10 };
        let used_len = chain.respond(ram, &response[..len]);
        if let Some(buffer) = chain.writable.first()
            && self.deviates(Deviation::ResponseExceedsDescriptor)
        {
            // Memory that the driver has named wrongly is not written.
            let _ = ram.write(buffer.addr, &response);
        }
        Answer::Used(if self.deviates(Deviation::UsedLengthZero) { 0 } else { used_len })
    }

    /// Returns the type of the response and the state.
    fn handle(&mut self, request: &[u8; 24], ram: &mut Ram) -> (u16, u16) {
        let word = |at| u16::from_le_bytes([request[at], request[at + 1]]);
        let (kind, blocks) = (word(0), word(16));
        let addr = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| request[8 + i]));
        if self.deviates(Deviation::PaddingMatters) && (word(2) != 0 || word(18) != 0) {
            return (ERROR, 0);
        }
        if kind == UNPLUG_ALL {
            return (self.unplug_all(ram), 0);
        }
        if self.acknowledges_invalid(kind, addr, blocks) {
            return (ACK, 0);
        }
        let Some(range) = self.valid_range(addr, blocks) else { return (ERROR, 0) };
        match kind {
            PLUG => (self.plug(range, ram), 0),
            UNPLUG => (self.unplug(range, ram), 0),
            STATE => (ACK, self.state(range)),
            _ => (ERROR, 0),
        }
    }

    /// Returns the blocks of a request, or `None` if it must be refused with ERROR.
    fn valid_range(&self, addr: u64, blocks: u16) -> Option<Range<usize>> {
        let offset = addr.checked_sub(ADDR)?;
        let first = usize::try_from(offset / self.block_size).ok()?;
        let end = first + usize::from(blocks);
        let is_valid = blocks > 0 && offset.is_multiple_of(self.block_size) && end <= self.usable;
        is_valid.then_some(first..end)
    }

    /// Returns whether the deviation makes the device acknowledge a request that is not valid.
    fn acknowledges_invalid(&self, kind: u16, addr: u64, blocks: u16) -> bool {
        let wraps = addr.checked_add(u64::from(blocks) * self.block_size).is_none();
        let is_below = addr < ADDR;
        let offset = addr.wrapping_sub(ADDR);
        let is_unaligned = !offset.is_multiple_of(self.block_size);
        let end = offset / self.block_size + u64::from(blocks);
        let is_beyond = !is_below && !wraps && end > self.usable as u64;
        match (self.deviation, kind) {
            (Some(Deviation::PlugOfZeroBlocks), PLUG)
            | (Some(Deviation::UnplugOfZeroBlocks), UNPLUG) => blocks == 0,
            (Some(Deviation::PlugUnaligned), PLUG) | (Some(Deviation::UnplugUnaligned), UNPLUG) => {
                is_unaligned
            }
            (Some(Deviation::PlugBelowRegion), PLUG)
            | (Some(Deviation::UnplugBelowRegion), UNPLUG)
            | (Some(Deviation::StateBelowRegion), STATE) => is_below,
            (Some(Deviation::PlugBeyondUsable), PLUG)
            | (Some(Deviation::UnplugBeyondUsable), UNPLUG) => is_beyond,
            (Some(Deviation::PlugWraps), PLUG) => wraps,
            _ => false,
        }
    }

    fn plug(&mut self, range: Range<usize>, ram: &mut Ram) -> u16 {
        let refused = self.deviates(Deviation::FirstBlockRefused) && range.start == 0
            || self.deviates(Deviation::LastBlockRefused) && range.end == self.usable
            || self.deviates(Deviation::AtMost16Blocks) && range.len() > 16;
        if refused {
            return ERROR;
        }
        if self.all_plugged(&range) {
            return match self.deviation {
                Some(Deviation::PlugOfPlugged) => ACK,
                Some(Deviation::PlugOfPluggedNack) => NACK,
                _ => ERROR,
            };
        }
        if self.some_plugged(&range) {
            match self.deviation {
                Some(Deviation::PlugOfMixed) => {}
                Some(Deviation::PlugOfMixedNack) => return NACK,
                _ => return ERROR,
            }
        }
        let is_over = self.counted + range.len() > self.requested;
        if is_over {
            match self.deviation {
                Some(Deviation::PlugOverRequested) => {}
                Some(Deviation::PlugOverRequestedError) => return ERROR,
                _ => return NACK,
            }
        }
        let shift = usize::from(self.deviates(Deviation::PlugsNextInstead));
        self.set(range.start + shift..range.end + shift, true, ram);
        ACK
    }

    fn unplug(&mut self, range: Range<usize>, ram: &mut Ram) -> u16 {
        if !self.some_plugged(&range) {
            return match self.deviation {
                Some(Deviation::UnplugOfUnplugged) => ACK,
                Some(Deviation::UnplugOfUnpluggedNack) => NACK,
                _ => ERROR,
            };
        }
        if !self.all_plugged(&range) {
            match self.deviation {
                Some(Deviation::UnplugOfMixed) => {}
                Some(Deviation::UnplugOfMixedNack) => return NACK,
                _ => return ERROR,
            }
        }
        let end =
            if self.deviates(Deviation::UnplugOnlyFirst) { range.start + 1 } else { range.end };
        if self.deviates(Deviation::UnplugDiscardsNeighbour) {
            ram.fill(ADDR + range.start as u64 * self.block_size - 64, 64, 0);
        }
        self.set(range.start..end, false, ram);
        ACK
    }

    fn unplug_all(&mut self, ram: &mut Ram) -> u16 {
        let counted = self.counted;
        if counted == 0 && self.deviates(Deviation::UnplugAllOfNone) {
            return ERROR;
        }
        if self.deviates(Deviation::UnplugAllOfFirstRun) {
            let first = self.blocks.iter().position(|&plugged| plugged).unwrap_or(0);
            let run = self.blocks[first..].iter().take_while(|&&plugged| plugged).count();
            self.set(first..first + run, false, ram);
        } else {
            self.set(0..BLOCKS, false, ram);
        }
        if self.deviates(Deviation::UnplugAllKeepsCount) {
            self.counted = counted.max(self.requested);
        }
        self.usable = self.usable_for_requested();
        if self.deviates(Deviation::UnplugAllShrinksUsable) && counted > 0 {
            self.usable = self.requested.saturating_sub(1);
        }
        if self.deviates(Deviation::UnplugAllEmptiesUsable) && counted > 0 {
            self.usable = 0;
        }
        ACK
    }

    fn state(&self, range: Range<usize>) -> u16 {
        let (all, some) = (self.all_plugged(&range), self.some_plugged(&range));
        let first = if self.blocks[range.start] { PLUGGED } else { UNPLUGGED };
        let several = range.len() > 1;
        match (all, some) {
            (true, _) if several && self.deviates(Deviation::PluggedAreMixed) => MIXED,
            (true, _) => PLUGGED,
            (_, false) if several && self.deviates(Deviation::UnpluggedAreMixed) => MIXED,
            (_, false) => UNPLUGGED,
            _ if self.deviates(Deviation::MixedAsFirst) => first,
            _ => MIXED,
        }
    }

    fn all_plugged(&self, range: &Range<usize>) -> bool {
        self.blocks[range.clone()].iter().all(|&plugged| plugged)
    }

    fn some_plugged(&self, range: &Range<usize>) -> bool {
        self.blocks[range.clone()].iter().any(|&plugged| plugged)
    }

    /// Plugs or unplugs blocks. What is not plugged has no contents.
    fn set(&mut self, blocks: impl Iterator<Item = usize>, plugged: bool, ram: &mut Ram) {
        for block in blocks.filter(|&block| block < BLOCKS) {
            self.blocks[block] = plugged;
            if !plugged {
                ram.fill(ADDR + block as u64 * self.block_size, self.block_size, 0);
            }
        }
        self.counted = self.blocks.iter().filter(|&&plugged| plugged).count();
    }

    /// Checks that the guest can access memory of the region. Returns false if a write is lost.
    pub(super) fn access(&self, addr: u64, writes: bool) -> Result<bool, Inaccessible> {
        let offset = addr.checked_sub(ADDR).ok_or(Inaccessible)?;
        let block = usize::try_from(offset / self.block_size).map_err(|_| Inaccessible)?;
        let is_plugged = *self.blocks.get(block).ok_or(Inaccessible)?;
        let reads_unplugged = self.accepted & UNPLUGGED_INACCESSIBLE == 0
            && !self.deviates(Deviation::UnpluggedUnreadable);
        if !is_plugged && (writes || !reads_unplugged) {
            return Err(Inaccessible);
        }
        let middle = self.block_size / 2;
        let is_in_middle = (middle..middle + 64).contains(&(offset % self.block_size));
        Ok(!(is_in_middle && self.deviates(Deviation::MiddleNotWritable)))
    }

    fn usable_for_requested(&self) -> usize {
        (self.requested + USABLE_BLOCKS_BEYOND).min(BLOCKS)
    }

    fn deviates(&self, deviation: Deviation) -> bool {
        self.deviation == Some(deviation)
    }
}
