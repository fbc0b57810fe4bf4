//! HDM decoders, by which bridges and devices route addresses of the host (8.2.4.20).

mod block;
mod occupancy;
mod setting;
mod transition;

pub use block::Decoders;
pub use occupancy::Occupancy;
pub use setting::{Capability, DecoderError, DecoderState, Destination, MAX_PORTS, Role, Setting};
pub use transition::{COMMIT_LIMIT, Transition};
