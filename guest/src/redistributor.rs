//! Finds the redistributor of a CPU in the registers of a GICv3. (Arm IHI 0069, 12.10 and 12.11.35)
//!
//! The redistributors lie one after the other, in an order that the architecture does not define. The
//! CPU that boots need not have the first one.

/// The offset of the type register in a redistributor.
pub const TYPE: u64 = 8;
/// The size of a redistributor's registers, and what virtual LPIs add to it.
pub const BYTES: u64 = 0x2_0000;
const VIRTUAL_LPI_BYTES: u64 = 0x2_0000;
/// Bits of the type register: there are registers for virtual LPIs; this redistributor is the last one.
const HAS_VIRTUAL_LPIS: u64 = 1 << 1;
const IS_LAST: u64 = 1 << 4;

/// Returns the affinity in a CPU's `MPIDR_EL1`, as the type register has it in its upper half.
#[must_use]
pub const fn affinity(mpidr: u64) -> u64 {
    mpidr & 0xff_ffff | (mpidr >> 32 & 0xff) << 24
}

/// Returns the offset of the redistributor of the CPU with this affinity in `len` bytes of registers, or
/// `None` if there is none. `read_type` reads the type register of the redistributor at an offset.
pub fn offset_of(affinity: u64, len: u64, read_type: impl Fn(u64) -> u64) -> Option<u64> {
    let mut offset = 0u64;
    while len.checked_sub(offset)? >= BYTES {
        let value = read_type(offset);
        if value >> 32 == affinity {
            return Some(offset);
        }
        if value & IS_LAST != 0 {
            return None;
        }
        let virtual_lpis = if value & HAS_VIRTUAL_LPIS == 0 { 0 } else { VIRTUAL_LPI_BYTES };
        offset += BYTES + virtual_lpis;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns where the redistributor of a CPU is, among redistributors with these types.
    fn found(cpu: u64, len: u64, types: &[(u64, u64)]) -> Option<u64> {
        let read = |at| types.iter().find(|&&(offset, _)| offset == at).map(|&(_, value)| value);
        offset_of(affinity(cpu), len, |at| read(at).expect("a redistributor begins there"))
    }

    #[test]
    fn a_cpu_is_found_wherever_its_redistributor_lies() {
        // MPIDR_EL1 has a bit that is always set, and the highest affinity in bits 32 to 39.
        let cpus = [1 << 31, 1 << 31 | 1, 1 << 31 | 0x100, 1 << 31 | 0x2_0003_0405];
        let types = [(0, 1 << 32), (BYTES, 0), (2 * BYTES, 0x100 << 32)];
        let types = [&types[..], &[(3 * BYTES, 0x0203_0405 << 32 | IS_LAST)]].concat();
        let offsets = cpus.map(|cpu| found(cpu, 4 * BYTES, &types));
        assert_eq!(offsets, [BYTES, 0, 2 * BYTES, 3 * BYTES].map(Some));
    }

    #[test]
    fn a_redistributor_with_virtual_lpis_takes_twice_the_space() {
        let types = [(0, HAS_VIRTUAL_LPIS), (2 * BYTES, 1 << 32)];
        assert_eq!(found(1, 4 * BYTES, &types), Some(2 * BYTES));
    }

    #[test]
    fn the_search_ends_at_the_last_redistributor_and_at_the_end_of_the_registers() {
        assert_eq!(found(7, 4 * BYTES, &[(0, IS_LAST)]), None);
        assert_eq!(found(7, BYTES, &[(0, 0)]), None);
        assert_eq!(found(7, BYTES, &[(0, HAS_VIRTUAL_LPIS)]), None);
        assert_eq!(found(0, BYTES - 1, &[]), None);
    }
}
