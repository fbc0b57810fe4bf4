//! The run: follow the devices' targets, as the command line says, and report.

mod devices;
mod scan;
mod work;

use super::acpi::EcamArea;
use super::acpi_hotplug::AcpiHotplug;
use super::attached::Attached;
use super::balloon::{Balloon, BalloonMemory};
use super::churn;
use super::clock::Clock;
use super::descriptors::Look;
use super::device::is_driven;
use super::edu::Edu;
use super::entropy::Entropy;
use super::faults::Bursts;
use super::heap::{self, HeapUse};
use super::hooks::{KernelHooks, KernelMapping};
use super::lapic::ApicId;
use super::memory::{AddressSpace, FRAMES};
use super::next_kernel::NextKernel;
use super::objects::Objects;
use super::pci::{Buses, MAX_PORTS};
use super::pinned::Pinned;
use super::serial::Serial;
use super::smp::{self, ThisCpu};
use super::{WATCHDOG, give_up, must, trap, writers};
use core::fmt::Display;
use core::time::Duration;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{Bytes, Hotplug, NodeId, Pfn, PfnRange, Zone};
use hotmem_guest::cmdline::{ExitWhen, Options, Release, Touch, WorkAt};
use hotmem_guest::event::Event;
use hotmem_guest::report::{Report, Verdict};
use hotmem_guest::virtio_mmio;
use hotmem_guest::watchdog::Step;
use hotmem_virtio::balloon;
use hotmem_virtio::mem::{Pending, Progress, Status};
use virtio_drivers::transport::pci::bus::DeviceFunctionInfo;
use work::Touching;
use x86_64::instructions::interrupts;

/// Most devices at a time. Each interrupts by the message of its number.
pub(crate) const MAX_DEVICES: usize = 16;
/// A wait that is too short for the timer.
const SOON: Duration = Duration::from_millis(1);

/// A run with devices.
pub(crate) struct Session<'a> {
    report: Report<Serial>,
    clock: &'a Clock,
    options: &'a Options,
    buses: Buses,
    acpi_hotplug: Option<AcpiHotplug>,
    devices: [Option<Attached>; MAX_DEVICES],
    entropy: Option<Entropy>,
    pinned: Option<Pinned>,
    /// What the balloon holds, when it has a new size and [`Session::pinned`] is to be looked at.
    inflated: Option<Bytes>,
    balloon: Option<Balloon>,
    /// To whom messages go; `None` if nobody can take them.
    cpu: Option<ApicId>,
    engine: Engine,
    objects: Objects,
    /// Memory at boot, while the work in it is yet to begin.
    work: Option<PfnRange>,
    touching: Option<Touching>,
    /// What other CPUs allocate and free, and measure.
    bursts: Option<Bursts>,
    /// What was touched is being checked, from here up, to be freed then.
    verifying: Option<Pfn>,
    touched: Bytes,
    resizes: u32,
    /// Memory that held the engine's words when it was last reported.
    reserved: Bytes,
    /// What is started at the end.
    next: Option<NextKernel>,
}

/// Where devices are.
pub(crate) struct Places<'a> {
    /// On PCI, reached in this way.
    pub(crate) ecam: Option<EcamArea>,
    /// Where ACPI tells that they come and go.
    pub(crate) events: Option<u16>,
    /// Those that it names.
    pub(crate) cmdline: &'a [u8],
    /// To whom they can send messages.
    pub(crate) cpu: Option<ApicId>,
    /// Where memory is at boot.
    pub(crate) boot_memory: PfnRange,
    /// The kernel that is started at the end of a run without a fault.
    pub(crate) next: Option<NextKernel>,
}

/// The engine, with what this kernel brings to it.
pub(crate) struct Engine {
    pub(crate) hotplug: Hotplug<'static, ThisCpu, KernelMapping>,
    pub(crate) hooks: KernelHooks,
}

impl Engine {
    /// Returns the direct map and the descriptors.
    pub(crate) fn mapping(&mut self) -> &mut KernelMapping {
        // SAFETY: there is no other to put in its place, and what the engine has mapped is left
        // alone.
        unsafe { self.hotplug.mapping_mut() }
    }

    /// Returns the kernel's address space.
    pub(crate) fn space(&mut self) -> &mut AddressSpace {
        &mut self.mapping().space
    }
}

