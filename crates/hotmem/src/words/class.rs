//! What memory may be allocated for, and the questions about it that trees answer.

use super::Section;
use crate::sync::Ordering;

/// What memory may be allocated for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Zone {
    /// Anything.
    Kernel = 0,
    /// Only what can be migrated, so that it can be taken away again.
    Movable = 1,
}

impl Zone {
    /// Both.
    pub const ALL: [Zone; 2] = [Zone::Kernel, Zone::Movable];
}

/// What a tree leads to: pageblocks of a zone that are wholly free, partly free, online, or free
/// and not reported.
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
    /// `free` and not `reported`. Over two words "it was zero before" says nothing, so whoever
    /// publishes such a pageblock always sets the tree; while there is a reporter, that is.
    Unreported = 3,
}

impl Class {
    pub(crate) const COUNT: usize = 8;

    /// Of both zones: what is wholly free, and what is partly free.
    pub(crate) const ALL_FREE: [Class; 2] = [Class::free(Zone::Kernel), Class::free(Zone::Movable)];
    pub(crate) const ALL_PARTIAL: [Class; 2] =
        [Class::partial(Zone::Kernel), Class::partial(Zone::Movable)];

    pub(crate) const fn free(zone: Zone) -> Class {
        Class { zone, word: Word::Free }
    }

    pub(crate) const fn partial(zone: Zone) -> Class {
        Class { zone, word: Word::Partial }
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
    /// The pageblocks of this class, as far as the words know.
    #[inline]
    pub(crate) fn available(&self, class: Class) -> u64 {
        let (word, reported) = match class.word {
            Word::Free => (&self.free, 0),
            Word::Partial => (&self.partial, 0),
            Word::Online => (&self.online, 0),
            // Before `free`, so that what is reported in between is not missed.
            Word::Unreported => (&self.free, self.reported.load(Ordering::Acquire)),
        };
        // Acquire: what is found was published with Release.
        word.load(Ordering::Acquire) & !reported & self.zone_mask(class.zone)
    }

    /// The pageblocks of a zone (meaningful where online).
    #[inline]
    pub(crate) fn zone_mask(&self, zone: Zone) -> u64 {
        let movable = self.movable.load(Ordering::Acquire);
        match zone {
            Zone::Kernel => !movable,
            Zone::Movable => movable,
        }
    }

    /// The zone of one pageblock.
    #[inline]
    pub(crate) fn zone_of(&self, bit: usize) -> Zone {
        if self.movable.load(Ordering::Relaxed) >> bit & 1 == 0 {
            Zone::Kernel
        } else {
            Zone::Movable
        }
    }
}
