//! Finds out which decoders of a component are in use.

use super::{
    block::Decoders,
    setting::{Capability, DecoderError, DecoderState, Destination},
};
use crate::registers::Registers;
use hotmem_addr::Pfn;

/// What the decoders of a component can do, and how far they are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// What the decoders can do.
    pub capability: Capability,
    /// The number of decoders that are committed. They are the first ones.
    pub committed: u32,
    /// The first frame after the addresses of all committed decoders. The next decoder must not begin
    /// before it.
    pub end: Pfn,
    /// Of a device: the first byte after the memory to which committed decoders route addresses.
    pub memory_end: u64,
}

impl Decoders {
    /// Reads which decoders are in use, for example because the firmware has committed them.
    ///
    /// # Errors
    /// The component is gone, or its decoders are committed to what is impossible, or not in order.
    pub fn occupancy(&self, registers: &mut impl Registers) -> Result<Occupancy, DecoderError> {
        let capability = self.capability();
        let mut found = Occupancy { capability, committed: 0, end: Pfn::ZERO, memory_end: 0 };
        for n in 0..capability.count {
            let DecoderState::Committed { setting, .. } = self.state(registers, n)? else {
                continue;
            };
            if found.committed < n {
                return Err(DecoderError::Order { other: found.committed });
            }
            let range = setting.range;
            if range.start() < found.end {
                let before = hotmem_addr::PfnRange::new(Pfn::ZERO, found.end).unwrap_or(range);
                return Err(DecoderError::NotAscending { range, before });
            }
            if let Destination::Memory { skip } = setting.destination {
                let len = range.bytes().0 / setting.ways.count() as u64;
                let end =
                    found.memory_end.checked_add(skip).and_then(|start| start.checked_add(len));
                found.memory_end = end.ok_or(DecoderError::Skip { n, skip })?;
            }
            found.end = range.end();
            found.committed = n + 1;
        }
        Ok(found)
    }
}
