//! Contains the points of balloons (5.5), and the driver and the model that they share.

pub(crate) mod config;
pub(crate) mod hints;
pub(crate) mod inflate;
pub(crate) mod reports;
mod services;
mod session;
pub(crate) mod statistics;
mod wire;

pub(crate) use session::{Balloon, TYPE};
