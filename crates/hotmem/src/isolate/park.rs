//! Parks isolation tokens while their requests wait, and takes them back: see `frames/parked.rs`.

use super::Isolation;
use crate::addr::PfnRange;
use crate::frames::{CallContext, Frames};
use crate::platform::Platform;
use crate::sync::mutant;
use crate::words::{SectionPart, Zone};

/// An isolation token that is parked.
///
/// If it is dropped or forgotten, its memory stays isolated until an allocation takes it back.
pub(crate) struct ParkedIsolation<'f, P> {
    frames: &'f Frames<P>,
    range: PfnRange,
}

impl<'f, P: Platform> Isolation<'f, P> {
    /// Parks the token.
    ///
    /// # Errors
    /// Returns the token if the list of parked ranges is full.
    pub(crate) fn park(self) -> Result<ParkedIsolation<'f, P>, Isolation<'f, P>> {
        let Isolation { frames, range, .. } = self;
        match frames.parked().put(range) {
            true => Ok(ParkedIsolation { frames, range }),
            false => Err(self),
        }
    }
}

impl<'f, P: Platform> ParkedIsolation<'f, P> {
    /// Returns the range that was parked.
    pub(crate) fn range(&self) -> PfnRange {
        self.range
    }

    /// Returns the token, or `None` if an allocation has taken the memory back.
    ///
    /// Another request may have isolated and parked the same range since. Then this takes the token
    /// of that request, and that request finds its own gone: whoever takes the range out of the list
    /// owns the memory.
    pub(crate) fn unpark(self) -> Option<Isolation<'f, P>> {
        let ParkedIsolation { frames, range } = self;
        let is_parked = frames.parked().take(range);
        mutant!("a request goes on with memory that was taken back" => return Some(Isolation { frames, range, was_free: false }));
        is_parked.then_some(Isolation { frames, range, was_free: false })
    }
}

impl<P: Platform> Frames<P> {
    /// Returns the parked ranges, for tests.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn parked_ranges(&self) -> impl Iterator<Item = PfnRange> {
        self.parked().ranges()
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Returns a parked range that has memory of one of these zones.
    pub(crate) fn parked_in(&self, zones: &[Zone]) -> Option<PfnRange> {
        self.frames.parked().ranges().find(|&range| {
            self.words().section_parts(range).any(|SectionPart { section, blocks }| {
                zones.iter().any(|&zone| section.zone_mask(zone) & blocks != 0)
            })
        })
    }

    /// Takes a parked range back, and releases its memory to the allocator. Returns whether it did:
    /// false if its request goes on with it, or another CPU has taken it.
    ///
    /// Context: any. Cost: O(pageblocks) of the range.
    pub(crate) fn recall(self, range: PfnRange) -> bool {
        mutant!("a recall counts no hiding step" => return self.take_and_release_parked(range));
        // Count a hiding step before the range is taken: a search that finds it gone must not
        // conclude that no memory is free.
        self.start_hiding();
        self.take_and_release_parked(range)
    }

    fn take_and_release_parked(&self, range: PfnRange) -> bool {
        let is_taken = self.frames.parked().take(range);
        mutant!("memory is taken back that its request goes on with" => return { Isolation { frames: self.frames, range, was_free: false }.release(); true });
        if is_taken {
            Isolation { frames: self.frames, range, was_free: false }.release();
        }
        is_taken
    }
}
