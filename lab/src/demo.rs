//! `hotmem hosted`, which plugs and unplugs memory of a simulated machine in this process.

use crate::{
    hosted::{Hosted, HostedError, ThreadCpus},
    lsmem::{JsonListing, Listing},
    out, size,
    table::{table, time},
};
use anyhow::{Context, Result, bail};
use hotmem::{
    AllocRequest, Allocation, Budget, Bytes, OnlineType, PfnRange, Progress, Shrink,
    geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES},
};
use serde::Serialize;
use std::time::{Duration, Instant};

const PAGEBLOCK: Bytes = Bytes(PAGEBLOCK_FRAMES as u64 * FRAME_SIZE);

/// Arguments of `hotmem hosted`.
#[derive(clap::Args)]
pub struct Args {
    /// The machine's boot memory
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "128M")]
    boot_memory: Bytes,
    /// The size to plug
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "64G")]
    plug: Bytes,
    /// The amount of memory to allocate; each of its frames is written and checked
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1G")]
    touch: Bytes,
    /// The size to map at virtual addresses. These pages stay mapped and are migrated when memory
    /// is unplugged
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16M")]
    keep: Bytes,
    /// Print JSON (docs/command.md)
    #[arg(long)]
    json: bool,
}

impl Args {
    fn check(&self) -> Result<()> {
        if self.plug == Bytes::ZERO || !self.plug.0.is_multiple_of(PAGEBLOCK.0) {
            bail!("--plug {}: the size must be whole pageblocks of {PAGEBLOCK}", self.plug);
        }
        if self.touch > self.plug {
            bail!("--touch {}: this is more than the {} that are plugged", self.touch, self.plug);
        }
        Ok(())
    }
}

/// Plugs memory into a simulated machine in this process, allocates, writes and checks some of it,
/// and unplugs all of it.
///
/// # Errors
/// The first error.
pub fn run(args: &Args) -> Result<()> {
    args.check()?;
    if !args.json {
        say!("the engine runs in this process, with a simulated MMU and without a guest")?;
    }
    let machine = build(args)?;
    let mut hotplug = machine.boot()?;
    let mut hooks = machine.hooks();
    let mut steps = Vec::new();
    let range = machine.hotplug_range();

    let start = Instant::now();
    hotplug.announce(range)?;
    hotplug.add(range)?;
    hotplug.online(range, OnlineType::Movable, &mut hooks)?;
    steps.push(("plug", args.plug, start.elapsed()));
    let listing = Listing::of(&hotplug, Bytes::mib(128), false);
    if !args.json {
        out::write(format_args!("{listing}"))?;
    }

    let start = Instant::now();
    let used = allocate_and_write(&machine, args.touch)?;
    steps.push(("touch", args.touch, start.elapsed()));

    let start = Instant::now();
    check_and_free(&machine, used)?;
    steps.push(("check, free", args.touch, start.elapsed()));

    let start = Instant::now();
    let space = machine.address_space();
    let pages = || (0..args.keep.frames()).map(|page| (page * FRAME_SIZE, page + 1));
    for (address, value) in pages() {
        space.map(address)?;
        space.add_to_word(address, value);
    }
    steps.push(("map, write", args.keep, start.elapsed()));

    let start = Instant::now();
    let mut shrink = Shrink::new(range);
    let mut remaining = range.bytes();
    loop {
        match shrink.poll(&mut hotplug, &mut hooks, Budget::UNLIMITED) {
            Progress::Ready(removal) => {
                remaining = remaining - removal.range().bytes();
                hotplug.commit_remove(removal);
            }
            Progress::Working => {}
            Progress::Idle => break,
            Progress::Pending(blocker) => {
                bail!("{remaining} cannot be removed: {blocker}")
            }
        }
    }
    steps.push(("unplug", args.plug, start.elapsed()));
    for (address, value) in pages() {
        if space.read(address) != Some(value) || !space.take_dirty(address) {
            bail!("the migration of the page at {address:#x} changed the page or its dirty bit");
        }
    }
    // SAFETY: no other thread uses this machine.
    let counts =
        unsafe { machine.frames().validate() }.context("the engine's metadata are inconsistent")?;
    if counts.present != machine.boot_memory().frames() {
        bail!("{} frames are present at the end", counts.present);
    }

    if args.json {
        let migrated = space.migrated().0;
        let steps = steps.iter().map(JsonStep::from).collect();
        return out::write_json(&JsonOutcome { plugged: listing.as_json(), steps, migrated });
    }
    let mut table = table(&["step", "memory", "time"], 1);
    for (step, memory, duration) in steps {
        table.add_row([step.into(), size::short(memory), time(duration)]);
    }
    say!("{table}")?;
    say!("{} of mapped pages were migrated by the simulated MMU", size::short(space.migrated()))?;
    Ok(())
}

