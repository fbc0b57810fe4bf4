//! Errors of connectors.

use crate::property::DrcIndex;
use core::fmt;

/// Status: busy, try again.
pub const BUSY: i32 = -2;

/// A call of the hypervisor for one connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `get-sensor-state`: reads its state.
    Sense,
    /// `set-indicator`: gives its memory to the partition.
    SetUsable,
    /// `set-indicator`: makes its memory accessible.
    Unisolate,
    /// `ibm,configure-connector`: reads its associativity.
    Configure,
    /// `set-indicator`: makes its memory inaccessible.
    Isolate,
    /// `set-indicator`: takes its memory from the partition.
    SetUnusable,
}

/// An error of a connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectorError {
    /// The connector.
    pub connector: DrcIndex,
    /// The call that failed.
    pub call: Call,
    /// The platform's answer.
    pub failure: ConnectorFailure,
    /// Whether undoing the earlier calls failed too, so that the connector is neither acquired nor
    /// released. A later request for its LMB continues from this state.
    pub is_stuck: bool,
}

/// An answer of the platform that is not a success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectorFailure {
    /// The call failed with this status.
    Failed(i32),
    /// The connector is in this state, which does not allow the request.
    State(i32),
    /// The platform reported this number, which is not a state of a connector.
    NoState(i32),
    /// The associativity list has this length, which is too long, or the lookup arrays have no room
    /// for it.
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
        match self.failure {
            ConnectorFailure::Failed(BUSY) => f.write_str("busy for too long")?,
            ConnectorFailure::Failed(status) => write!(f, "status {status}")?,
            ConnectorFailure::State(state) => write!(f, "in state {state}")?,
            ConnectorFailure::NoState(state) => write!(f, "reports {state}, which is not a state")?,
            ConnectorFailure::List(len) => {
                write!(f, "no room for an associativity list of {len} entries")?
            }
        }
        if self.is_stuck { f.write_str("; could not be undone") } else { Ok(()) }
    }
}

impl core::error::Error for ConnectorError {}
