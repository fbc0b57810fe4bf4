//! Tests the engine by its public interface. All these tests are one program: the engine is
//! generic, so each further program would compile all of it again.

mod allocation;
mod arbitrary;
mod batch;
mod blocks;
mod boot;
mod bounds;
mod busy;
mod counted;
mod cpus;
mod cursor;
mod descriptors;
mod device;
mod discard;
mod double_free;
mod exhausted;
mod fast_path;
mod faults;
mod filled;
mod floor;
mod given_back;
mod holes;
#[cfg(not(hotmem_geometry = "small"))]
mod interference;
mod lifecycle;
mod linux_defects;
mod low_memory;
mod mapping;
mod metadata;
mod node_numbers;
mod nodes;
mod persistent;
mod poison;
mod policy;
mod prefer;
mod refusals;
mod report;
mod scan;
mod shrink;
mod split_removal;
mod tables;
mod tokens;
mod wide;
mod windows;
#[cfg(all(target_os = "linux", not(miri)))]
mod zeroed;
mod zones;
