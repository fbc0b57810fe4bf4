//! What went wrong with a connector.

use crate::property::DrcIndex;
use core::fmt;

/// Status: not yet, ask again.
pub const BUSY: i32 = -2;

/// A call for one connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Its state is asked for.
    Sense,
    /// Its memory becomes the partition's.
    SetUsable,
    /// Its memory can be used.
    Unisolate,
    /// Its associativity is asked for.
    Configure,
    /// Its memory can no longer be used.
    Isolate,
    /// Its memory is the partition's no longer.
    SetUnusable,
}

/// What went wrong with a connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectorError {
    /// Which one.
    pub connector: DrcIndex,
    /// In which call.
    pub call: Call,
    /// What.
    pub what: Wrong,
    /// The calls before it could not be undone: the connector is in neither state. A later request
    /// for its LMB goes on from there.
    pub stuck: bool,
}

/// What a platform can answer that is no success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// This status.
    Failed(i32),
    /// It is in this state, which does not allow the request.
    State(i32),
    /// This is no state of a connector.
    NoState(i32),
    /// The associativity list is longer than it can be, or no list of the lookup arrays and there
    /// is no room for it there.
    List(usize),
}

impl fmt::Display for ConnectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = match self.call {
            Call::Sense => "dr-entity-sense",
            Call::SetUsable => "set usable",
            Call::Unisolate => "unisolate",
            Call::Configure => "configure-connector",
            Call::Isolate => "isolate",
            Call::SetUnusable => "set unusable",
        };
        write!(f, "connector {}: {call}: ", self.connector)?;
        match self.what {
            Wrong::Failed(BUSY) => f.write_str("busy for too long")?,
            Wrong::Failed(status) => write!(f, "status {status}")?,
            Wrong::State(state) => write!(f, "in state {state}")?,
            Wrong::NoState(state) => write!(f, "says {state}, which is no state")?,
            Wrong::List(len) => write!(f, "no room for an associativity list of {len} entries")?,
        }
        if self.stuck { f.write_str("; could not be undone") } else { Ok(()) }
    }
}

impl core::error::Error for ConnectorError {}
