//! The run with persistent memory: bind, look, unbind, and again.

use super::{BindError, Bound, How, check};
use crate::kernel::clock::Clock;
use crate::kernel::descriptors::Look;
use crate::kernel::memory::FRAMES;
use crate::kernel::serial::Serial;
use crate::kernel::session::{Engine, MAX_DEVICES};
use crate::kernel::{WATCHDOG, give_up, must, online_type};
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{Announce, Bytes, NodeId, PfnRange, State};
use hotmem_guest::cmdline::{Namespace, Options};
use hotmem_guest::descriptor_map::DESCRIPTOR_BYTES;
use hotmem_guest::event::Event;
use hotmem_guest::nfit::{MAX_RANGES, PersistentRange};
use hotmem_guest::report::Report;
use hotmem_guest::watchdog::Step;

// The workload watches them by their numbers, as it does other devices.
const _: () = assert!(MAX_RANGES <= MAX_DEVICES);

/// Binds each range as `namespace` again and again.
pub(in crate::kernel) fn run(
    namespace: Namespace,
    ranges: &[PersistentRange],
    (clock, options): (&Clock, &Options),
    engine: &mut Engine,
    report: &mut Report<Serial>,
) {
    if ranges.is_empty() {
        give_up("there is no persistent memory");
    }
    for (device, persistent) in ranges.iter().enumerate() {
        WATCHDOG.enter(Step::Nvdimm);
        let region = persistent.range.align_inward(PAGEBLOCK_FRAMES as u64);
        let (addr, size) = (region.start().phys_addr(), region.bytes());
        report.event(&Event::Nvdimm { device, addr, size });
        let node = usize::try_from(persistent.domain.unwrap_or(0)).ok().and_then(NodeId::new);
        let node = node.unwrap_or_else(|| give_up("NVDIMM: there is no such node"));
        let announced = engine.hotplug.announce(Announce::range(region).on_node(node));
        let announced = must("NVDIMM", announced);

        let mut free = not_the_kernels();
        let how = How::wanted(namespace, options);
        let mut turns = Turns { device, region, how, clock, options, report };
        for turn in 0..=options.rebinds {
            let all = turn == 0 || turn == options.rebinds;
            if namespace == Namespace::SystemRam {
                turns.take_as_ram(engine, all);
                if turn == 0 {
                    // Whoever used it keeps the tables of what it has.
                    free = not_the_kernels();
                }
            } else {
                turns.take(engine, turn == 0, all);
            }
        }
        report.ok(format_args!("{size} of persistent memory bound {} times", options.rebinds + 1));
        let left = not_the_kernels();
        if left == free {
            report.ok("all memory that described it is free again");
        } else {
            report.not_ok(format_args!("{left} frames are left, not {free} as before"));
        }
        must("NVDIMM", engine.hotplug.withdraw(announced));
    }
}

/// Frames that are free, or that the engine took for itself meanwhile.
fn not_the_kernels() -> u64 {
    let metadata = FRAMES.metadata().map(|metadata| metadata.frames.frames());
    FRAMES.counts().free + metadata.sum::<u64>()
}

/// What the turns of a device have in common.
struct Turns<'a> {
    device: usize,
    region: PfnRange,
    how: How,
    clock: &'a Clock,
    options: &'a Options,
    report: &'a mut Report<Serial>,
}

