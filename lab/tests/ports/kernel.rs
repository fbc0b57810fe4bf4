//! What each port is tried with: a kernel whose memory the host changes.

use hotmem::Bytes;
use hotmem_lab::qemu::{Balloon, Config, Error, Event, Vm};
use hotmem_lab::resident::{Watch, cpu_time, resident};
use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::Duration,
};

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(300);

/// Held while a machine runs, so that there is one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A kernel that `cargo xtask ports` builds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    /// Its image, below `target/ports`.
    pub(crate) image: &'static str,
    pub(crate) boot_memory: Bytes,
    pub(crate) cpus: u32,
}

impl Kernel {
    fn config(&self, device_memory: Bytes) -> Config {
        let ports = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ports");
        let config = Config::new(ports.join(self.image), device_memory).touching(device_memory);
        let (boot_memory, cpus) = (self.boot_memory, self.cpus);
        Config { boot_memory, cpus, patience: PATIENCE, ..config }
    }

    /// Makes this go wrong, as the kernel's `faults.rs` has it, when memory is resized from one size
    /// to another. The kernel says why it is stuck, allocates and frees, and gets there once that is
    /// over. Returns the reason, and how much was plugged meanwhile.
    pub(crate) fn recovers_from(&self, faults: &str, [from, to]: [Bytes; 2]) -> (String, Bytes) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let most = from.max(to);
        let files = vec![("opt/hotmem", faults.to_owned())];
        let mut vm = Vm::start(&Config { firmware_files: files, ..self.config(most) }).unwrap();
        vm.wait("boot", boot_memory).unwrap();
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
        assert_eq!(online, self.boot_memory + to);
        for size in [from, to] {
            assert_eq!(vm.resize(size).unwrap().online, self.boot_memory + size);
            assert_eq!(vm.device_size().unwrap(), size);
        }
        end(vm);
        println!("{}: {faults}: {} plugged while \"{}\"", self.name, stuck.1, stuck.0);
        stuck
    }

    /// Has QEMU's device refuse: it answers BUSY while the machine is migrated.
    pub(crate) fn recovers_from_a_busy_device(&self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::mib(512);
        let mut vm = Vm::start(&self.config(memory)).unwrap();
        vm.wait("boot", boot_memory).unwrap();
        for size in [memory, Bytes::ZERO] {
            let before = vm.device_size().unwrap();
            // It takes far longer than this test.
            vm.monitor_line("migrate_set_parameter max-bandwidth 100k").unwrap();
            vm.monitor_line("migrate -d \"exec:cat > /dev/null\"").unwrap();
            vm.request(size).unwrap();
            let (why, plugged) = vm.wait("the reason", pending).unwrap().0;
            assert_eq!((why.as_str(), plugged), ("the device answers BUSY", before));
            vm.monitor_line("migrate_cancel").unwrap();
            assert_eq!(vm.resize(size).unwrap().online, self.boot_memory + size);
        }
        end(vm);
        println!("{}: a busy device was asked again", self.name);
    }

    /// Measures the time from the host's request to the first allocation in memory that it has
    /// plugged, several times. Returns the median. While nothing is asked, the CPU halts.
    pub(crate) fn first_allocation(&self) -> Duration {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::gib(1);
        let mut vm = Vm::start(&self.config(memory)).unwrap();
        vm.wait("boot", boot_memory).unwrap();
        let mut times: Vec<_> = (0..9)
            .map(|_| {
                assert_idle(vm.pid());
                let asked = vm.started().elapsed();
                vm.request(memory).unwrap();
                let touched = |event: &Event| matches!(event, Event::Touched { .. }).then_some(());
                let ((), at) = vm.wait("the first allocation", touched).unwrap();
                vm.wait("the use of all", verified).unwrap();
                vm.resize(Bytes::ZERO).unwrap();
                at - asked
            })
            .collect();
        end(vm);
        times.sort();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{}: the first allocation in plugged memory after {median:?} ({:?} to {most:?})",
            self.name, times[0]
        );
        median
    }

    /// Boots without a device. Returns how much memory the kernel has found, if it says that.
    pub(crate) fn boot(&self, says: bool) -> Result<Bytes, Error> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vm = Vm::start(&self.config(Bytes::ZERO))?;
        let found = if says { vm.wait("boot", boot_memory)?.0 } else { Bytes::ZERO };
        vm.finish()?;
        Ok(found)
    }

    /// Boots a kernel that measures, on a machine where a nanosecond is an instruction. Returns how
    /// much memory is free after boot, and so many figures.
    pub(crate) fn measure(&self, figures: usize) -> (Bytes, Vec<(String, u64)>) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vm = Vm::start(&Config { icount: true, ..self.config(Bytes::ZERO) }).unwrap();
        let (free, _) = vm.wait("boot", boot_memory).unwrap();
        let measured = |event: &Event| match event {
            Event::Measured { what, value } => Some((what.clone(), *value)),
            _ => None,
        };
        let figures = (0..figures).map(|_| vm.wait("a figure", measured).unwrap().0).collect();
        vm.finish().unwrap();
        (free, figures)
    }

    /// Plugs memory, of which the guest uses all, and unplugs it.
    pub(crate) fn grows_and_shrinks(&self, memory: Bytes) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vm = Vm::start(&self.config(memory)).unwrap();
        let (boot_memory, _) = vm.wait("boot", boot_memory).unwrap();
        assert_eq!(boot_memory, self.boot_memory);

        let grown = vm.resize(memory).unwrap();
        assert_eq!(grown.online, boot_memory + memory);
        let (used, _) = vm.wait("the use of the memory", verified).unwrap();
        // The guest uses all of the plugged memory, and what it can spare of boot memory.
        assert!(used >= memory && used <= boot_memory + memory, "{used} of {memory} were used");

        let shrunk = vm.resize(Bytes::ZERO).unwrap();
        assert_eq!(shrunk.online, boot_memory);
        assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
        end(vm);
        println!(
            "{}: {memory} came in {:?}, {used} were checked, and left in {:?}",
            self.name, grown.recognised, shrunk.recognised
        );
    }

    /// Plugs and unplugs memory a hundred times while all CPUs allocate, and unplugs all of it at
    /// the end.
    pub(crate) fn changes_while_cpus_allocate(&self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let most = Bytes::gib(1);
        let mut vm = Vm::start(&self.config(most)).unwrap();
        let all_cpus = |event: &Event| match event {
            Event::Boot { cpus, .. } => (*cpus == self.cpus).then_some(()),
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
        end(vm);
        println!(
            "{}: 101 resizes with {} busy CPUs, the slowest in {slowest:?}",
            self.name, self.cpus
        );
    }

    /// Has the guest use memory, report it free, and the host take it back.
    pub(crate) fn reports_free_memory(&self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::gib(1);
        let config = Config { balloon: Balloon::Reports, ..self.config(memory) };
        let mut vm = Vm::start(&config).unwrap();
        let watch = Watch::start(vm.pid(), Duration::from_millis(5));
        vm.wait("boot", boot_memory).unwrap();
        vm.resize(memory).unwrap();
        vm.wait("the use", verified).unwrap();
        let reported = |event: &Event| match event {
            Event::Reported { bytes, .. } => Some(Bytes(*bytes)),
            _ => None,
        };
        let (bytes, _) = vm.wait("reports of what was used", reported).unwrap();
        let after = resident(vm.pid()).unwrap();
        let most = watch.finish().iter().map(|sample| sample.resident).max().unwrap();
        assert!(bytes >= memory && most >= memory, "{bytes} reported, {most} held at most");
        assert!(after.0 < most.0 / 4, "the host holds {after} of {most}");
        // What was reported can be used again, and leaves.
        assert_eq!(vm.resize(Bytes::ZERO).unwrap().online, self.boot_memory);
        end(vm);
        println!(
            "{}: held by the host: {} bytes while in use, {} when free",
            self.name, most.0, after.0
        );
    }

    /// Inflates the balloon of a guest that has used its memory: the host has those bytes back.
    pub(crate) fn inflates_a_balloon(&self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::gib(1);
        let config = Config { balloon: Balloon::Plain, ..self.config(memory) };
        let mut vm = Vm::start(&config).unwrap();
        vm.wait("boot", boot_memory).unwrap();
        vm.resize(memory).unwrap();
        vm.wait("the use", verified).unwrap();
        let before = resident(vm.pid()).unwrap();
        let left = self.boot_memory.0 / 2;
        vm.ask_monitor(&format!("balloon {}", left >> 20)).unwrap();
        let inflated = |event: &Event| match event {
            Event::Inflated { held, .. } => Some(Bytes(*held)),
            _ => None,
        };
        let (held, _) = vm.wait("the balloon", inflated).unwrap();
        let after = resident(vm.pid()).unwrap();
        assert!(held.0 >= self.boot_memory.0 - left, "the balloon has {held}");
        // The guest had left some of it untouched.
        assert!(before.0 - after.0 >= held.0 / 10 * 9, "{before} and {after} with {held}");
        println!("{}: a balloon of {} bytes, {} freed", self.name, held.0, before.0 - after.0);
    }

    /// Asks for memory back that is in use: it does not leave, and the kernel says so. Freed, it
    /// leaves.
    pub(crate) fn keeps_memory_in_use(&self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = Bytes::mib(1024 + 32);
        let mut vm = Vm::start(&self.config(memory)).unwrap();
        vm.wait("boot", boot_memory).unwrap();
        vm.resize(memory).unwrap();
        vm.wait("the use", verified).unwrap();
        vm.request(Bytes::ZERO).unwrap();
        let ((why, left), _) = vm.wait("what is in the way", pending).unwrap();
        // The guest may use boot memory for as much of it, and leave 32 MiB unused.
        let least = Bytes(Bytes::gib(1).0.saturating_sub(self.boot_memory.0));
        assert!(left >= least && left <= memory, "{left} are left: {why}");
        let gone = |event: &Event| matches!(event, Event::Resized { target: 0, .. }).then_some(());
        vm.wait("the end of the request", gone).unwrap();
        assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
        end(vm);
        println!("{}: {left} of {memory} stayed while in use: {why}", self.name);
    }
}

fn boot_memory(event: &Event) -> Option<Bytes> {
    match event {
        Event::Boot { boot_memory, .. } => Some(Bytes(*boot_memory)),
        _ => None,
    }
}

fn verified(event: &Event) -> Option<Bytes> {
    match event {
        Event::Verified { bytes } => Some(Bytes(*bytes)),
        _ => None,
    }
}

fn pending(event: &Event) -> Option<(String, Bytes)> {
    match event {
        Event::Pending { plugged, why, .. } => Some((why.clone(), Bytes(*plugged))),
        _ => None,
    }
}

/// Fails unless QEMU uses less than a tenth of a CPU for a while, as it does when its guest halts.
fn assert_idle(qemu: u32) {
    let period = Duration::from_millis(500);
    let is_idle = || {
        let before = cpu_time(qemu).unwrap();
        sleep(period);
        cpu_time(qemu).unwrap() - before < period / 10
    };
    assert!((0..20).any(|_| is_idle()), "the guest does not halt");
}

/// Tells the guest that there are no more requests, and waits until it ends and reports success.
fn end(mut vm: Vm) {
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}
