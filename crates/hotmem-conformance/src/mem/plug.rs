//! Points of PLUG requests (5.15.6.3).

use super::session::Memory;
use super::wire::{ERROR, NACK, PLUG, Request};
use crate::failure::Stop;

/// The block that most points plug first. Block 0 has a point of its own.
pub(super) const FIRST: u64 = 1;

type Result = core::result::Result<(), Stop>;

pub(crate) fn first_block(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(1)?;
    memory.plug(0, 1)
}

pub(crate) fn last_usable_block(memory: &mut Memory<'_>) -> Result {
    let last = memory.last_usable_block()?;
    memory.plug(last, 1)
}

pub(crate) fn max_in_one_request(memory: &mut Memory<'_>) -> Result {
    let half = (memory.first.region_blocks() / 2).min(u16::MAX.into());
    memory.request_blocks_if_possible(half)?;
    let requested = memory.requested_blocks(2)?;
    let behind_first = memory.config()?.usable_blocks().saturating_sub(FIRST);
    let blocks = requested.min(behind_first).min(u16::MAX.into());
    memory.plug(FIRST, u16::try_from(blocks).unwrap_or(u16::MAX))
}

pub(crate) fn zero_blocks(memory: &mut Memory<'_>) -> Result {
    memory.expect_at(PLUG, FIRST, 0, ERROR)?;
    Ok(())
}

pub(crate) fn unaligned(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(3)?;
    refuse_unaligned(memory, PLUG, FIRST)
}

pub(crate) fn below_region(memory: &mut Memory<'_>) -> Result {
    refuse_below_region(memory, PLUG)
}

pub(crate) fn beyond_usable(memory: &mut Memory<'_>) -> Result {
    let last = memory.last_usable_block()?;
    memory.expect_at(PLUG, last + 1, 1, ERROR)?;
    // A request that begins inside.
    memory.expect_at(PLUG, last, 2, ERROR)?;
    Ok(())
}

pub(crate) fn wraps_64_bit(memory: &mut Memory<'_>) -> Result {
    refuse_wrapping(memory, PLUG)
}

pub(crate) fn already_plugged(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(3)?;
    memory.plug(FIRST, 2)?;
    memory.expect_at(PLUG, FIRST, 1, ERROR)?;
    memory.expect_at(PLUG, FIRST, 2, ERROR)?;
    Ok(())
}

pub(crate) fn overlaps_plugged(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(5)?;
    memory.plug(FIRST + 1, 1)?;
    // The plugged block is the last, the middle and the first of the request.
    for (block, blocks) in [(FIRST, 2), (FIRST, 3), (FIRST + 1, 2)] {
        memory.expect_at(PLUG, block, blocks, ERROR)?;
    }
    Ok(())
}

pub(crate) fn over_requested_nack(memory: &mut Memory<'_>) -> Result {
    const REQUESTED: u16 = 4;
    memory.request_blocks(REQUESTED.into())?;
    let next = FIRST + u64::from(REQUESTED);
    if memory.config()?.usable_blocks() <= next {
        return Err(Stop::Skipped("the usable region has only as many blocks as are requested"));
    }
    memory.plug(FIRST, REQUESTED)?;
    memory.expect_at(PLUG, next, 1, NACK)?;
    Ok(())
}

/// Sends a request from the middle of a block on. The usable region must have the block and the next one.
pub(super) fn refuse_unaligned(memory: &mut Memory<'_>, kind: u16, block: u64) -> Result {
    let addr = memory.addr(block) + memory.first.block_size / 2;
    memory.expect(Request { kind, addr, blocks: 1, padding: 0 }, ERROR)?;
    Ok(())
}

/// Sends requests for the block before the region, and for that and the first.
pub(super) fn refuse_below_region(memory: &mut Memory<'_>, kind: u16) -> Result {
    let Some(addr) = memory.first.addr.checked_sub(memory.first.block_size) else {
        return Err(Stop::Skipped("the region begins at address 0"));
    };
    memory.expect(Request { kind, addr, blocks: 1, padding: 0 }, ERROR)?;
    memory.expect(Request { kind, addr, blocks: 2, padding: 0 }, ERROR)?;
    Ok(())
}

/// Sends a request whose end exceeds 64 bits.
pub(super) fn refuse_wrapping(memory: &mut Memory<'_>, kind: u16) -> Result {
    let block_size = memory.first.block_size;
    let addr = (u64::MAX / block_size) * block_size;
    memory.expect(Request { kind, addr, blocks: 2, padding: 0 }, ERROR)?;
    Ok(())
}
