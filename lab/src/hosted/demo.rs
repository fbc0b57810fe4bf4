//! `hotmem hosted`: the demo on a machine in this process, for hosts without QEMU.

use super::{Hosted, HostedError, Threads};
use crate::{
    lsmem::Listing,
    size,
    table::{table, time},
};
use anyhow::{Context, Result, bail};
use hotmem::{
    AllocRequest, Allocation, Budget, Bytes, OnlineType, PfnRange, Progress, Shrink,
    geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES},
};
use std::time::Instant;

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
    /// The size to use, of which each frame is written and checked
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1G")]
    touch: Bytes,
    /// The size to keep in use at virtual addresses, whose pages are migrated when memory is
    /// unplugged
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16M")]
    keep: Bytes,
}

impl Args {
    fn check(&self) -> Result<()> {
        if self.plug == Bytes::ZERO || !self.plug.0.is_multiple_of(PAGEBLOCK.0) {
            bail!("--plug {}: plugs whole pageblocks of {PAGEBLOCK}", self.plug);
        }
        if self.touch > self.plug {
            bail!("--touch {}: more than the {} that are plugged", self.touch, self.plug);
        }
        Ok(())
    }
}

/// Plugs memory into a machine in this process, uses some of it, and unplugs all of it.
///
/// # Errors
/// The first error.
pub fn run(args: &Args) -> Result<()> {
    args.check()?;
    say!("a hosted machine: the engine in this process; no guest, no device, a simulated MMU")?;
    let machine = build(args)?;
    let mut hotplug = machine.boot()?;
    let mut hooks = machine.hooks();
    let mut steps = Vec::new();
    let room = machine.room();

    let start = Instant::now();
    hotplug.announce(room)?;
    hotplug.add(room)?;
    hotplug.online(room, OnlineType::Movable, &mut hooks)?;
    steps.push(("plug", args.plug, start.elapsed()));
    crate::out::write(format_args!("{}", Listing::of(&hotplug, Bytes::mib(128), false)))?;

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
        space.add(address, value);
    }
    steps.push(("map, write", args.keep, start.elapsed()));

    let start = Instant::now();
    let mut shrink = Shrink::new(room);
    loop {
        match shrink.poll(&mut hotplug, &mut hooks, Budget::UNLIMITED) {
            Progress::Ready(removal) => {
                hotplug.commit_remove(removal).expect("it is this machine's")
            }
            Progress::Working => {}
            Progress::Idle => break,
            Progress::Pending(blocker) => bail!("{} frames stay: {blocker}", shrink.left()),
        }
    }
    steps.push(("unplug", args.plug, start.elapsed()));
    for (address, value) in pages() {
        if space.read(address) != Some(value) || !space.take_dirty(address) {
            bail!("the page at {address:#x} is not as it was before it was moved");
        }
    }
    // SAFETY: no other thread uses this machine.
    let counts = unsafe { machine.frames().validate() }.context("the engine contradicts itself")?;
    if counts.present != machine.boot_memory().frames() {
        bail!("{} frames are present at the end", counts.present);
    }

    let mut table = table(&["step", "memory", "time"], 1);
    for (step, memory, took) in steps {
        table.add_row([step.into(), size::short(memory), time(took)]);
    }
    say!("{table}")?;
    say!("{} of it moved while in use, by the simulated MMU", size::short(space.moved()))?;
    Ok(())
}

fn build(args: &Args) -> Result<Hosted, HostedError> {
    Hosted::builder().boot_memory(args.boot_memory).room(args.plug).build()
}

/// Allocates `bytes` in pieces of many lengths and writes each frame's number and its complement.
fn allocate_and_write(machine: &Hosted, bytes: Bytes) -> Result<Vec<Allocation<'_, Threads>>> {
    let mut used = Vec::new();
    let mut left = bytes.frames();
    for length in [1, 512, 3, 64, 5000].into_iter().cycle() {
        if left == 0 {
            return Ok(used);
        }
        let range = machine.frames().alloc(AllocRequest::frames(length.min(left)).movable())?;
        left -= range.range().frames();
        for_each_word(machine, range.range(), |at, value| {
            // SAFETY: the frame is ours until it is freed, and `at` lies in it.
            unsafe { at.write_volatile(value) };
            true
        });
        used.push(range);
    }
    Ok(used)
}

/// Checks every frame and frees it.
fn check_and_free(machine: &Hosted, used: Vec<Allocation<'_, Threads>>) -> Result<()> {
    for range in used {
        let whole = for_each_word(machine, range.range(), |at, value| {
            // SAFETY: as in `allocate_and_write`.
            unsafe { at.read_volatile() == value }
        });
        if !whole {
            bail!("{} does not hold what was written", range.range());
        }
        drop(range);
    }
    Ok(())
}

/// Calls `f` with the first and the last word of each frame and their expected values, until it
/// returns `false`.
fn for_each_word(
    machine: &Hosted,
    range: PfnRange,
    mut f: impl FnMut(*mut u64, u64) -> bool,
) -> bool {
    range.chunks(1).all(|frame| {
        let number = frame.start().number();
        machine.address_of(frame.start()).is_some_and(|address| {
            let last = usize::try_from(FRAME_SIZE).unwrap_or(0) - size_of::<u64>();
            let word = |at: usize| address.as_ptr().wrapping_add(at).cast::<u64>();
            f(word(0), number) && f(word(last), !number)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::NoHooks;

    #[test]
    fn the_demo_runs_and_unplugs_all() {
        run(&Args {
            boot_memory: Bytes::mib(64),
            plug: Bytes::gib(4),
            touch: Bytes::mib(48),
            keep: Bytes::mib(8),
        })
        .unwrap();
    }

    #[test]
    fn a_changed_word_is_reported() {
        let machine = Hosted::builder().room(Bytes::mib(128)).build().unwrap();
        let mut hotplug = machine.boot().unwrap();
        hotplug.announce(machine.room()).unwrap();
        hotplug.add(machine.room()).unwrap();
        hotplug.online(machine.room(), OnlineType::Movable, &mut NoHooks).unwrap();
        let used = allocate_and_write(&machine, Bytes::mib(4)).unwrap();
        let word = machine.address_of(used[1].start()).unwrap().as_ptr().cast::<u64>();
        // SAFETY: `used` owns the frame.
        unsafe { word.write_volatile(0xbad) };
        assert!(check_and_free(&machine, used).is_err());
    }
}
