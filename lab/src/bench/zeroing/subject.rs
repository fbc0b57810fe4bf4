//! Names the subjects: what is known of free memory.

use std::fmt;

/// The free memory from which frames come, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// Free memory was reported, and is marked as zero.
    Hotmem,
    /// Free memory was reported, and no marks are kept.
    NoMarks,
    /// Free memory stays with the guest, and is dirty.
    Resident,
    /// Free memory stays with the guest, which zeroes memory when it frees it.
    Filled,
}

impl Subject {
    pub(super) const ALL: [Subject; 4] =
        [Subject::Hotmem, Subject::NoMarks, Subject::Resident, Subject::Filled];

    /// Returns whether free memory is reported to the host.
    pub(super) fn is_reported(self) -> bool {
        matches!(self, Subject::Hotmem | Subject::NoMarks)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Hotmem => "hotmem",
            Subject::NoMarks => "hotmem-no-marks",
            Subject::Resident => "resident",
            Subject::Filled => "filled",
        })
    }
}
