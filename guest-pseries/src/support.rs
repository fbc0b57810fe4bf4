//! Makes the argument of `ibm,client-architecture-support`, which names the features that the
//! kernel supports (PAPR B.6.2.3).

use hotmem_dlpar::Version;

/// The list of supported processors. Its only entry matches any processor.
const PROCESSORS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
/// The lengths of the six vectors. Each vector is preceded by its length minus one.
const LENGTHS: [u8; 6] = [2, 4, 4, 2, 24, 4];
const LEN: usize = 16 + 1 + 6 + (2 + 4 + 4 + 2 + 24 + 4);

/// Features in vector 5: the number of the byte, counted from 1, and the bits in that byte.
const DYNAMIC_MEMORY: (usize, u8) = (2, 0x20);
const FORM_1: (usize, u8) = (5, 0x80);
const HOTPLUG_EVENTS: (usize, u8) = (6, 0x04);
const DYNAMIC_MEMORY_V2: (usize, u8) = (22, 0x80);
/// Radix page tables. This kernel does not use them. It sets the bit because QEMU negotiates faster
/// with it.
const RADIX: (usize, u8) = (24, 0x40);

/// Returns the argument for a kernel that supports `version` of the property that lists LMBs. If
/// `events` is set, the kernel also supports events that name LMBs.
#[must_use]
pub fn support(version: Version, events: bool) -> [u8; LEN] {
    let mut argument = [0; LEN];
    let mut offset = 0;
    let mut put = |bytes: &[u8]| {
        let end = offset + bytes.len();
        if let Some(target) = argument.get_mut(offset..end) {
            target.copy_from_slice(bytes);
        }
        offset = end;
    };
    put(&PROCESSORS);
    put(&[5]);
    for (number, len) in (1..).zip(LENGTHS) {
        put(&[len - 1]);
        let mut vector = [0_u8; 24];
        match number {
            // In vector 1: the newest architecture for which there is a bit.
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
    argument
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the vectors as firmware does.
    fn vectors(argument: &[u8]) -> Vec<Vec<u8>> {
        let rest = &argument[16..];
        let (mut offset, mut vectors) = (1, Vec::new());
        for _ in 0..=rest[0] {
            let len = usize::from(rest[offset]) + 1;
            vectors.push(rest[offset + 1..offset + 1 + len].to_vec());
            offset += 1 + len;
        }
        assert_eq!(offset, rest.len());
        vectors
    }

    #[test]
    fn firmware_finds_the_supported_features() {
        let supported = vectors(&support(Version::V2, true));
        let lengths: Vec<_> = supported.iter().map(Vec::len).collect();
        assert_eq!(lengths, LENGTHS.map(usize::from));
        let fifth = &supported[4];
        assert_eq!(
            [fifth[1], fifth[4], fifth[5], fifth[21], fifth[23]],
            [0x20, 0x80, 4, 0x80, 0x40]
        );
        let fifth = &vectors(&support(Version::V1, false))[4];
        assert_eq!([fifth[1], fifth[4], fifth[5], fifth[21], fifth[23]], [0x20, 0x80, 0, 0, 0x40]);
    }
}
