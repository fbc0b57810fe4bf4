//! Tests of registers: simulated ones, and ones that answer arbitrarily.

mod arbitrary;
mod capacity;
mod component;
mod config;
mod decoders;
mod device;
mod host;
mod mailbox;
mod plan;
