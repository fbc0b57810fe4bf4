//! Decides which memory has known contents after the device has answered.

use hotmem::{Contents, PfnRange};

/// What the kernel believes of memory that the device initialises: that of reports, and what is inflated.
pub(super) struct InitialisedMemory {
    /// What initialised memory contains.
    contents: Contents,
    /// Whether the device initialises all memory of each report, whatever it says.
    is_all: bool,
}

impl InitialisedMemory {
    /// No contents are known.
    pub(super) const NONE: InitialisedMemory =
        InitialisedMemory { contents: Contents::Undefined, is_all: false };

    /// Sets what initialised memory contains: the contents of free memory, or zeroes if these are
    /// undefined.
    pub(super) fn set_contents(&mut self, of_free_memory: Contents) {
        self.contents = match of_free_memory {
            Contents::Undefined => Contents::Filled(0),
            filled @ Contents::Filled(_) => filled,
        };
    }

    /// Believes from now on that the device initialises all memory of each report.
    pub(super) fn assume_all(&mut self) {
        self.is_all = true;
    }

    /// Returns what initialised memory contains.
    pub(super) fn contents(&self) -> Contents {
        self.contents
    }

    /// Returns a function that is called with each pageblock of a report, in order, and returns
    /// what it contains. The device says that it has initialised the first `frames` frames.
    pub(super) fn contents_of(&self, frames: u64) -> impl FnMut(PfnRange) -> Contents + use<> {
        let InitialisedMemory { contents, is_all } = *self;
        let mut end = 0;
        move |pageblock| {
            end += pageblock.frames();
            if is_all || end <= frames { contents } else { Contents::Undefined }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Pfn;

    /// Returns what the three pageblocks of a report contain.
    fn contents(initialised: &InitialisedMemory, frames: u64) -> [Contents; 3] {
        let mut contents_of = initialised.contents_of(frames);
        [3, 1, 8].map(|number| {
            let start = Pfn::new(number * 512).unwrap();
            contents_of(PfnRange::with_len(start, 512).unwrap())
        })
    }

    #[test]
    fn pageblocks_are_known_up_to_the_last_whole_one_that_the_device_names() {
        const UNKNOWN: Contents = Contents::Undefined;
        for (free, known) in
            [(Contents::Undefined, Contents::Filled(0)), (Contents::Filled(7), Contents::Filled(7))]
        {
            let mut initialised = InitialisedMemory::NONE;
            initialised.set_contents(free);
            assert_eq!(contents(&initialised, 0), [UNKNOWN; 3]);
            assert_eq!(contents(&initialised, 511), [UNKNOWN; 3]);
            assert_eq!(contents(&initialised, 1535), [known, known, UNKNOWN]);
            assert_eq!(contents(&initialised, 1536), [known; 3]);
            initialised.assume_all();
            assert_eq!(contents(&initialised, 0), [known; 3]);
        }
    }

    #[test]
    fn without_a_reporter_nothing_is_known() {
        let mut initialised = InitialisedMemory::NONE;
        initialised.assume_all();
        assert_eq!(contents(&initialised, 1536), [Contents::Undefined; 3]);
    }
}
