//! `hotmem lsmem`, which lists the memory blocks of a hosted machine in the columns of lsmem.

use crate::{hosted::Hosted, size, table::table};
use anyhow::{Result, bail};
use hotmem::{
    AddRequest, Bytes, Hotplug, Map, MemoryBlock, MemoryBlockState, NoHooks, OnlineType, PfnRange,
    Platform, State, Zone,
};
use serde::Serialize;
use std::fmt;

/// Arguments of `hotmem lsmem`, which describe the hosted machine to list.
#[derive(clap::Args)]
pub struct Args {
    /// Memory to boot with
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1G")]
    boot_memory: Bytes,
    /// Memory above boot memory, plugged and online for any allocation
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "8G")]
    online: Bytes,
    /// Memory above that of `--online`, plugged and online for movable allocations
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16G")]
    movable: Bytes,
    /// Memory above that of `--movable`, plugged and offline
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "8G")]
    offline: Bytes,
    /// Device memory above the memory of `--offline`
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    device: Bytes,
    /// The size of a memory block: 128M to 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_block_size, default_value = "128M")]
    block_size: Bytes,
    /// Print a row for each memory block instead of a row for each run of equal memory blocks
    #[arg(long)]
    all: bool,
    /// Print JSON (docs/command.md)
    #[arg(long)]
    json: bool,
}

fn parse_block_size(text: &str) -> Result<Bytes, String> {
    let size = size::parse(text)?;
    let fits = size.0.is_power_of_two() && Bytes::mib(128) <= size && size <= Bytes::gib(2);
    if fits { Ok(size) } else { Err("a block size is a power of two from 128M to 2G".into()) }
}

/// Builds the machine and prints its memory blocks.
///
/// # Errors
/// The machine cannot be built.
pub fn run(args: &Args) -> Result<()> {
    let parts = [
        (args.online, Some(OnlineType::Kernel)),
        (args.movable, Some(OnlineType::Movable)),
        (args.offline, Some(OnlineType::Offline)),
        (args.device, None),
    ];
    let size = parts.iter().fold(Bytes::ZERO, |sum, part| sum + part.0);
    let machine = Hosted::builder().boot_memory(args.boot_memory).hotplug_size(size).build()?;
    let mut hotplug = machine.boot()?;
    if size != Bytes::ZERO {
        hotplug.announce(machine.hotplug_range())?;
    }
    let mut unused = machine.hotplug_range();
    for (size, kind) in parts.into_iter().filter(|part| part.0 != Bytes::ZERO) {
        let Some(end) = unused.start().checked_add(size.frames()) else {
            bail!("{size} would end beyond the largest physical address");
        };
        let (part, above) = unused.split_at(end);
        match kind {
            Some(kind) => {
                hotplug.add(part)?;
                hotplug.online(part, kind, &mut NoHooks)?;
            }
            None => hotplug.add(AddRequest { device: true, ..part.into() })?,
        }
        unused = above;
    }
    let listing = Listing::of(&hotplug, args.block_size, args.all);
    if args.json {
        return crate::out::write_json(&listing.as_json());
    }
    Ok(crate::out::write(format_args!("{listing}"))?)
}

/// The memory blocks of a machine, as lsmem shows them.
pub struct Listing {
    block_size: Bytes,
    rows: Vec<Row>,
    totals: Totals,
}

/// A run of memory blocks with the same values.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    range: PfnRange,
    state: MemoryBlockState,
    is_removable: bool,
    node: u32,
    zone: Option<Zone>,
}

/// The memory in each state. A part of a memory block has one state, and the block may have several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Totals {
    online: Bytes,
    offline: Bytes,
    device: Bytes,
}

impl Listing {
    /// Lists all memory blocks of the machine. Adjacent blocks with the same values share a row
    /// unless `all` is set.
    #[must_use]
    pub fn of<P: Platform, M: Map>(
        hotplug: &Hotplug<'_, P, M>,
        block_size: Bytes,
        all: bool,
    ) -> Listing {
        let mut rows: Vec<Row> = Vec::new();
        let mut totals = Totals::default();
        for block in hotplug.memory_blocks(block_size.frames()) {
            totals.add(hotplug, block.range);
            let row = Row::of(&block);
            match rows.last_mut() {
                Some(last) if !all && last.is_continued_by(&row) => {
                    let both = PfnRange::new(last.range.start(), row.range.end());
                    last.range = both.unwrap_or(last.range);
                }
                _ => rows.push(row),
            }
        }
        Listing { block_size, rows, totals }
    }

    /// Returns the listing for JSON.
    #[must_use]
    pub fn as_json(&self) -> JsonListing {
        let Totals { online, offline, device } = self.totals;
        let memory = self.rows.iter().map(|row| row.shown(self.block_size)).collect();
        let [block_size, online, offline, device] =
            [self.block_size, online, offline, device].map(|size| size.0);
        JsonListing { memory, block_size, online, offline, device }
    }
}

/// A [`Listing`] for JSON. Sizes are in bytes.
#[derive(Serialize)]
pub struct JsonListing {
    memory: Vec<ShownRow>,
    block_size: u64,
    online: u64,
    offline: u64,
    device: u64,
}

