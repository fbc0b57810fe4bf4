//! Tests the engine. These tests also run on a target with 32-bit pointers.

mod pointer_range;
mod refused_calls;
mod reverse_map;
