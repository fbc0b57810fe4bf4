//! The tests that ports share, in which the host changes the memory of a kernel.

use hotmem::Bytes;
use hotmem_lab::{
    port::{Kernel, Segments, booted_with, end, verified},
    qemu::{Balloon, Config, Error, Event, Vm},
    resident::resident,
};
use std::{
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::Duration,
};

/// Each test locks this while its machine runs, so that one machine runs at a time.
static ONE_MACHINE: Mutex<()> = Mutex::new(());

/// A port's kernel, with the shared tests as methods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestedKernel(pub(crate) Kernel);

impl TestedKernel {
    /// Resizes memory while the kernel injects `faults`, which its `faults.rs` describes. The
    /// kernel must report the reason why it cannot reach the target, allocate and free memory
    /// meanwhile, and reach the target after the last fault. Returns the reason, and the size that
    /// was plugged when the kernel reported it.
    pub(crate) fn recovers_from(self, faults: &str, [from, to]: [Bytes; 2]) -> (String, Bytes) {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let max = from.max(to);
        let files = vec![("opt/hotmem", faults.to_owned())];
        let mut vm = Vm::start(&Config { firmware_files: files, ..self.0.config(max) }).unwrap();
        vm.wait("boot", booted_with).unwrap();
        if from > Bytes::ZERO {
            vm.resize(from).unwrap();
            vm.wait("the use of the memory", verified).unwrap();
        }
        vm.request(to).unwrap();
        let (reason, plugged) = vm.wait("the reason", pending).unwrap().0;
        let freed = |event: &Event| match event {
            Event::Freed { bytes, .. } => Some(Bytes(*bytes)),
            _ => None,
        };
        assert_eq!(vm.wait("memory allocated and freed", freed).unwrap().0, Bytes::mib(16));
        let reached = |event: &Event| match event {
            Event::Resized { target, online, .. } => (*target == to.0).then_some(Bytes(*online)),
            _ => None,
        };
        let (online, _) = vm.wait("the end of the request", reached).unwrap();
        assert_is_ram_of(online, self.0.boot_memory + to);
        for size in [from, to] {
            assert_is_ram_of(vm.resize(size).unwrap().online, self.0.boot_memory + size);
            assert_eq!(vm.device_size().unwrap(), size);
        }
        end(vm).unwrap();
        println!("{}: {faults}: {plugged} plugged while \"{reason}\"", self.0.name);
        (reason, plugged)
    }

    /// Resizes memory while the machine is migrated, so that QEMU's device answers BUSY.
    pub(crate) fn recovers_from_a_busy_device(self) {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::mib(512);
        let mut vm = Vm::start(&self.0.config(memory)).unwrap();
        vm.wait("boot", booted_with).unwrap();
        for size in [memory, Bytes::ZERO] {
            let before = vm.device_size().unwrap();
            // At this bandwidth the migration takes much longer than this test.
            vm.monitor_line("migrate_set_parameter max-bandwidth 100k").unwrap();
            vm.monitor_line("migrate -d \"exec:cat > /dev/null\"").unwrap();
            vm.request(size).unwrap();
            let (reason, plugged) = vm.wait("the reason", pending).unwrap().0;
            assert_eq!((reason.as_str(), plugged), ("the device answers BUSY", before));
            vm.monitor_line("migrate_cancel").unwrap();
            assert_is_ram_of(vm.resize(size).unwrap().online, self.0.boot_memory + size);
        }
        end(vm).unwrap();
        println!("{}: the size was reached after a busy device", self.0.name);
    }