/// The columns of a row.
#[derive(Serialize)]
struct ShownRow {
    range: String,
    size: u64,
    state: &'static str,
    removable: bool,
    block: String,
    node: u32,
    zones: &'static str,
}

impl Totals {
    /// Adds the memory of a memory block.
    fn add<P: Platform, M: Map>(&mut self, hotplug: &Hotplug<'_, P, M>, mut block: PfnRange) {
        while !block.is_empty() {
            let (part, state) = hotplug.state_at(block.start(), block.end());
            let total = match state {
                State::Online | State::OnlineMovable => Some(&mut self.online),
                State::Offline | State::Removing => Some(&mut self.offline),
                State::Device => Some(&mut self.device),
                State::Unknown | State::Absent => None,
            };
            if let Some(total) = total {
                *total = *total + part.bytes();
            }
            block = block.split_at(part.end()).1;
        }
    }
}

impl Row {
    fn of(block: &MemoryBlock) -> Row {
        let MemoryBlock { range, node, state, zone, blocker, .. } = *block;
        let is_removable = state != MemoryBlockState::Device && blocker.is_none();
        Row { range, state, is_removable, node: node.0, zone }
    }

    /// Returns the columns of the row.
    fn shown(&self, block_size: Bytes) -> ShownRow {
        let block = |frame: u64| frame / block_size.frames();
        let first = block(self.range.start().number());
        let last = block(self.range.end().number() - 1);
        ShownRow {
            range: self.range.to_string(),
            size: self.range.bytes().0,
            state: match self.state {
                MemoryBlockState::Online => "online",
                MemoryBlockState::Offline => "offline",
                MemoryBlockState::GoingOffline => "going-offline",
                MemoryBlockState::Mixed => "mixed",
                MemoryBlockState::Device => "device",
            },
            removable: self.is_removable,
            block: if first == last { first.to_string() } else { format!("{first}-{last}") },
            node: self.node,
            zones: match self.zone {
                Some(Zone::Kernel) => "Normal",
                Some(Zone::Movable) => "Movable",
                None if self.state == MemoryBlockState::Device => "Device",
                None if self.state == MemoryBlockState::Offline => "none",
                None => "Normal/Movable",
            },
        }
    }

    fn is_continued_by(&self, next: &Row) -> bool {
        self.range.end() == next.range.start() && Row { range: self.range, ..next.clone() } == *self
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["RANGE", "SIZE", "STATE", "REMOVABLE", "BLOCK", "NODE", "ZONES"];
        let mut table = table(&columns, 1);
        // Narrow enough for a terminal of 80 columns: no leading zeroes, and one space between columns.
        table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 1)));
        for row in &self.rows {
            let (range, row) = (row.range, row.shown(self.block_size));
            let (start, end) = (range.start().phys_addr(), range.end().phys_addr());
            table.add_row([
                format!("{start:#x}-{:#x}", end - 1),
                size::short(Bytes(row.size)),
                row.state.into(),
                if row.removable { "yes" } else { "no" }.into(),
                row.block,
                row.node.to_string(),
                row.zones.into(),
            ]);
        }
        writeln!(f, "{table}\n")?;
        writeln!(f, "Memory block size:    {:>8}", size::short(self.block_size))?;
        let Totals { online, offline, device } = self.totals;
        for (kind, total) in [("online", online), ("offline", offline), ("device", device)] {
            let width = 16 - kind.len();
            writeln!(f, "Total {kind} memory:{:>width$}", size::short(total))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_equal_blocks_share_a_row_and_totals_are_correct() {
        let machine = Hosted::builder().hotplug_size(Bytes::gib(2)).build().unwrap();
        let mut hotplug = machine.boot().unwrap();
        let range = machine.hotplug_range();
        hotplug.announce(range).unwrap();
        hotplug.add(range).unwrap();
        let half = range.start().checked_add(Bytes::gib(1).frames()).unwrap();
        hotplug.online(range.split_at(half).0, OnlineType::Movable, &mut NoHooks).unwrap();
        let listing = Listing::of(&hotplug, Bytes::mib(128), false);
        let rows: Vec<_> = listing.rows.iter().map(|r| (r.state, r.is_removable, r.zone)).collect();
        let (online, offline) = (MemoryBlockState::Online, MemoryBlockState::Offline);
        // Boot memory cannot be removed, because the engine's words are in it.
        let boot = (online, false, Some(Zone::Kernel));
        assert_eq!(rows, [boot, (online, true, Some(Zone::Movable)), (offline, true, None)]);
        let totals =
            Totals { online: Bytes::mib(128 + 1024), offline: Bytes::gib(1), device: Bytes::ZERO };
        assert_eq!(listing.totals, totals);
        let text = listing.to_string();
        assert!(text.contains("32-39") && text.contains("40-47"), "{text}");
        assert_eq!(Listing::of(&hotplug, Bytes::mib(128), true).rows.len(), 1 + 16);
        hotplug.ram_to_device(range.split_at(half).1).unwrap();
        let last = Listing::of(&hotplug, Bytes::mib(128), false).rows.pop().unwrap();
        assert_eq!(
            (last.state, last.is_removable, last.zone),
            (MemoryBlockState::Device, false, None)
        );
    }
}
