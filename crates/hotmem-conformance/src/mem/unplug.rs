//! Points of UNPLUG requests (5.15.6.4).

use super::contents::{expect_pattern, write_pattern};
use super::plug::{FIRST, refuse_below_region, refuse_unaligned, refuse_wrapping};
use super::session::Memory;
use super::wire::{ERROR, UNPLUG};
use crate::failure::Stop;

type Result = core::result::Result<(), Stop>;

pub(crate) fn plugged(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(6)?;
    memory.plug(FIRST, 5)?;
    memory.unplug(FIRST + 1, 3)
}

pub(crate) fn already_unplugged(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(3)?;
    memory.plug(FIRST, 1)?;
    memory.expect_at(UNPLUG, FIRST + 1, 1, ERROR)?;
    Ok(())
}

pub(crate) fn mixed(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(5)?;
    memory.plug(FIRST + 1, 1)?;
    // The plugged block is the last, the middle and the first of the request.
    for (block, blocks) in [(FIRST, 2), (FIRST, 3), (FIRST + 1, 2)] {
        memory.expect_at(UNPLUG, block, blocks, ERROR)?;
    }
    Ok(())
}

pub(crate) fn zero_and_unaligned(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(3)?;
    memory.plug(FIRST, 2)?;
    memory.expect_at(UNPLUG, FIRST, 0, ERROR)?;
    refuse_unaligned(memory, UNPLUG, FIRST)
}

pub(crate) fn out_of_range(memory: &mut Memory<'_>) -> Result {
    let last = memory.last_usable_block()?;
    memory.expect_at(UNPLUG, last + 1, 1, ERROR)?;
    memory.expect_at(UNPLUG, last, 2, ERROR)?;
    refuse_wrapping(memory, UNPLUG)?;
    refuse_below_region(memory, UNPLUG)
}

pub(crate) fn content_of_neighbours_kept(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(4)?;
    memory.plug(FIRST, 3)?;
    let unplugged = memory.addr(FIRST + 1)..memory.addr(FIRST + 2);
    let neighbours = [unplugged.start - 4096, unplugged.start - 64, unplugged.end];
    for addr in neighbours {
        write_pattern(memory, addr)?;
    }
    memory.unplug(FIRST + 1, 1)?;
    for addr in neighbours {
        expect_pattern(memory, addr)?;
    }
    Ok(())
}