    /// Plugs memory several times, and measures each time how long it takes from the host's request to
    /// the first allocation in that memory. Returns the median. Before each request, the kernel must have nothing to do and halt its CPU.
    pub(crate) fn first_allocation(self) -> Duration {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = self.0.first_allocations(9).unwrap();
        times.sort();
        let (median, max) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{}: the first allocation in plugged memory after {median:?} ({:?} to {max:?})",
            self.0.name, times[0]
        );
        median
    }

    /// Boots without a device. If `reports_memory` is true, waits until the kernel reports its boot
    /// memory, and returns it. Otherwise returns zero.
    pub(crate) fn boot(self, reports_memory: bool) -> Result<Bytes, Error> {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vm = Vm::start(&self.0.config(Bytes::ZERO))?;
        let boot_memory =
            if reports_memory { vm.wait("boot", booted_with)?.0 } else { Bytes::ZERO };
        vm.finish()?;
        Ok(boot_memory)
    }

    /// Boots the kernel on its own machine without a device, which `change` has altered so that the
    /// kernel does not support it. Returns the reason for which the kernel refuses the machine.
    pub(crate) fn refuses(self, change: impl FnOnce(Config) -> Config) -> String {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        match Vm::start(&change(self.0.config(Bytes::ZERO))).and_then(Vm::finish) {
            Err(Error::BailOut(reason)) => reason,
            other => panic!("{}: {other:?}", self.0.name),
        }
    }

    /// Boots a kernel that measures its allocator, and returns its first `count` figures.
    pub(crate) fn measure(self, count: usize) -> Segments {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.measure_segments(count).unwrap()
    }

    /// Plugs memory, waits until the kernel has written and checked it, and unplugs it.
    pub(crate) fn plugs_and_unplugs(self, memory: Bytes) {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let cycle = self.0.plug_and_unplug(memory).unwrap();
        let (used, boot_memory) = (cycle.checked_memory, cycle.boot_memory);
        match self.0.firmware {
            None => assert_is_ram_of(boot_memory, self.0.boot_memory),
            // UEFI's firmware keeps about 10 MiB of RAM for itself.
            Some(_) => assert_is_ram_but(boot_memory, self.0.boot_memory, Bytes::mib(16)),
        }
        assert_eq!(cycle.plug.online, boot_memory + memory);
        // The kernel uses all plugged memory, and a part of boot memory.
        assert!(used >= memory && used <= boot_memory + memory, "{used} of {memory} were used");
        assert_eq!(cycle.unplug.online, boot_memory);
        assert_eq!(cycle.still_plugged, Bytes::ZERO);
        println!(
            "{}: {memory} plugged in {:?}, {used} checked, unplugged in {:?}",
            self.0.name, cycle.plug.recognised, cycle.unplug.recognised
        );
    }

    /// Plugs and unplugs memory a hundred times while all CPUs allocate, and unplugs all of it at
    /// the end.
    pub(crate) fn resizes_while_cpus_allocate(self) {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let max = Bytes::gib(1);
        let mut vm = Vm::start(&self.0.config(max)).unwrap();
        let all_cpus = |event: &Event| match event {
            Event::Boot { cpus, .. } => (*cpus == self.0.cpus).then_some(()),
            _ => None,
        };
        vm.wait("boot with all CPUs", all_cpus).unwrap();
        let mut slowest = Duration::ZERO;
        for round in 0..50 {
            for size in [max, Bytes::mib(64 * (1 + round % 7))] {
                slowest = slowest.max(vm.resize(size).unwrap().recognised);
            }
        }
        slowest = slowest.max(vm.resize(Bytes::ZERO).unwrap().recognised);
        end(vm).unwrap();
        println!(
            "{}: 101 resizes with {} busy CPUs, the slowest in {slowest:?}",
            self.0.name, self.0.cpus
        );
    }

    /// Unplugs memory in many small requests, each as soon as the kernel has carried out the previous
    /// one. So requests arrive while the kernel begins to wait for an interrupt.
    pub(crate) fn carries_out_successive_requests(self) {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let (memory, step) = (Bytes::gib(1), Bytes::mib(2));
        let mut vm = Vm::start(&self.0.config(memory)).unwrap();
        vm.wait("boot", booted_with).unwrap();
        vm.resize(memory).unwrap();
        vm.wait("the use", verified).unwrap();
        // A request for a size of one step tells the kernel to end, so the last request is for two.
        let sizes = (2..memory.0 / step.0).rev().map(|steps| Bytes(steps * step.0));
        let times = sizes.map(|size| vm.resize(size).unwrap().recognised).collect::<Vec<_>>();
        end(vm).unwrap();
        let (requests, slowest) = (times.len(), times.iter().max().unwrap());
        println!("{}: {requests} successive requests, the slowest in {slowest:?}", self.0.name);
    }

    /// Checks that the host gets the memory that the kernel has used, freed and reported.
    pub(crate) fn reports_free_memory(self) {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::gib(1);
        let committed = self.0.report_free(memory).unwrap();
        let (max, after) = (committed.largest, committed.after_report);
        assert!(committed.reported_memory >= memory && max >= memory, "{committed:?}");
        assert!(after.0 < max.0 / 4, "the host has {after} of {max} committed");
        assert_is_ram_of(committed.online_after_unplug, self.0.boot_memory);
        println!(
            "{}: committed by the host: {} bytes at most, {} after the report",
            self.0.name, max.0, after.0
        );
    }

    /// Inflates the balloon of a kernel that has used its memory, and checks that the host gets
    /// most of the balloon's memory.
    pub(crate) fn inflates_a_balloon(self) {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::gib(1);
        let config = Config { balloon: Balloon::Plain, ..self.0.config(memory) };
        let mut vm = Vm::start(&config).unwrap();
        vm.wait("boot", booted_with).unwrap();
        vm.resize(memory).unwrap();
        vm.wait("the use", verified).unwrap();
        let before = resident(vm.pid()).unwrap();
        let guest_size = self.0.boot_memory.0 / 2;
        vm.query_monitor(&format!("balloon {}", guest_size >> 20)).unwrap();
        let inflated = |event: &Event| match event {
            Event::Inflated { held, .. } => Some(Bytes(*held)),
            _ => None,
        };
        let (held, _) = vm.wait("the balloon", inflated).unwrap();
        let after = resident(vm.pid()).unwrap();
        assert!(held.0 >= self.0.boot_memory.0 - guest_size, "the balloon has {held}");
        // A part of the balloon's memory was not written before, so the host had not committed it.
        assert!(before.0 - after.0 >= held.0 / 10 * 9, "{before} and {after} with {held}");
        println!("{}: a balloon of {} bytes, {} freed", self.0.name, held.0, before.0 - after.0);
    }

    /// Requests to unplug memory that is in use. The memory stays plugged, and the kernel reports
    /// the reason. After the kernel has freed the memory, it is unplugged.
    pub(crate) fn keeps_memory_in_use(self) {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::mib(1024 + 32);
        let mut vm = Vm::start(&self.0.config(memory)).unwrap();
        vm.wait("boot", booted_with).unwrap();
        vm.resize(memory).unwrap();
        vm.wait("the use", verified).unwrap();
        vm.request(Bytes::ZERO).unwrap();
        let ((reason, still_plugged), _) = vm.wait("the blocker", pending).unwrap();
        // Some of the used memory may lie in boot memory, at most as much as there is.
        let min = Bytes(Bytes::gib(1).0.saturating_sub(self.0.boot_memory.0));
        assert!(
            still_plugged >= min && still_plugged <= memory,
            "{still_plugged} are still plugged: {reason}"
        );
        let unplugged =
            |event: &Event| matches!(event, Event::Resized { target: 0, .. }).then_some(());
        vm.wait("the end of the request", unplugged).unwrap();
        assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
        end(vm).unwrap();
        println!(
            "{}: {still_plugged} of {memory} stayed plugged while in use: {reason}",
            self.0.name
        );
    }

    /// Plugs memory, waits until the kernel has run its mixed load, and requests to unplug all
    /// memory while a part of the load's objects stays allocated. Returns the percentage of the
    /// memory that is unplugged. If `heap_frees_all` is true, all memory must be unplugged after the
    /// kernel has freed the remaining objects.
    pub(crate) fn unplugged_after_mixed_load(self, memory: Bytes, heap_frees_all: bool) -> u64 {
        let _lock = ONE_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        // ArceOS reads this file, and OSTD reads the command line.
        let files = vec![("opt/hotmem-load", "mixed".to_owned())];
        let config = self.0.config(memory).with_guest_option("load", "mixed");
        let mut vm = Vm::start(&Config { firmware_files: files, ..config }).unwrap();
        vm.wait("boot", booted_with).unwrap();
        vm.resize(memory).unwrap();
        let (used, _) = vm.wait("the use", verified).unwrap();
        // Wait until the kernel has allocated what it needs to wait for a request: the test also asks
        // whether these allocations keep memory plugged.
        sleep(Duration::from_secs(1));
        vm.request(Bytes::ZERO).unwrap();
        let ((reason, still_plugged), _) = vm.wait("the blocker", pending).unwrap();
        let percent = (memory.0 - still_plugged.0) * 100 / memory.0;
        println!(
            "{}: {used} used by a mixed load, then {percent} % of {memory} unplugged: {reason}",
            self.0.name
        );
        if heap_frees_all {
            let unplugged =
                |event: &Event| matches!(event, Event::Resized { target: 0, .. }).then_some(());
            vm.wait("the end of the request", unplugged).unwrap();
            end(vm).unwrap();
        }
        percent
    }
}

/// Returns the reason why the target cannot be reached for now, and the plugged size.
fn pending(event: &Event) -> Option<(String, Bytes)> {
    match event {
        Event::Pending { plugged, reason, .. } => Some((reason.clone(), Bytes(*plugged))),
        _ => None,
    }
}

/// Checks that `online` is the RAM of a machine with this much memory, of which the firmware and the
/// kernel's image keep less than 3 MiB: 1.1 MiB of a PC are the firmware's.
#[track_caller]
pub(crate) fn assert_is_ram_of(online: Bytes, memory: Bytes) {
    assert_is_ram_but(online, memory, Bytes::mib(3));
}

/// Checks that `online` is the RAM of a machine with this much memory, of which the firmware and the
/// kernel's image keep less than `kept`.
#[track_caller]
fn assert_is_ram_but(online: Bytes, memory: Bytes, kept: Bytes) {
    assert!(online <= memory && online + kept > memory, "{online} of {memory}");
}