/// What the command did, for JSON. Sizes are in bytes.
#[derive(Serialize)]
struct JsonOutcome {
    /// The memory while it was plugged.
    plugged: JsonListing,
    steps: Vec<JsonStep>,
    migrated: u64,
}

/// A step, for JSON.
#[derive(Serialize)]
struct JsonStep {
    step: &'static str,
    size: u64,
    seconds: f64,
}

impl From<&(&'static str, Bytes, Duration)> for JsonStep {
    fn from(&(step, size, time): &(&'static str, Bytes, Duration)) -> JsonStep {
        JsonStep { step, size: size.0, seconds: time.as_secs_f64() }
    }
}

fn build(args: &Args) -> Result<Hosted, HostedError> {
    Hosted::builder().boot_memory(args.boot_memory).hotplug_size(args.plug).build()
}

/// Allocates `bytes` in ranges of different lengths. Writes the number of each frame to its first
/// word, and the complement of the number to its last word.
fn allocate_and_write(machine: &Hosted, bytes: Bytes) -> Result<Vec<Allocation<'_, ThreadCpus>>> {
    let mut used = Vec::new();
    let mut remaining = bytes.frames();
    for len in [1, 512, 3, 64, 5000].into_iter().cycle() {
        if remaining == 0 {
            return Ok(used);
        }
        let allocation =
            machine.frames().alloc(AllocRequest::frames(len.min(remaining)).movable())?;
        remaining -= allocation.range().frames();
        for_each_word(machine, allocation.range(), |word, value| {
            // SAFETY: `allocation` owns the frame that contains `word`.
            unsafe { word.write_volatile(value) };
            true
        });
        used.push(allocation);
    }
    Ok(used)
}

/// Checks the words of every frame, and frees the frames.
fn check_and_free(machine: &Hosted, used: Vec<Allocation<'_, ThreadCpus>>) -> Result<()> {
    for allocation in used {
        let is_intact = for_each_word(machine, allocation.range(), |word, value| {
            // SAFETY: as in `allocate_and_write`.
            unsafe { word.read_volatile() == value }
        });
        if !is_intact {
            bail!("a word of {} has changed since it was written", allocation.range());
        }
    }
    Ok(())
}

/// Calls `f` with the first and the last word of each frame and their expected values, until `f`
/// returns `false`. Returns whether no call returned `false`.
fn for_each_word(
    machine: &Hosted,
    range: PfnRange,
    mut f: impl FnMut(*mut u64, u64) -> bool,
) -> bool {
    range.chunks(1).all(|frame| {
        let number = frame.start().number();
        machine.address_of(frame.start()).is_some_and(|address| {
            let last = usize::try_from(FRAME_SIZE).unwrap_or(0) - size_of::<u64>();
            let word = |offset: usize| address.as_ptr().wrapping_add(offset).cast::<u64>();
            f(word(0), number) && f(word(last), !number)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::NoHooks;

    #[test]
    fn the_demo_unplugs_all_memory() {
        run(&Args {
            boot_memory: Bytes::mib(64),
            plug: Bytes::gib(4),
            touch: Bytes::mib(48),
            keep: Bytes::mib(8),
            json: false,
        })
        .unwrap();
    }

    #[test]
    fn a_changed_word_is_an_error() {
        let machine = Hosted::builder().hotplug_size(Bytes::mib(128)).build().unwrap();
        let mut hotplug = machine.boot().unwrap();
        let range = machine.hotplug_range();
        hotplug.announce(range).unwrap();
        hotplug.add(range).unwrap();
        hotplug.online(range, OnlineType::Movable, &mut NoHooks).unwrap();
        let used = allocate_and_write(&machine, Bytes::mib(4)).unwrap();
        let word = machine.address_of(used[1].range().start()).unwrap().as_ptr().cast::<u64>();
        // SAFETY: `used` owns the frame.
        unsafe { word.write_volatile(0xbad) };
        assert!(check_and_free(&machine, used).is_err());
    }
}