impl<'a> Session<'a> {
    /// Finds the devices and starts them.
    pub(crate) fn open(
        report: Report<Serial>,
        clock: &'a Clock,
        options: &'a Options,
        places: Places<'_>,
        mut engine: Engine,
    ) -> Self {
        WATCHDOG.enter(Step::Discovery);
        let mut buses = must("PCI", Buses::open(places.ecam, engine.space()));
        let is_wanted = |info: &DeviceFunctionInfo| {
            is_driven(info) || (options.dma != Bytes::ZERO && Edu::is_at(info))
        };
        let found = must("PCI", buses.find(engine.space(), is_wanted));
        let mut session = Session {
            report,
            clock,
            options,
            acpi_hotplug: AcpiHotplug::find(places.events, &buses),
            buses,
            devices: [const { None }; MAX_DEVICES],
            entropy: None,
            pinned: None,
            inflated: None,
            balloon: None,
            cpu: places.cpu,
            engine,
            objects: Objects::new(options),
            work: (options.work != Bytes::ZERO).then_some(places.boot_memory),
            touching: None,
            bursts: options.faults.map(Bursts::new),
            verifying: None,
            touched: Bytes::ZERO,
            resizes: 0,
            reserved: FRAMES.metadata_reserved(),
            next: places.next,
        };
        for (function, port) in found.iter() {
            session.attach_pci(function, port);
        }
        for device in virtio_mmio::devices(places.cmdline) {
            session.attach_mmio(must("command line", device));
        }
        let others = session.entropy.is_some() || session.balloon.is_some();
        if session.devices[0].is_none() && !others && !session.buses.has_ports() {
            give_up("there is no virtio-mem device");
        }
        if options.dma != Bytes::ZERO && session.pinned.is_none() {
            give_up("there is no edu device");
        }
        if options.work_at == WorkAt::Boot {
            session.begin_work();
        }
        session
    }

    /// Follows the devices until the run is over.
    pub(crate) fn run(mut self) -> Verdict {
        loop {
            WATCHDOG.enter(Step::Resize);
            self.answer_interrupts();
            let mut again = false;
            for number in 0..MAX_DEVICES {
                again |= self.step_device(number) == Some(Progress::Again);
                self.note_status(number);
            }
            let balloon = self.step_balloon();
            again |= balloon == balloon::Progress::Again;
            self.step_bursts();
            if again || self.touch_some() || self.verify_some() {
                continue;
            }
            self.take_entropy();
            self.look_at_pinned();
            if self.is_over() {
                return self.finish();
            }
            WATCHDOG.enter(Step::Idle);
            if !self.is_soon(balloon) {
                trap::wait();
            }
            WATCHDOG.enter(Step::Discovery);
            (0..MAX_PORTS).for_each(|port| self.watch_port(port));
            self.watch_acpi();
            self.relieve();
        }
    }

    fn devices(&mut self) -> impl Iterator<Item = &mut Attached> {
        self.devices.iter_mut().flatten()
    }

    /// Reports what the entropy source has answered, and lets it go.
    fn take_entropy(&mut self) {
        let Some(mut entropy) = self.entropy.take() else { return };
        match must("virtio-rng", entropy.answer(self.clock.now_us())) {
            None => self.entropy = Some(entropy),
            Some(event) => {
                entropy.stop();
                self.report.event(&event);
                self.report.ok("entropy");
            }
        }
    }

    /// Looks at pinned memory after the balloon has changed its size, and pins more of it when the
    /// balloon is empty.
    fn look_at_pinned(&mut self) {
        let (Some(pinned), Some(held)) = (&mut self.pinned, self.inflated) else { return };
        let hotplug = &mut self.engine.hotplug;
        let looked = pinned.check(self.clock).and_then(|()| {
            if held == Bytes::ZERO {
                pinned.pin(hotplug)?;
            }
            pinned.event()
        });
        match looked {
            Err(error) if error.passes() => {}
            answer => {
                self.report.event(&must("pinned memory", answer));
                self.inflated = None;
            }
        }
    }

    /// Returns one step of a driver, with the device as it is now; `None` if there is no such
    /// device.
    fn step_device(&mut self, number: usize) -> Option<Progress> {
        let own = self.devices[number].as_mut()?;
        let now_us = self.clock.now_us();
        let (plugged, requests) = (own.driver().plugged(), own.driver().statistics().requests);
        let Engine { hotplug, hooks } = &mut self.engine;
        let now = Duration::from_micros(now_us);
        let mut memory = must("virtio-mem", own.memory.with(hotplug, hooks));
        let progress = own.device.poll(now, 1, &mut memory);
        drop(memory);
        own.aim(now_us, plugged, requests);
        own.ask_zone(plugged, &mut self.engine);
        if let Progress::Failed(failure) = progress {
            give_up(format_args!("virtio-mem: device {number}: {failure}"));
        }
        Some(progress)
    }

