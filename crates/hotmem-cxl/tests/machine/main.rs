//! Tests of registers: simulated ones, and ones that answer arbitrarily.

mod arbitrary;
mod component;
mod config;
mod decoders;
mod plan;
