//! Interprets the registers of machine checks (Intel SDM volume 3, 16.3).

use hotmem::Pfn;

/// The meaning of a bank's registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BankError {
    /// This frame has lost its contents. The interrupted code has not used them.
    BadFrame(Pfn),
    /// The kernel cannot continue, for this reason.
    Fatal(&'static str),
}

/// A bit of the global status: the interrupted code can continue.
const CAN_CONTINUE: u64 = 1 << 0;
/// Bits of a bank's status.
const VALID: u64 = 1 << 63;
const UNCORRECTED: u64 = 1 << 61;
const HAS_ADDRESS: u64 = 1 << 58;
const CONTEXT_CORRUPT: u64 = 1 << 57;
const ACTION_REQUIRED: u64 = 1 << 55;

/// Interprets the global status, and the status and the address of a bank. Returns `None` if the
/// bank has no error, or one that the hardware has corrected.
#[must_use]
pub fn interpret(global_status: u64, status: u64, address: u64) -> Option<BankError> {
    if status & VALID == 0 || status & UNCORRECTED == 0 {
        return None;
    }
    let can_continue = global_status & CAN_CONTINUE != 0 && status & CONTEXT_CORRUPT == 0;
    let bad_frame = Pfn::containing(address).filter(|_| status & HAS_ADDRESS != 0);
    Some(match bad_frame {
        _ if !can_continue => BankError::Fatal("the CPU cannot continue"),
        _ if status & ACTION_REQUIRED != 0 => BankError::Fatal("the kernel has used bad memory"),
        Some(frame) => BankError::BadFrame(frame),
        None => BankError::Fatal("the error has no address"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a memory error that a patrol scrub has found.
    const SCRUB: u64 = 0xbd00_0000_0000_00c0;

    #[test]
    fn memory_that_a_scrub_finds_bad_is_a_bad_frame() {
        let frame = Pfn::new(0x1234).unwrap();
        let found = interpret(CAN_CONTINUE, SCRUB, 0x123_4567);
        assert_eq!(found, Some(BankError::BadFrame(frame)));
    }

    #[test]
    fn corrected_and_old_errors_are_no_errors() {
        assert_eq!(interpret(CAN_CONTINUE, SCRUB & !UNCORRECTED, 0x1000), None);
        assert_eq!(interpret(CAN_CONTINUE, SCRUB & !VALID, 0x1000), None);
    }

    #[test]
    fn other_errors_are_fatal() {
        let cases = [
            (0, SCRUB, 0x1000),
            (CAN_CONTINUE, SCRUB | CONTEXT_CORRUPT, 0x1000),
            (CAN_CONTINUE, SCRUB | ACTION_REQUIRED, 0x1000),
            (CAN_CONTINUE, SCRUB & !HAS_ADDRESS, 0x1000),
            // This is not a physical address.
            (CAN_CONTINUE, SCRUB, u64::MAX),
        ];
        for (global_status, status, address) in cases {
            let found = interpret(global_status, status, address);
            assert!(matches!(found, Some(BankError::Fatal(_))), "{status:#x} {found:?}");
        }
    }
}