impl Turns<'_> {
    /// Binds, looks and unbinds. In the `first` turn there is no data to be found yet; `all` has
    /// everything looked at.
    fn take(&mut self, engine: &mut Engine, first: bool, all: bool) {
        let bound = self.bind(engine);
        let seed = self.options.seed;
        if first {
            check::write_data(&bound, seed);
        }
        let data = must("NVDIMM", check::data(&bound, seed));
        self.look(&bound, engine, data, all);
        self.unbind(bound, engine);
    }

    /// Binds, looks, uses the memory as RAM, has it back, looks and unbinds.
    fn take_as_ram(&mut self, engine: &mut Engine, all: bool) {
        let bound = self.bind(engine);
        self.look(&bound, engine, 0, all);

        let (kind, started) = (online_type(self.options.online), self.clock.now_us());
        let ram = must("NVDIMM", bound.into_ram(engine, kind));
        self.reconfigured("system_ram", started);
        if self.options.descriptors {
            let look = if all { Look::All } else { Look::Sample };
            must("descriptors", engine.check_descriptors(look));
        }

        let (device, region) = (self.device, self.region);
        let workload = &mut engine.hooks.workload;
        workload.watch(device, region);
        workload.memory_came();
        let started = self.clock.now_us();
        let mut bytes = Bytes::ZERO;
        while let Some(more) = workload.touch_some() {
            bytes = bytes + more;
        }
        let us = self.clock.now_us().saturating_sub(started);
        self.report.event(&Event::Touched { bytes, us });

        let started = self.clock.now_us();
        let bound = must("NVDIMM", ram.into_device(engine));
        must("NVDIMM", bound.describe());
        self.reconfigured("device", started);
        let workload = &mut engine.hooks.workload;
        workload.verify_and_free_all();
        workload.forget(device);
        let bytes = workload.take_verified();
        self.report.event(&Event::Verified { bytes });
        self.look(&bound, engine, 0, all);
        self.unbind(bound, engine);
    }

    fn bind(&mut self, engine: &mut Engine) -> Bound {
        WATCHDOG.enter(Step::Nvdimm);
        let before = not_the_kernels();
        match self.try_to_bind(engine) {
            Ok((bound, event)) => {
                self.report.event(&event);
                bound
            }
            Err(error) => {
                let (_, state) = engine.hotplug.state_at(self.region.start(), self.region.end());
                if state != State::Absent || not_the_kernels() != before {
                    give_up(format_args!("NVDIMM: half bound: {error}"));
                }
                give_up(format_args!("NVDIMM: {error}"))
            }
        }
    }

    fn try_to_bind(&self, engine: &mut Engine) -> Result<(Bound, Event<'static>), BindError> {
        let started = self.clock.now_us();
        let bound = Bound::bind(engine, self.region, self.how)?;
        let mapped = self.clock.now_us();
        let written = bound.describe()?;
        let described = self.clock.now_us();
        let (frames, map) = (bound.data.frames(), bound.map_bytes());
        let event = Event::Bound {
            device: self.device,
            frames,
            map,
            saved: Bytes((frames * DESCRIPTOR_BYTES).saturating_sub(map.0)),
            written,
            describe_us: described.saturating_sub(mapped),
            us: described.saturating_sub(started),
        };
        Ok((bound, event))
    }

    fn unbind(&mut self, bound: Bound, engine: &mut Engine) {
        let started = self.clock.now_us();
        must("NVDIMM", bound.unbind(engine));
        let us = self.clock.now_us().saturating_sub(started);
        self.report.event(&Event::Unbound { device: self.device, us });
    }

    /// Looks at descriptors; `data` has been looked at before.
    fn look(&mut self, bound: &Bound, engine: &mut Engine, data: u64, all: bool) {
        let descriptors = must("NVDIMM", check::descriptors(bound, all));
        let space = &mut engine.hooks.space;
        if all && must("NVDIMM", check::backing(bound, space)) != bound.map_bytes() {
            give_up("NVDIMM: another amount of memory than was wanted holds its descriptors");
        }
        self.report.event(&Event::Checked { device: self.device, descriptors, data });
    }

    fn reconfigured(&mut self, mode: &'static str, started: u64) {
        let us = self.clock.now_us().saturating_sub(started);
        let counts = FRAMES.counts();
        let (online, free) = (Bytes(counts.online * FRAME_SIZE), Bytes(counts.free * FRAME_SIZE));
        self.report.event(&Event::Reconfigured { device: self.device, mode, online, free, us });
    }
}

impl Bound {
    /// Memory that is to hold its descriptors.
    fn map_bytes(&self) -> Bytes {
        let own = self.layout.frames_needed(self.data);
        Bytes((own + u64::from(self.layout.shares_tails())) * FRAME_SIZE)
    }
}
