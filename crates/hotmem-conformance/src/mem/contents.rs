//! Points of what memory holds, and of what a reset keeps (5.15.5.2, 5.15.6.2).

use super::plug::FIRST;
use super::session::Memory;
use super::wire::UNPLUGGED_INACCESSIBLE;
use crate::failure::{Failure, Stop, expect};
use crate::ring::{read, write};

type Result = core::result::Result<(), Stop>;

pub(crate) fn writable_when_plugged(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(3)?;
    memory.plug(FIRST, 2)?;
    let size = memory.first.block_size;
    for block in [FIRST, FIRST + 1] {
        let start = memory.addr(block);
        for addr in [start, start + size / 2, start + size - 64] {
            write_pattern(memory, addr)?;
            expect_pattern(memory, addr)?;
        }
    }
    Ok(())
}

pub(crate) fn contents_kept_over_reset(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(2)?;
    memory.plug(FIRST, 1)?;
    let start = memory.addr(FIRST);
    let places = [start, start + memory.first.block_size - 64];
    for addr in places {
        write_pattern(memory, addr)?;
    }
    memory.restart()?;
    for addr in places {
        expect_pattern(memory, addr)?;
    }
    Ok(())
}

/// The sweep checks the states.
pub(crate) fn state_kept_over_reset(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(6)?;
    memory.plug(FIRST, 2)?;
    memory.plug(FIRST + 3, 2)?;
    memory.restart()?;
    Ok(())
}

pub(crate) fn unplugged_readable(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(2)?;
    if !memory.negotiate_without(UNPLUGGED_INACCESSIBLE)? {
        // 5.15.5.2 allows this.
        return Err(Stop::Skipped("the device fails without UNPLUGGED_INACCESSIBLE"));
    }
    memory.driver.start()?;
    let start = memory.addr(FIRST);
    for addr in [start, start + memory.first.block_size - 64] {
        read::<64>(memory.driver.device(), addr)?;
    }
    Ok(())
}

/// Writes 64 bytes that depend on the address.
pub(super) fn write_pattern(
    memory: &mut Memory<'_>,
    addr: u64,
) -> core::result::Result<(), Failure> {
    for offset in (0..64).step_by(8) {
        write(memory.driver.device(), addr + offset, &pattern(addr + offset).to_le_bytes())?;
    }
    Ok(())
}

/// Fails unless memory has what [`write_pattern`] has written.
pub(super) fn expect_pattern(
    memory: &mut Memory<'_>,
    addr: u64,
) -> core::result::Result<(), Failure> {
    for offset in (0..64).step_by(8) {
        let found = u64::from_le_bytes(read(memory.driver.device(), addr + offset)?);
        expect("the contents of plugged memory", pattern(addr + offset), found)?;
    }
    Ok(())
}

fn pattern(addr: u64) -> u64 {
    addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}
