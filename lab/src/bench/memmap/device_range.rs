//! Places the memory of the device whose descriptors are measured.

use anyhow::{Context, Result, bail};
use hotmem::{Bytes, PfnRange};
use hotmem_memmap::Compound;

/// The address of the device's memory: 64 GiB.
const BASE: u64 = 64 << 30;

/// Returns the frames of a device with this memory.
pub(super) fn range(size: Bytes) -> Result<PfnRange> {
    let range = PfnRange::from_bytes(BASE, size).context("--size")?;
    if range.is_empty() || !range.is_aligned(Compound::GIB_1.frames()) {
        bail!("--size must be whole GiB, such as 100G");
    }
    Ok(range)
}
