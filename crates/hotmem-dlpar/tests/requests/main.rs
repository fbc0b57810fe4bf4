//! Requests on whole machines: what they do, what they refuse, and that what fails leaves the
//! machine as it was.
#![allow(clippy::cast_possible_truncation, reason = "values of a test's own making")]

mod again;
#[path = "../common/mod.rs"]
mod common;
mod dropped;
mod elsewhere;
mod faults;
mod online;
mod plain;
mod qemu;
mod qemu_faults;
mod random;
mod world;
