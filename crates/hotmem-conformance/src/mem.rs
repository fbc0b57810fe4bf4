//! Contains the points of memory devices (5.15), and the driver and the model that they share.

mod blocks;
mod config;
pub(crate) mod config_points;
pub(crate) mod contents;
pub(crate) mod plug;
pub(crate) mod queue;
mod session;
pub(crate) mod state;
pub(crate) mod unplug;
pub(crate) mod unplug_all;
mod wire;

pub(crate) use session::{Memory, TYPE};
