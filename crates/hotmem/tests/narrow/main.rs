//! Tests the engine. These tests also run on a target with 32-bit pointers.

mod pointers;
mod refused;
mod reserved;
mod reverse_map;