    /// Returns some steps of the balloon's driver, and what there is to say then.
    fn step_balloon(&mut self) -> balloon::Progress {
        let (Some(balloon), Some(memory)) = (&mut self.balloon, &mut self.engine.hooks.balloon)
        else {
            return balloon::Progress::Idle;
        };
        let now = Duration::from_micros(self.clock.now_us());
        let progress = match balloon.step(now, memory) {
            Err(failure) if failure.leaves_nothing_behind() => {
                self.report.event(&Event::BalloonLost { why: &failure });
                (self.balloon, self.engine.hooks.balloon) = (None, None);
                return balloon::Progress::Idle;
            }
            progress => must("virtio-balloon", progress),
        };
        if let Some(event) = balloon.news(progress == balloon::Progress::Idle) {
            self.report.event(&event);
            if let Event::Inflated { held, .. } = event {
                self.inflated = Some(held);
            }
            let most_is_hinted =
                self.work.is_some_and(|boot| memory.hinted_frames() > boot.frames() / 2);
            let begins = match event {
                Event::Inflated { held, .. } if held != Bytes::ZERO => Some(WorkAt::Inflated),
                Event::Reported { .. } if most_is_hinted => Some(WorkAt::Hinted),
                _ => None,
            };
            if begins == Some(self.options.work_at) {
                self.begin_work();
            }
        }
        progress
    }

    /// Returns whether the balloon is to be looked at again before it is worth while to halt.
    fn is_soon(&self, balloon: balloon::Progress) -> bool {
        let now = Duration::from_micros(self.clock.now_us());
        matches!(balloon, balloon::Progress::WaitUntil(at) if at < now + SOON)
    }

    /// Has other CPUs go on with their bursts, and reports what they measured.
    fn step_bursts(&mut self) {
        let Some(bursts) = &mut self.bursts else { return };
        let reporter = self.engine.hooks.balloon.as_mut().and_then(BalloonMemory::reporter);
        let statistics = reporter.map(|reporter| reporter.statistics()).unwrap_or_default();
        if let Some(event) = bursts.step(self.clock.now_us(), statistics) {
            self.report.event(&event);
        }
    }

    /// Reports a target that was reached, or that cannot be reached for now.
    fn note_status(&mut self, number: usize) {
        let Some(own) = &mut self.devices[number] else { return };
        match own.driver().status() {
            Status::Reached if !own.target.reached => self.reached(number),
            Status::Pending(why) if own.target.pending != Some(why) => {
                own.target.pending = Some(why);
                let blocker = own.memory.blocker();
                let why: &dyn Display = match &blocker {
                    Some(blocker) if matches!(why, Pending::Memory(_)) => blocker,
                    _ => &why,
                };
                let (target, plugged) = (own.target.size, own.driver().plugged());
                let node = own.node();
                self.report.event(&Event::Pending { device: number, node, target, plugged, why });
            }
            _ => {}
        }
    }

    fn reached(&mut self, number: usize) {
        let Some(own) = &mut self.devices[number] else { return };
        own.target.reached = true;
        let (before, plugged, node) = (own.target.plugged, own.driver().plugged(), own.node());
        let counts = FRAMES.counts();
        self.report.event(&Event::Resized {
            device: number,
            node,
            node_online: node_online(&self.engine.hotplug, node),
            target: own.target.size,
            plugged,
            online: Bytes(counts.online * FRAME_SIZE),
            free: Bytes(counts.free * FRAME_SIZE),
            requests: own.driver().statistics().requests.wrapping_sub(own.target.requests),
            us: self.clock.now_us().saturating_sub(own.target.since_us),
            interrupted: own.target.interrupted,
            zone: own.zone.as_mut().and_then(|zone| zone.report(&self.engine.hotplug)),
        });
        self.resizes += 1;
        self.report_written_and_verified();
        if self.options.descriptors {
            WATCHDOG.enter(Step::Verify);
            must("descriptors", self.engine.check_descriptors(Look::Sample));
        }
        if plugged >= before {
            self.report.ok(format_args!("plug {}", plugged - before));
        } else {
            self.report.ok(format_args!("unplug {}", before - plugged));
        }
        if plugged > before && self.options.touch != Touch::UpTo(Bytes::ZERO) {
            self.engine.hooks.workload.memory_came();
            self.touching = Some(Touching::default());
        }
        if self.options.writers != Bytes::ZERO {
            WATCHDOG.enter(Step::Verify);
            if plugged > before {
                writers::grow(self.options.writers);
            }
            self.report.event(&writers::harvest());
        }
        if self.objects.are_wanted() {
            WATCHDOG.enter(Step::Heap);
            if plugged > before {
                self.objects.make();
            }
            self.report_heap();
        }
    }

