//! Points of the configuration (5.15.4).

use super::config::{PLUGGED_SIZE, SIZE};
use super::plug::FIRST;
use super::session::Memory;
use super::wire::ACPI_PXM;
use crate::failure::{Stop, expect, require};

type Result = core::result::Result<(), Stop>;

pub(crate) fn block_size_power_of_two(memory: &mut Memory<'_>) -> Result {
    let size = memory.first.block_size;
    Ok(require("block_size must be a power of two", size.is_power_of_two(), size)?)
}

pub(crate) fn fields_multiple_of_block(memory: &mut Memory<'_>) -> Result {
    let config = memory.config()?;
    for (rule, value) in [
        ("addr must be a multiple of block_size", config.addr),
        ("region_size must be a multiple of block_size", config.region_size),
        ("usable_region_size must be a multiple of block_size", config.usable_region_size),
        ("plugged_size must be a multiple of block_size", config.plugged_size),
        ("requested_size must be a multiple of block_size", config.requested_size),
    ] {
        require(rule, value.is_multiple_of(config.block_size), value)?;
    }
    Ok(())
}

pub(crate) fn usable_at_least_requested(memory: &mut Memory<'_>) -> Result {
    let rule = "usable_region_size must be at least requested_size";
    for blocks in [memory.first.region_blocks() / 2, memory.first.region_blocks()] {
        memory.request_blocks_if_possible(blocks)?;
        let config = memory.config()?;
        let is_enough = config.usable_region_size >= config.requested_size;
        require(rule, is_enough, config.usable_region_size)?;
    }
    Ok(())
}

pub(crate) fn plugged_within_usable(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(5)?;
    memory.plug(FIRST, 4)?;
    memory.request_blocks(0)?;
    let config = memory.config()?;
    let is_within = config.plugged_size <= config.usable_region_size;
    let rule = "usable_region_size must be at least plugged_size";
    Ok(require(rule, is_within, config.usable_region_size)?)
}

/// The sweep compares `plugged_size` and `requested_size` again.
pub(crate) fn read_only(memory: &mut Memory<'_>) -> Result {
    let before = memory.config()?;
    for offset in (0..SIZE).step_by(4) {
        memory.driver.set_config(offset, 0x0100_0000);
    }
    let after = memory.config()?;
    after.check_constants(&before)?;
    expect("usable_region_size", before.usable_region_size, after.usable_region_size)?;
    expect("plugged_size", before.plugged_size, after.plugged_size)?;
    Ok(expect("requested_size", before.requested_size, after.requested_size)?)
}

pub(crate) fn node_id_with_pxm(memory: &mut Memory<'_>) -> Result {
    if !memory.has(ACPI_PXM) {
        return Err(Stop::Skipped("ACPI_PXM is not offered"));
    }
    let node = memory.driver.device().node()?;
    Ok(expect("node_id", node, memory.first.node_id)?)
}

pub(crate) fn stable_across_reset(memory: &mut Memory<'_>) -> Result {
    memory.restart()?;
    Ok(memory.config()?.check_constants(&memory.first)?)
}

pub(crate) fn generation_after_plug(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(2)?;
    // The generation need not change before the driver reads the configuration (4.1.4.3.1).
    memory.driver.config_u64(PLUGGED_SIZE);
    let before = memory.driver.generation();
    memory.plug(FIRST, 1)?;
    memory.driver.config_u64(PLUGGED_SIZE);
    let changed = memory.driver.generation() != before;
    Ok(require("the generation must change with plugged_size", changed, before.into())?)
}
