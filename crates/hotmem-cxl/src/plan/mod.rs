//! A planner for decoders: how the addresses of a window alternate between devices.

mod execution;
mod planner;
mod topology;

pub use execution::{Execution, Machine, PlanFailure};
pub use planner::Plan;
pub use topology::{Bridge, Component, Device, PlanError, Step, Wish};