    /// If memory cannot leave, gives the kernel's own objects up, a part of them at a time.
    fn relieve(&mut self) {
        let may = self.objects.are_wanted() && self.options.release != Release::Never;
        if may && self.devices().any(Attached::is_stuck_again) {
            WATCHDOG.enter(Step::Heap);
            self.objects.relieve();
            self.report_heap();
        }
    }

    fn report_heap(&mut self) {
        self.objects.verify();
        let HeapUse { mapped, moved } = heap::usage();
        self.report.event(&Event::Heap { objects: self.objects.len(), mapped, moved });
    }

    fn is_over(&mut self) -> bool {
        if let Some(bursts) = &self.bursts {
            return bursts.are_over();
        }
        let settled = self.balloon.as_ref().is_none_or(Balloon::is_settled);
        let (mut reached, mut total) = (self.entropy.is_none() && settled, Bytes::ZERO);
        for own in self.devices() {
            reached &= own.target.reached;
            total = total + own.target.size;
        }
        match self.options.exit {
            ExitWhen::Boot | ExitWhen::Nvdimm => true,
            ExitWhen::Resizes(count) => self.resizes >= count,
            ExitWhen::Size(size) => reached && total == size,
            ExitWhen::Never => false,
        }
    }

    fn finish(mut self) -> Verdict {
        WATCHDOG.enter(Step::Verify);
        let cpus = smp::others();
        if self.options.writers != Bytes::ZERO {
            let writes = writers::stop();
            self.report.ok(format_args!("{writes} writes by {cpus} more CPUs, none lost"));
        }
        if self.options.churn {
            let taken = churn::stop();
            self.report.ok(format_args!(
                "frames taken {taken} times by {cpus} more CPUs, all found as written"
            ));
        }
        if self.objects.are_wanted() {
            self.report_heap();
            self.report.ok(format_args!("{} objects on the heap, all as made", self.objects.len()));
        }
        if let Some(pinned) = self.pinned.take() {
            if pinned.unpin(&mut self.engine.hotplug) {
                self.report.ok("memory pinned for a device");
            } else {
                self.report.not_ok("memory pinned for a device: a pin is gone");
            }
        }
        self.engine.hooks.workload.verify_and_free_all();
        self.report_written_and_verified();
        if self.options.descriptors {
            let looked = must("descriptors", self.engine.check_descriptors(Look::All));
            self.report.ok(format_args!("{looked} descriptors of RAM, all as written"));
        }
        if self.touched != Bytes::ZERO {
            self.report.ok(format_args!("touched {}, all found as written", self.touched));
        }
        // SAFETY: the other CPUs have stopped what they did with frames.
        match unsafe { FRAMES.validate() } {
            Ok(_) => self.report.ok("validate"),
            Err(fault) => self.report.not_ok(format_args!("validate: {fault}")),
        }
        self.scan();
        match self.next.take() {
            Some(next) if self.report.passes() => self.hand_over(next),
            _ => self.report.finish(),
        }
    }

    /// Resets the devices, which keep what they have plugged, and starts the next kernel.
    fn hand_over(mut self, next: NextKernel) -> ! {
        let plugged = self.devices().fold(Bytes::ZERO, |sum, own| sum + own.driver().plugged());
        self.report.event(&Event::HandOver { plugged });
        self.devices.iter_mut().filter_map(Option::take).for_each(Attached::stop);
        (self.entropy, self.balloon) = (None, None);
        interrupts::disable();
        give_up(format_args!("next kernel: {}", next.start(self.engine.space())))
    }

    fn report_written_and_verified(&mut self) {
        let bytes = self.engine.hooks.workload.take_verified();
        if bytes != Bytes::ZERO {
            self.report.event(&Event::Verified { bytes });
        }
        let reserved = FRAMES.metadata_reserved();
        let announced = reserved - core::mem::replace(&mut self.reserved, reserved);
        let written = core::mem::take(&mut self.engine.mapping().written) + announced;
        if written != Bytes::ZERO {
            self.report.event(&Event::Metadata { written });
        }
    }
}

/// Returns what is online of a node's memory.
fn node_online(hotplug: &Hotplug<'static, ThisCpu, KernelMapping>, node: u16) -> Bytes {
    let frames = |node| {
        let zones = Zone::ALL.map(|zone| hotplug.zone(node, zone).online);
        hotplug.low_zone(node).online + zones.iter().sum::<u64>()
    };
    Bytes(frames(NodeId::new(node.into())) * FRAME_SIZE)
}
