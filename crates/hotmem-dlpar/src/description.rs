//! Defines the description of a request.

use crate::property::DrcIndex;
use core::fmt;
use hotmem::OnlineType;

/// The direction of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// LMBs are added.
    Add,
    /// LMBs are removed.
    Remove,
}

/// The LMBs that a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LmbSelection {
    /// This number of LMBs, lowest addresses first.
    Count(u32),
    /// The LMB with this connector.
    Index(DrcIndex),
    /// Consecutive LMBs. LMBs that already are in the requested state are skipped.
    Range {
        /// The connector of the first LMB.
        first: DrcIndex,
        /// The number of LMBs.
        count: u32,
    },
}

/// A request to add or to remove LMBs. [`Dlpar::begin`](crate::Dlpar::begin) opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a request does nothing before it is begun"]
pub struct Request {
    pub(crate) change: Change,
    pub(crate) selection: LmbSelection,
    pub(crate) online: Option<OnlineType>,
}

impl Request {
    /// Describes an addition.
    pub fn add(selection: LmbSelection) -> Request {
        Request::new(Change::Add, selection)
    }

    /// Describes a removal.
    pub fn remove(selection: LmbSelection) -> Request {
        Request::new(Change::Remove, selection)
    }

    /// Describes an addition or a removal.
    pub fn new(change: Change, selection: LmbSelection) -> Request {
        Request { change, selection, online: None }
    }

    /// Sets how added memory is put online. By default
    /// [`Dlpar::set_online_as`](crate::Dlpar::set_online_as) decides.
    pub fn online_as(self, online: OnlineType) -> Request {
        Request { online: Some(online), ..self }
    }

    /// Returns the direction of the request.
    #[must_use]
    pub fn change(&self) -> Change {
        self.change
    }

    /// Returns the LMBs that the request is for.
    #[must_use]
    pub fn selection(&self) -> LmbSelection {
        self.selection
    }
}

/// A number of LMBs, which is displayed with its unit.
pub(crate) struct LmbCount(pub(crate) u32);

impl fmt::Display for LmbCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} LMB{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = match self.change {
            Change::Add => "add",
            Change::Remove => "remove",
        };
        match self.selection {
            LmbSelection::Count(count) => write!(f, "{to} {}", LmbCount(count)),
            LmbSelection::Index(index) => write!(f, "{to} the LMB with DRC index {index}"),
            LmbSelection::Range { first, count } => {
                write!(f, "{to} {} from DRC index {first}", LmbCount(count))
            }
        }
    }
}
