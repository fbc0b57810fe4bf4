//! The argument of `ibm,client-architecture-support`, which names the features that the kernel
//! supports (PAPR B.6.2.3).

use hotmem_dlpar::Version;

/// The list of processors: any.
const PROCESSORS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
/// The lengths of the six vectors. Each vector is preceded by its length minus one.
const LENGTHS: [u8; 6] = [2, 4, 4, 2, 24, 4];
const LEN: usize = 16 + 1 + 6 + (2 + 4 + 4 + 2 + 24 + 4);

/// Bytes of vector 5 and their bits.
const DYNAMIC_MEMORY: (usize, u8) = (2, 0x20);
const FORM_1: (usize, u8) = (5, 0x80);
const HOTPLUG_EVENTS: (usize, u8) = (6, 0x04);
const DYNAMIC_MEMORY_V2: (usize, u8) = (22, 0x80);
/// Radix page tables, which this kernel does not use. QEMU negotiates faster with this bit.
const RADIX: (usize, u8) = (24, 0x40);

/// Returns the argument for a kernel that supports this version of the LMBs' property and, if
/// `events` is set, events that name LMBs.
#[must_use]
pub fn support(version: Version, events: bool) -> [u8; LEN] {
    let mut all = [0; LEN];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        let end = at + bytes.len();
        if let Some(place) = all.get_mut(at..end) {
            place.copy_from_slice(bytes);
        }
        at = end;
    };
    put(&PROCESSORS);
    put(&[5]);
    for (number, len) in (1..).zip(LENGTHS) {
        put(&[len - 1]);
        let mut vector = [0_u8; 24];
        match number {
            // Of vector 1: the newest architecture that there is a bit for.
            1 => vector[1] = 0x80,
            5 => {
                let mut set = |(byte, bits): (usize, u8)| vector[byte - 1] |= bits;
                set(DYNAMIC_MEMORY);
                set(FORM_1);
                set(RADIX);
                if events {
                    set(HOTPLUG_EVENTS);
                }
                if version == Version::V2 {
                    set(DYNAMIC_MEMORY_V2);
                }
            }
            _ => {}
        }
        put(&vector[..usize::from(len)]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the vectors as firmware does.
    fn vectors(argument: &[u8]) -> Vec<Vec<u8>> {
        let rest = &argument[16..];
        let (mut at, mut vectors) = (1, Vec::new());
        for _ in 0..=rest[0] {
            let len = usize::from(rest[at]) + 1;
            vectors.push(rest[at + 1..at + 1 + len].to_vec());
            at += 1 + len;
        }
        assert_eq!(at, rest.len());
        vectors
    }

    #[test]
    fn firmware_finds_the_supported_features() {
        let all = vectors(&support(Version::V2, true));
        let lengths: Vec<_> = all.iter().map(Vec::len).collect();
        assert_eq!(lengths, LENGTHS.map(usize::from));
        let fifth = &all[4];
        assert_eq!(
            [fifth[1], fifth[4], fifth[5], fifth[21], fifth[23]],
            [0x20, 0x80, 4, 0x80, 0x40]
        );
        let fifth = &vectors(&support(Version::V1, false))[4];
        assert_eq!([fifth[1], fifth[4], fifth[5], fifth[21], fifth[23]], [0x20, 0x80, 0, 0, 0x40]);
    }
}
