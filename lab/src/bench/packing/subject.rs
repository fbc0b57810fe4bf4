//! Names the kinds of guests that are packed.

use crate::guest::Guest;

/// A kind of guest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The reference guest without reports.
    NoReporting,
    Hotmem,
    HotmemWithDescriptors,
    Linux,
}

/// Returns the subjects of the guests: the reference guest is packed without and with reports.
pub(super) fn subjects(guests: &[Guest]) -> Vec<Subject> {
    let subjects = guests.iter().flat_map(|guest| match guest {
        Guest::Hotmem => &[Subject::NoReporting, Subject::Hotmem][..],
        Guest::HotmemWithDescriptors => &[Subject::HotmemWithDescriptors],
        Guest::Linux => &[Subject::Linux],
    });
    subjects.copied().collect()
}

impl Subject {
    pub(super) fn name(self) -> &'static str {
        match self {
            Subject::NoReporting => "hotmem-no-reports",
            Subject::Hotmem => "hotmem",
            Subject::HotmemWithDescriptors => "hotmem-64B",
            Subject::Linux => "linux",
        }
    }

    pub(super) fn guest(self) -> Guest {
        match self {
            Subject::NoReporting | Subject::Hotmem => Guest::Hotmem,
            Subject::HotmemWithDescriptors => Guest::HotmemWithDescriptors,
            Subject::Linux => Guest::Linux,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{packing::Args, parsed};

    #[test]
    fn by_default_all_kinds_of_guests_are_packed() {
        let args: Args = parsed(&[""; 0]);
        let names: Vec<_> = subjects(&args.guests).into_iter().map(Subject::name).collect();
        assert_eq!(names, ["hotmem-64B", "linux", "hotmem-no-reports", "hotmem"]);
    }
}
