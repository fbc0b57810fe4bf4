//! Writes the payloads of commands.

use super::answer::{Extent, More};

/// The commands of a memory device that this crate knows.
pub mod opcode {
    /// Get Event Records.
    pub const GET_EVENTS: u16 = 0x0100;
    /// Clear Event Records.
    pub const CLEAR_EVENTS: u16 = 0x0101;
    /// Set Event Interrupt Policy, with [`INTERRUPT_POLICY`](super::INTERRUPT_POLICY).
    pub const SET_INTERRUPT_POLICY: u16 = 0x0103;
    /// Identify Memory Device. It has no payload.
    pub const IDENTIFY: u16 = 0x4000;
    /// Get Partition Info. It has no payload.
    pub const GET_PARTITION: u16 = 0x4100;
    /// Get Dynamic Capacity Configuration.
    pub const GET_DYNAMIC_CONFIG: u16 = 0x4800;
    /// Get Dynamic Capacity Extent List.
    pub const GET_EXTENTS: u16 = 0x4801;
    /// Add Dynamic Capacity Response.
    pub const ADD_RESPONSE: u16 = 0x4802;
    /// Release Dynamic Capacity.
    pub const RELEASE: u16 = 0x4803;
}

/// The policy that lets two logs interrupt by MSI, with the same vector: that of information (byte 0)
/// and that of dynamic capacity (byte 4).
pub const INTERRUPT_POLICY: [u8; 5] = [1, 0, 0, 0, 1];

/// Returns the payload of Get Event Records for the log of dynamic capacity.
#[must_use]
pub const fn get_events() -> [u8; 1] {
    [DYNAMIC_CAPACITY_LOG]
}

const DYNAMIC_CAPACITY_LOG: u8 = 4;

/// Returns the payload of Clear Event Records for one event of the log of dynamic capacity.
#[must_use]
pub const fn clear_event(handle: u16) -> [u8; 8] {
    let [low, high] = handle.to_le_bytes();
    [DYNAMIC_CAPACITY_LOG, 0, 1, 0, 0, 0, low, high]
}

/// Returns the payload of Get Dynamic Capacity Configuration: at most `count` regions from `first`.
#[must_use]
pub const fn get_dynamic_config(first: u8, count: u8) -> [u8; 2] {
    [count, first]
}

/// Returns the payload of Get Dynamic Capacity Extent List: at most `count` extents from `first`.
#[must_use]
pub const fn get_extents(first: u32, count: u32) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (count.to_le_bytes(), first.to_le_bytes());
    [a, b, c, d, e, f, g, h]
}

const HEADER: usize = 8;
const EXTENT: usize = 24;

/// Returns how many extents a payload of `len` bytes can list.
#[must_use]
pub const fn extents_in(len: usize) -> usize {
    len.saturating_sub(HEADER) / EXTENT
}

/// Writes the payload of Add Dynamic Capacity Response or of Release Dynamic Capacity (Tables 8-168 and
/// 8-170). Returns its length, or `None` if `payload` has no room for all extents.
#[must_use]
pub fn write_extents(payload: &mut [u8], extents: &[Extent], more: More) -> Option<usize> {
    let len = extents.len().checked_mul(EXTENT)?.checked_add(HEADER)?;
    let (header, list) = payload.get_mut(..len)?.split_at_mut(HEADER);
    header.fill(0);
    header[..4].copy_from_slice(&u32::try_from(extents.len()).ok()?.to_le_bytes());
    header[4] = u8::from(more == More::Follows);
    for (place, extent) in list.chunks_exact_mut(EXTENT).zip(extents) {
        place.fill(0);
        place[..8].copy_from_slice(&extent.start.to_le_bytes());
        place[8..16].copy_from_slice(&extent.len.to_le_bytes());
    }
    Some(len)
}
