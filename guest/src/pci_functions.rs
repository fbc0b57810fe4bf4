//! Finds the functions of a device on a PCI bus, by reads of configuration space.
//!
//! Not every virtual machine answers as a PC does: reads of missing registers may return zeros, and
//! a device may answer for every function number as its function 0.

/// The word of vendor and device.
const IDENTIFICATION: u8 = 0;
/// The word that contains the header type, and its bit that says that a device may have functions
/// other than 0 (PCI Local Bus Specification 3.0, 6.2.1).
const HEADER: u8 = 0xc;
const MULTI_FUNCTION: u32 = 1 << 23;
const MAX_FUNCTIONS: u8 = 8;

/// Returns whether `identification`, the first word of a function's configuration space, is that of
/// a function that exists. Neither 0 nor 0xffff is the number of a vendor.
#[must_use]
pub const fn is_present(identification: u32) -> bool {
    !matches!(identification & 0xffff, 0 | 0xffff)
}

/// Returns the numbers of a device's functions. `read` returns a word of a function's configuration
/// space, given the function's number and the offset.
pub fn functions(read: impl Fn(u8, u8) -> u32) -> impl Iterator<Item = u8> {
    let count = if !is_present(read(0, IDENTIFICATION)) {
        0
    } else if read(0, HEADER) & MULTI_FUNCTION == 0 {
        1
    } else {
        MAX_FUNCTIONS
    };
    (0..count).filter(move |&function| is_present(read(function, IDENTIFICATION)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIRTIO: u32 = 0x1058_1af4;

    fn found(read: impl Fn(u8, u8) -> u32) -> Vec<u8> {
        functions(read).collect()
    }

    #[test]
    fn a_device_whose_registers_all_read_as_ones_or_zeros_does_not_exist() {
        for word in [u32::MAX, 0, 0xffff] {
            assert!(found(|_, _| word).is_empty(), "{word:#x}");
        }
    }

    #[test]
    fn a_device_with_one_function_that_answers_for_all_has_function_0_only() {
        assert_eq!(found(|_, offset| if offset == IDENTIFICATION { VIRTIO } else { 0 }), [0]);
    }

    #[test]
    fn the_functions_of_a_multi_function_device_are_those_that_answer() {
        let read = |function, offset| match (function, offset) {
            (0 | 3 | 7, IDENTIFICATION) => VIRTIO,
            (0, HEADER) => MULTI_FUNCTION,
            (1, _) => 0,
            _ => u32::MAX,
        };
        assert_eq!(found(read), [0, 3, 7]);
        // Without function 0 there is no device.
        assert!(found(|function, offset| read(function + 1, offset)).is_empty());
    }
}
