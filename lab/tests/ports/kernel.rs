//! The tests that all ports share: a host changes the memory of a kernel.

use hotmem::Bytes;
use hotmem_lab::{
    port::{Kernel, Segments, end, found_at_boot, verified},
    qemu::{Balloon, Config, Error, Event, Vm},
    resident::resident,
};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// A test holds this while its machine runs, so that only one runs at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A port's kernel, with the shared tests as methods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestedKernel(pub(crate) Kernel);

impl TestedKernel {
    /// Injects `faults`, which the kernel's `faults.rs` describes, while memory is resized. The
    /// kernel must report why it is stuck, still allocate and free, and reach the size after the
    /// last fault. Returns the reason, and the size that was plugged meanwhile.
    pub(crate) fn recovers_from(self, faults: &str, [from, to]: [Bytes; 2]) -> (String, Bytes) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let most = from.max(to);
        let files = vec![("opt/hotmem", faults.to_owned())];
        let mut vm = Vm::start(&Config { firmware_files: files, ..self.0.config(most) }).unwrap();
        vm.wait("boot", found_at_boot).unwrap();
        if from > Bytes::ZERO {
            vm.resize(from).unwrap();
            vm.wait("the use of the memory", verified).unwrap();
        }
        vm.request(to).unwrap();
        let stuck = vm.wait("the reason", pending).unwrap().0;
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
        assert_eq!(online, self.0.boot_memory + to);
        for size in [from, to] {
            assert_eq!(vm.resize(size).unwrap().online, self.0.boot_memory + size);
            assert_eq!(vm.device_size().unwrap(), size);
        }
        end(vm).unwrap();
        println!("{}: {faults}: {} plugged while \"{}\"", self.0.name, stuck.1, stuck.0);
        stuck
    }

    /// Makes QEMU's device refuse requests: it answers BUSY while the machine is migrated.
    pub(crate) fn recovers_from_a_busy_device(self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::mib(512);
        let mut vm = Vm::start(&self.0.config(memory)).unwrap();
        vm.wait("boot", found_at_boot).unwrap();
        for size in [memory, Bytes::ZERO] {
            let before = vm.device_size().unwrap();
            // At this bandwidth the migration takes far longer than this test.
            vm.monitor_line("migrate_set_parameter max-bandwidth 100k").unwrap();
            vm.monitor_line("migrate -d \"exec:cat > /dev/null\"").unwrap();
            vm.request(size).unwrap();
            let (why, plugged) = vm.wait("the reason", pending).unwrap().0;
            assert_eq!((why.as_str(), plugged), ("the device answers BUSY", before));
            vm.monitor_line("migrate_cancel").unwrap();
            assert_eq!(vm.resize(size).unwrap().online, self.0.boot_memory + size);
        }
        end(vm).unwrap();
        println!("{}: a busy device was asked again", self.0.name);
    }

    /// Measures the time from the host's request to the first allocation in the plugged memory
    /// several times, and returns the median. Between requests the CPU must halt.
    pub(crate) fn first_allocation(self) -> Duration {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = self.0.first_allocations(9).unwrap();
        times.sort();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{}: the first allocation in plugged memory after {median:?} ({:?} to {most:?})",
            self.0.name, times[0]
        );
        median
    }

    /// Boots without a device. Returns the memory that the kernel found, if it reports that.
    pub(crate) fn boot(self, says: bool) -> Result<Bytes, Error> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vm = Vm::start(&self.0.config(Bytes::ZERO))?;
        let found = if says { vm.wait("boot", found_at_boot)?.0 } else { Bytes::ZERO };
        vm.finish()?;
        Ok(found)
    }

    /// Lets a kernel measure the given number of figures of its allocator.
    pub(crate) fn measures(self, figures: usize) -> Segments {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.measure_segments(figures).unwrap()
    }

    /// Plugs memory, waits until the guest has used all of it, and unplugs it.
    pub(crate) fn grows_and_shrinks(self, memory: Bytes) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.0.plug_and_unplug(memory).unwrap();
        let (used, boot_memory) = (done.used, done.boot_memory);
        assert_eq!(boot_memory, self.0.boot_memory);
        assert_eq!(done.grown.online, boot_memory + memory);
        // The guest uses all of the plugged memory, and a part of boot memory.
        assert!(used >= memory && used <= boot_memory + memory, "{used} of {memory} were used");
        assert_eq!(done.shrunk.online, boot_memory);
        assert_eq!(done.left, Bytes::ZERO);
        println!(
            "{}: {memory} came in {:?}, {used} were checked, and left in {:?}",
            self.0.name, done.grown.recognised, done.shrunk.recognised
        );
    }

    /// Plugs and unplugs memory a hundred times while all CPUs allocate, and unplugs all of it at
    /// the end.
    pub(crate) fn changes_while_cpus_allocate(self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let most = Bytes::gib(1);
        let mut vm = Vm::start(&self.0.config(most)).unwrap();
        let all_cpus = |event: &Event| match event {
            Event::Boot { cpus, .. } => (*cpus == self.0.cpus).then_some(()),
            _ => None,
        };
        vm.wait("boot with all CPUs", all_cpus).unwrap();
        let mut slowest = Duration::ZERO;
        for round in 0..50 {
            for size in [most, Bytes::mib(64 * (1 + round % 7))] {
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

    /// Lets the guest use memory, free it and report it to the host.
    pub(crate) fn reports_free_memory(self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::gib(1);
        let held = self.0.report_free(memory).unwrap();
        let (most, after) = (held.in_use, held.free);
        assert!(held.reported >= memory && most >= memory, "{held:?}");
        assert!(after.0 < most.0 / 4, "the host holds {after} of {most}");
        assert_eq!(held.online, self.0.boot_memory);
        println!(
            "{}: held by the host: {} bytes while in use, {} when free",
            self.0.name, most.0, after.0
        );
    }

    /// Inflates the balloon of a guest that has used its memory, and checks that the host has freed
    /// as much.
    pub(crate) fn inflates_a_balloon(self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::gib(1);
        let config = Config { balloon: Balloon::Plain, ..self.0.config(memory) };
        let mut vm = Vm::start(&config).unwrap();
        vm.wait("boot", found_at_boot).unwrap();
        vm.resize(memory).unwrap();
        vm.wait("the use", verified).unwrap();
        let before = resident(vm.pid()).unwrap();
        let left = self.0.boot_memory.0 / 2;
        vm.ask_monitor(&format!("balloon {}", left >> 20)).unwrap();
        let inflated = |event: &Event| match event {
            Event::Inflated { held, .. } => Some(Bytes(*held)),
            _ => None,
        };
        let (held, _) = vm.wait("the balloon", inflated).unwrap();
        let after = resident(vm.pid()).unwrap();
        assert!(held.0 >= self.0.boot_memory.0 - left, "the balloon has {held}");
        // The guest had not touched all of it.
        assert!(before.0 - after.0 >= held.0 / 10 * 9, "{before} and {after} with {held}");
        println!("{}: a balloon of {} bytes, {} freed", self.0.name, held.0, before.0 - after.0);
    }

    /// Requests to unplug memory that is in use. It stays plugged, and the kernel reports the
    /// reason. After it is freed, it is unplugged.
    pub(crate) fn keeps_memory_in_use(self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::mib(1024 + 32);
        let mut vm = Vm::start(&self.0.config(memory)).unwrap();
        vm.wait("boot", found_at_boot).unwrap();
        vm.resize(memory).unwrap();
        vm.wait("the use", verified).unwrap();
        vm.request(Bytes::ZERO).unwrap();
        let ((why, left), _) = vm.wait("what is in the way", pending).unwrap();
        // A part of the used memory as large as boot memory may lie in boot memory.
        let least = Bytes(Bytes::gib(1).0.saturating_sub(self.0.boot_memory.0));
        assert!(left >= least && left <= memory, "{left} are left: {why}");
        let gone = |event: &Event| matches!(event, Event::Resized { target: 0, .. }).then_some(());
        vm.wait("the end of the request", gone).unwrap();
        assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
        end(vm).unwrap();
        println!("{}: {left} of {memory} stayed while in use: {why}", self.0.name);
    }

    /// Plugs memory, lets the guest run its mixed load, and requests to unplug all of it while a
    /// part of the load's pieces stays in use. Returns the part of the memory that leaves, in
    /// percent.
    pub(crate) fn leaves_after_mixed_load(self, memory: Bytes) -> u64 {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let files = vec![("opt/hotmem-load", "mixed".to_owned())];
        let mut vm = Vm::start(&Config { firmware_files: files, ..self.0.config(memory) }).unwrap();
        vm.wait("boot", found_at_boot).unwrap();
        vm.resize(memory).unwrap();
        let (used, _) = vm.wait("the use", verified).unwrap();
        vm.request(Bytes::ZERO).unwrap();
        let ((why, left), _) = vm.wait("what is in the way", pending).unwrap();
        let gone = |event: &Event| matches!(event, Event::Resized { target: 0, .. }).then_some(());
        vm.wait("the end of the request", gone).unwrap();
        end(vm).unwrap();
        let percent = (memory.0 - left.0) * 100 / memory.0;
        println!(
            "{}: {used} used by a mixed load, then {percent} % of {memory} leave: {why}",
            self.0.name
        );
        percent
    }
}

fn pending(event: &Event) -> Option<(String, Bytes)> {
    match event {
        Event::Pending { plugged, why, .. } => Some((why.clone(), Bytes(*plugged))),
        _ => None,
    }
}
