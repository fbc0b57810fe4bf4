//! Tests of the engine that also run with 32-bit pointers.

mod pointers;
mod refused;
mod reserved;
mod reverse_map;
