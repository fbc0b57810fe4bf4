//! Points of STATE requests (5.15.6.6).

use super::plug::{FIRST, refuse_below_region};
use super::session::Memory;
use super::wire::{MIXED, PLUGGED, Request, STATE, UNPLUGGED};
use crate::failure::Stop;

type Result = core::result::Result<(), Stop>;

pub(crate) fn plugged(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(5)?;
    memory.plug(FIRST, 4)?;
    memory.expect_state(FIRST, 1, PLUGGED)?;
    memory.expect_state(FIRST, 4, PLUGGED)
}

pub(crate) fn unplugged(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(5)?;
    memory.expect_state(FIRST, 1, UNPLUGGED)?;
    memory.expect_state(FIRST, 4, UNPLUGGED)
}

pub(crate) fn mixed(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(5)?;
    memory.plug(FIRST + 1, 1)?;
    // The plugged block is the last, the middle and the first of the request.
    for (block, blocks) in [(FIRST, 2), (FIRST, 3), (FIRST + 1, 2)] {
        memory.expect_state(block, blocks, MIXED)?;
    }
    Ok(())
}

pub(crate) fn below_region(memory: &mut Memory<'_>) -> Result {
    refuse_below_region(memory, STATE)
}

pub(crate) fn padding_ignored(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(2)?;
    let addr = memory.addr(FIRST);
    let request = Request { kind: STATE, addr, blocks: 1, padding: 0xaa };
    Ok(memory.ask(request)?.check_state(request, UNPLUGGED)?)
}
