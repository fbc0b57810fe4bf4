//! The run with persistent memory: bind, look, unbind, and again.

use super::{BindError, Bound, How, check};
use crate::kernel::clock::Clock;
use crate::kernel::hooks::KernelHooks;
use crate::kernel::memory::{AddressSpace, FRAMES};
use crate::kernel::serial::Serial;
use crate::kernel::{WATCHDOG, give_up, must};
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{Bytes, PfnRange};
use hotmem_guest::cmdline::{Namespace, Options};
use hotmem_guest::event::Event;
use hotmem_guest::nfit::PersistentRange;
use hotmem_guest::report::Report;
use hotmem_guest::watchdog::Step;

/// Binds each range as `namespace` again and again.
pub(in crate::kernel) fn run(
    namespace: Namespace,
    ranges: &[PersistentRange],
    (clock, options): (&Clock, &Options),
    hooks: &mut KernelHooks,
    report: &mut Report<Serial>,
) {
    if ranges.is_empty() {
        give_up("there is no persistent memory");
    }
    for (device, persistent) in ranges.iter().enumerate() {
        let region = persistent.range.align_inward(PAGEBLOCK_FRAMES as u64);
        let (addr, size) = (region.start().phys_addr(), region.bytes());
        report.event(&Event::Nvdimm { device, addr, size });
        let how = How::wanted(namespace, options);
        let free = FRAMES.counts().free;
        let mut turns = Turns { device, region, how, clock, seed: options.seed, report };
        for turn in 0..=options.rebinds {
            let ends = turn == 0 || turn == options.rebinds;
            turns.take(&mut hooks.space, turn == 0, ends);
        }
        report.ok(format_args!("{size} of persistent memory bound {} times", options.rebinds + 1));
        let left = FRAMES.counts().free;
        if left == free {
            report.ok("all memory that described it is free again");
        } else {
            report.not_ok(format_args!("{left} frames are free, not {free} as before"));
        }
    }
}

/// What the turns of a device have in common.
struct Turns<'a> {
    device: usize,
    region: PfnRange,
    how: How,
    clock: &'a Clock,
    seed: u64,
    report: &'a mut Report<Serial>,
}

impl Turns<'_> {
    /// Binds, looks and unbinds. In the `first` turn there is no data to be found yet; `all` has
    /// everything looked at.
    fn take(&mut self, space: &mut AddressSpace, first: bool, all: bool) {
        WATCHDOG.enter(Step::Nvdimm);
        let device = self.device;
        let (bound, event) = must("NVDIMM", self.bind(space));
        self.report.event(&event);

        let seed = self.seed;
        if first {
            check::write_data(&bound, seed);
        }
        let descriptors = must("NVDIMM", check::descriptors(&bound, all));
        let data = must("NVDIMM", check::data(&bound, seed));
        if all && must("NVDIMM", check::backing(&bound, space)) != bound.map_bytes() {
            give_up("NVDIMM: another amount of memory than was wanted holds its descriptors");
        }
        self.report.event(&Event::Checked { device, descriptors, data });

        let started = self.clock.now_us();
        bound.unbind(space);
        let us = self.clock.now_us().saturating_sub(started);
        self.report.event(&Event::Unbound { device, us });
    }

    fn bind(&self, space: &mut AddressSpace) -> Result<(Bound, Event<'static>), BindError> {
        let started = self.clock.now_us();
        let bound = Bound::bind(space, self.region, self.how)?;
        let mapped = self.clock.now_us();
        let written = bound.describe()?;
        let described = self.clock.now_us();
        let (frames, map) = (bound.data.frames(), bound.map_bytes());
        let unshared = Bytes(frames * size_of::<hotmem_guest::descriptor::Page>() as u64);
        let event = Event::Bound {
            device: self.device,
            frames,
            map,
            saved: Bytes(unshared.0.saturating_sub(map.0)),
            written,
            describe_us: described.saturating_sub(mapped),
            us: described.saturating_sub(started),
        };
        Ok((bound, event))
    }
}

impl Bound {
    /// Memory that is to hold its descriptors.
    fn map_bytes(&self) -> Bytes {
        let own = self.layout.frames_needed(self.data);
        Bytes((own + u64::from(self.layout.shares_tails())) * FRAME_SIZE)
    }
}
