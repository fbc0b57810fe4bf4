//! Binds all persistent memory: once, for commands, or repeatedly, with checks.

use super::dax::{DaxMemories, DaxMemory};
use super::descriptors::CheckedDescriptors;
use super::device_memory::{BindError, BindParameters, BoundMemory, check};
use super::engine::{Engine, online_type};
use super::fatal::{give_up, must};
use super::memory::FRAMES;
use super::progress::WATCHDOG;
use crate::arch::Clock;
use crate::arch::Console;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{Announce, Bytes, NodeId, PfnRange, RegionId, State};
use hotmem_guest::cmdline::{Namespace, Options};
use hotmem_guest::event::Event;
use hotmem_guest::layout::DESCRIPTOR_BYTES;
use hotmem_guest::limits::MAX_DEVICES;
use hotmem_guest::nfit::{MAX_RANGES, PersistentRange};
use hotmem_guest::report::Report;
use hotmem_guest::watchdog::Step;

// The workload has a region for each device's number, and persistent memory uses the same numbers.
const _: () = assert!(MAX_RANGES <= MAX_DEVICES);

/// Binds, checks and unbinds all `ranges` as `namespace`, repeatedly.
pub(super) fn run(
    namespace: Namespace,
    ranges: &[PersistentRange],
    (clock, options): (&Clock, &Options),
    engine: &mut Engine,
    report: &mut Report<Console>,
) {
    check_usable(ranges);
    WATCHDOG.enter(Step::Nvdimm);
    let mut devices = [None; MAX_RANGES];
    for ((number, persistent), device) in ranges.iter().enumerate().zip(&mut devices) {
        *device = Some(Device::announce(number, persistent, engine, report));
    }
    let devices = || devices.iter().flatten();
    let parameters = BindParameters::wanted(namespace, options);
    let as_ram = namespace == Namespace::SystemRam;

    let mut free_before = free_and_engine_frames();
    let mut rounds = Rounds { parameters, clock, options, report };
    for round in 0..=options.rebinds {
        let checks_all = round == 0 || round == options.rebinds;
        let mut bound_memory = [const { None }; MAX_RANGES];
        for (device, entry) in devices().zip(&mut bound_memory) {
            let bound = rounds.bind(device, engine);
            if round == 0 && !as_ram {
                check::write_data(&bound, options.seed);
            }
            *entry = Some(bound);
        }
        for (device, mut bound) in devices().zip(bound_memory.iter_mut().filter_map(Option::take)) {
            if as_ram {
                rounds.check(device, &bound, engine, 0, checks_all);
                bound = rounds.use_as_ram(device, bound, engine, checks_all);
            }
            let data = if as_ram { 0 } else { must("NVDIMM", check::data(&bound, options.seed)) };
            rounds.check(device, &bound, engine, data, checks_all);
            rounds.unbind(device, bound, engine);
        }
        if round == 0 && as_ram {
            // In the first round the workload has allocated nodes for its set of frames, and keeps
            // them, so count again.
            free_before = free_and_engine_frames();
        }
    }
    for device in devices() {
        let (size, times) = (device.region.bytes(), options.rebinds + 1);
        report.ok(format_args!("{size} of persistent memory bound {times} times"));
    }
    let free_after = free_and_engine_frames();
    if free_after == free_before {
        report.ok("all memory that described it is free again");
    } else {
        report.not_ok(format_args!("{free_after} frames are free, not {free_before} as before"));
    }
    for device in devices() {
        must("NVDIMM", engine.hotplug.withdraw(device.region_id));
    }
}

/// Binds all `ranges` as device memory, which commands may change. The numbers begin with `first`.
pub(super) fn bind(
    ranges: &[PersistentRange],
    first: usize,
    options: &Options,
    (engine, dax): (&mut Engine, &mut DaxMemories),
    report: &mut Report<Console>,
) {
    check_usable(ranges);
    let parameters = BindParameters::wanted(Namespace::DevDax, options);
    for (number, persistent) in (first..).zip(ranges) {
        let (region, node) = find(number, persistent, report);
        let bound = DaxMemory::bind(region, node, parameters, options.seed, engine);
        must("NVDIMM", bound.and_then(|memory| dax.add(number, memory)));
    }
}

/// Ends the run if there is no persistent memory, or if some of it must not be written.
fn check_usable(ranges: &[PersistentRange]) {
    if ranges.is_empty() {
        give_up("there is no persistent memory");
    }
    if let Some(unarmed) = ranges.iter().find(|range| range.is_unarmed) {
        give_up(format_args!("NVDIMM: {} is not armed, so it must not be written", unarmed.range));
    }
}

/// Reports persistent memory. Returns the part of it that can be bound, and its node.
fn find(
    number: usize,
    persistent: &PersistentRange,
    report: &mut Report<Console>,
) -> (PfnRange, NodeId) {
    let region = persistent.range.align_inward(PAGEBLOCK_FRAMES as u64);
    let (addr, size) = (region.start().phys_addr(), region.bytes());
    report.event(&Event::Nvdimm { device: number, addr, size });
    (region, NodeId(persistent.domain.unwrap_or(0)))
}

/// Returns the number of frames that are free or used by the engine itself.
fn free_and_engine_frames() -> u64 {
    let metadata = FRAMES.metadata().map(|metadata| metadata.frames.frames());
    FRAMES.counts().free + metadata.sum::<u64>()
}

