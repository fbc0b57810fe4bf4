//! Tests the engine by its public interface. All these tests are one program: the engine is
//! generic, so each further program would compile all of it again.

mod added_zeroed;
mod address_bounds;
mod allocated;
mod allocation;
mod arbitrary;
mod batch;
mod bitmap_frames;
mod boot;
mod boot_memory;
mod budgets;
mod busy_errors;
#[cfg(not(hotmem_geometry = "small"))]
mod contiguous;
#[cfg(not(hotmem_geometry = "small"))]
mod costs_of_refusals;
mod cpus;
mod cursor;
mod descriptors;
mod device;
mod discarded_data;
mod double_free;
#[cfg(not(hotmem_geometry = "small"))]
mod drain_cost;
mod exhausted_memory;
mod fast_path;
mod faults;
mod filled_memory;
mod foreign_frees;
mod fragmented_memory;
mod holes;
mod instruction_count;
#[cfg(not(hotmem_geometry = "small"))]
mod interference;
mod interrupted_division;
mod lent_memory;
mod lent_zeroed;
mod lifecycle;
mod linux_defects;
mod lone_pairs;
mod low_memory;
#[cfg(not(hotmem_geometry = "small"))]
mod many_regions;
mod mapping;
mod memory_blocks;
mod metadata;
mod min_free_frames;
mod multi_section;
mod node_numbers;
mod nodes;
mod nodes_in_turn;
mod offline_windows;
mod page_table_frames;
mod pending_offline;
mod persistent_shrink;
mod poison;
mod policy;
mod refusals;
mod report;
mod requests_in_flight;
mod shrink;
mod split_removal;
mod table_reserve;
mod tables;
mod tokens;
#[cfg(all(target_os = "linux", not(miri)))]
mod zeroed_statics;
mod zone_preference;
mod zone_scans;
mod zones;
