//! Points of UNPLUG ALL requests (5.15.6.5).

use super::plug::FIRST;
use super::session::Memory;
use crate::failure::{Stop, require};

type Result = core::result::Result<(), Stop>;

pub(crate) fn when_empty(memory: &mut Memory<'_>) -> Result {
    memory.unplug_all()
}

pub(crate) fn when_mixed(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(6)?;
    memory.plug(FIRST, 2)?;
    memory.plug(FIRST + 3, 2)?;
    memory.unplug_all()
}

pub(crate) fn usable_at_least_requested(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(3)?;
    memory.plug(FIRST, 2)?;
    memory.unplug_all()?;
    let config = memory.config()?;
    let is_enough = config.usable_region_size >= config.requested_size;
    let rule = "usable_region_size must be at least requested_size after UNPLUG ALL";
    Ok(require(rule, is_enough, config.usable_region_size)?)
}

pub(crate) fn plug_after(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(3)?;
    memory.plug(FIRST, 2)?;
    memory.unplug_all()?;
    memory.plug(FIRST, 2)
}
