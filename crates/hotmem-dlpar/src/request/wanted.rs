//! What is wanted.

use crate::property::DrcIndex;
use core::fmt;
use hotmem::OnlineType;

/// Which way LMBs go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// They come.
    Add,
    /// They go.
    Remove,
}

/// Which LMBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// So many, from the lowest address up.
    Count(u32),
    /// The one with this connector.
    Index(DrcIndex),
    /// So many from the one with this connector up. Those that are there already, or gone already,
    /// are passed over.
    Range {
        /// The first one's connector.
        first: DrcIndex,
        /// How many LMBs.
        count: u32,
    },
}

/// What is wanted. [`Dlpar::begin`](crate::Dlpar::begin) opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a request does nothing before it is begun"]
pub struct Request {
    pub(super) change: Change,
    pub(super) which: Which,
    pub(super) online: Option<OnlineType>,
}

impl Request {
    /// LMBs are to come.
    pub fn add(which: Which) -> Request {
        Request::new(Change::Add, which)
    }

    /// LMBs are to go.
    pub fn remove(which: Which) -> Request {
        Request::new(Change::Remove, which)
    }

    /// Either.
    pub fn new(change: Change, which: Which) -> Request {
        Request { change, which, online: None }
    }

    /// What added memory is put online for; unless it is said here, what
    /// [`Dlpar::set_online_as`](crate::Dlpar::set_online_as) says.
    pub fn online_as(self, online: OnlineType) -> Request {
        Request { online: Some(online), ..self }
    }

    /// Which way LMBs go.
    #[must_use]
    pub fn change(&self) -> Change {
        self.change
    }

    /// Which LMBs.
    #[must_use]
    pub fn which(&self) -> Which {
        self.which
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = match self.change {
            Change::Add => "add",
            Change::Remove => "remove",
        };
        match self.which {
            Which::Count(count) => write!(f, "{to} {count} LMBs"),
            Which::Index(index) => write!(f, "{to} the LMB with DRC index {index}"),
            Which::Range { first, count } => write!(f, "{to} {count} LMBs from DRC index {first}"),
        }
    }
}