/// A range of persistent memory.
#[derive(Clone, Copy)]
struct Device {
    number: usize,
    region: PfnRange,
    region_id: RegionId,
}

impl Device {
    #[inline(never)]
    fn announce(
        number: usize,
        persistent: &PersistentRange,
        engine: &mut Engine,
        report: &mut Report<Console>,
    ) -> Device {
        let (region, node) = find(number, persistent, report);
        let announced = engine.hotplug.announce(Announce { node, ..region.into() });
        Device { number, region, region_id: must("NVDIMM", announced) }
    }
}

/// The state that all rounds share.
struct Rounds<'a> {
    parameters: BindParameters,
    clock: &'a Clock,
    options: &'a Options,
    report: &'a mut Report<Console>,
}

impl Rounds<'_> {
    /// Uses the memory as RAM, and binds it again.
    #[inline(never)]
    fn use_as_ram(
        &mut self,
        device: &Device,
        bound: BoundMemory,
        engine: &mut Engine,
        checks_all: bool,
    ) -> BoundMemory {
        let (kind, start_us) = (online_type(self.options.online), self.clock.now_us());
        let ram = must("NVDIMM", bound.into_ram(engine, kind));
        self.reconfigured(device, "system_ram", start_us);
        if self.options.descriptors {
            let extent =
                if checks_all { CheckedDescriptors::All } else { CheckedDescriptors::Sample };
            must("descriptors", engine.check_descriptors(extent));
        }

        let workload = &mut engine.hooks.workload;
        workload.add_region(device.number, device.region);
        workload.memory_was_plugged();
        let start_us = self.clock.now_us();
        let mut bytes = Bytes::ZERO;
        while let Some(more) = workload.touch_some() {
            bytes = bytes + more;
        }
        let us = self.clock.now_us().saturating_sub(start_us);
        self.report.event(&Event::Touched { bytes, us });

        let start_us = self.clock.now_us();
        let bound = must("NVDIMM", ram.into_device(engine));
        must("NVDIMM", bound.describe());
        self.reconfigured(device, "device", start_us);
        let workload = &mut engine.hooks.workload;
        workload.verify_and_free_all();
        workload.remove_region(device.number);
        let bytes = workload.take_verified();
        self.report.event(&Event::Verified { bytes });
        bound
    }

    #[inline(never)]
    fn bind(&mut self, device: &Device, engine: &mut Engine) -> BoundMemory {
        WATCHDOG.enter(Step::Nvdimm);
        let before = free_and_engine_frames();
        match self.try_to_bind(device, engine) {
            Ok((bound, event)) => {
                self.report.event(&event);
                bound
            }
            Err(error) => {
                let Device { region, .. } = device;
                let (_, state) = engine.hotplug.state_at(region.start(), region.end());
                if state != State::Absent || free_and_engine_frames() != before {
                    give_up(format_args!("NVDIMM: partly bound: {error}"));
                }
                give_up(format_args!("NVDIMM: {error}"))
            }
        }
    }

    fn try_to_bind(
        &self,
        device: &Device,
        engine: &mut Engine,
    ) -> Result<(BoundMemory, Event<'static>), BindError> {
        let start_us = self.clock.now_us();
        let bound = BoundMemory::bind(engine, device.region, self.parameters)?;
        let mapped_us = self.clock.now_us();
        let written = match bound.describe() {
            Ok(written) => written,
            Err(error) => {
                must("NVDIMM", bound.unbind(engine));
                return Err(error);
            }
        };
        let described_us = self.clock.now_us();
        let (frames, map) = (bound.data.frames(), bound.map_bytes());
        let event = Event::Bound {
            device: device.number,
            frames,
            map,
            saved: Bytes((frames * DESCRIPTOR_BYTES).saturating_sub(map.0)),
            written,
            describe_us: described_us.saturating_sub(mapped_us),
            us: described_us.saturating_sub(start_us),
        };
        Ok((bound, event))
    }

    fn unbind(&mut self, device: &Device, bound: BoundMemory, engine: &mut Engine) {
        let start_us = self.clock.now_us();
        must("NVDIMM", bound.unbind(engine));
        let us = self.clock.now_us().saturating_sub(start_us);
        self.report.event(&Event::Unbound { device: device.number, us });
    }

    /// Checks descriptors, and reports them together with `data`, the number of frames of data that
    /// were checked.
    #[inline(never)]
    fn check(
        &mut self,
        device: &Device,
        bound: &BoundMemory,
        engine: &mut Engine,
        data: u64,
        checks_all: bool,
    ) {
        let descriptors = must("NVDIMM", check::descriptors(bound, checks_all));
        let space = engine.space();
        if checks_all && must("NVDIMM", check::backing(bound, space)) != bound.map_bytes() {
            give_up("NVDIMM: the descriptors take another amount of memory than expected");
        }
        let device = device.number;
        self.report.event(&Event::Checked { device, descriptors, data });
    }

    fn reconfigured(&mut self, device: &Device, mode: &'static str, start_us: u64) {
        let us = self.clock.now_us().saturating_sub(start_us);
        let counts = FRAMES.counts();
        let (online, free) = (Bytes(counts.online * FRAME_SIZE), Bytes(counts.free * FRAME_SIZE));
        let device = device.number;
        self.report.event(&Event::Reconfigured { device, mode, online, free, us });
    }
}
