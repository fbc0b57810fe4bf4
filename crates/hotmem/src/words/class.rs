//! Defines classes: what the trees lead to.

use super::{Section, Zone};
use crate::sync::Ordering;

/// What a tree leads to: pageblocks of a zone that are wholly free, partly free, online, free and
/// not reported, or partly free and perhaps with a run of free frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class {
    pub(crate) zone: Zone,
    word: Word,
}

/// The section word that a tree summarises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    Free = 0,
    Partial = 1,
    Online = 2,
    /// `free` and not `reported`. In the other classes, a publisher that finds other bits of the
    /// word set knows that the tree leads to the section already. In this class, it does not know
    /// that, because the pageblocks of the other bits of `free` may be reported. So every publisher
    /// of a pageblock that is free and not reported sets the tree, as long as reporting is on.
    Unreported = 3,
    /// `partial` and `may_have_runs`. As these are two words, whoever sets a bit of `may_have_runs`
    /// also sets the tree. So whoever sets a bit of `partial` beside bits that are set in both words
    /// knows that the tree leads to the section already.
    Runs = 4,
}

impl Class {
    pub(crate) const COUNT: usize = 10;

    /// The classes of both zones for wholly free and for partly free pageblocks.
    pub(crate) const ALL_FREE: [Class; 2] = [Class::free(Zone::Kernel), Class::free(Zone::Movable)];
    pub(crate) const ALL_PARTIAL: [Class; 2] =
        [Class::partial(Zone::Kernel), Class::partial(Zone::Movable)];
    pub(crate) const ALL_RUNS: [Class; 2] =
        [Class::partial_with_runs(Zone::Kernel), Class::partial_with_runs(Zone::Movable)];

    pub(crate) const fn free(zone: Zone) -> Class {
        Class { zone, word: Word::Free }
    }

    pub(crate) const fn partial(zone: Zone) -> Class {
        Class { zone, word: Word::Partial }
    }

    /// The partly free pageblocks in which two neighbouring frames may be free. The others are known
    /// to have no such frames within a word of their bitmap.
    pub(crate) const fn partial_with_runs(zone: Zone) -> Class {
        Class { zone, word: Word::Runs }
    }

    pub(crate) const fn online(zone: Zone) -> Class {
        Class { zone, word: Word::Online }
    }

    pub(crate) const fn unreported(zone: Zone) -> Class {
        Class { zone, word: Word::Unreported }
    }

    pub(crate) const fn index(self) -> usize {
        self.word as usize * 2 + self.zone as usize
    }
}

impl Section {
    /// Returns the pageblocks of this class, as the section's words say at this moment.
    #[inline(never)]
    pub(crate) fn available(&self, class: Class) -> u64 {
        let (word, others) = match class.word {
            Word::Free => (&self.free, u64::MAX),
            Word::Partial => (&self.partial, u64::MAX),
            Word::Online => (&self.online, u64::MAX),
            // `reported` is loaded before `free`, so that a pageblock that becomes reported between
            // the two loads is not missed.
            Word::Unreported => (&self.free, !self.reported.load(Ordering::Acquire)),
            Word::Runs => (&self.partial, self.may_have_runs.load(Ordering::Acquire)),
        };
        // Acquire: pageblocks that are found were published with Release.
        word.load(Ordering::Acquire) & others & self.zone_mask(class.zone)
    }

    /// Returns the pageblocks of a zone. Only the bits of online pageblocks have a meaning.
    #[inline]
    pub(crate) fn zone_mask(&self, zone: Zone) -> u64 {
        let movable = self.movable.load(Ordering::Acquire);
        match zone {
            Zone::Kernel => !movable,
            Zone::Movable => movable,
        }
    }

    /// Returns the zone of one pageblock.
    #[inline]
    pub(crate) fn zone_of(&self, bit: usize) -> Zone {
        if self.movable.load(Ordering::Relaxed) >> bit & 1 == 0 {
            Zone::Kernel
        } else {
            Zone::Movable
        }
    }
}
