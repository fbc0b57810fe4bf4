//! Tests that the magazines of CPUs are drained: before an allocation is out of memory, when memory
//! is removed, and when one of their frames is poisoned. `src/cpu_magazine.rs` tests interrupts.

use hotmem::*;
use hotmem_port::CpuMagazine;
use hotmem_testkit::Raw as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, SECTION, boot, plug, range};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const ONE: AllocRequest = AllocRequest::frames(1);

/// A kernel with two CPUs, each of which has a magazine. One thread plays both.
#[derive(Default)]
struct Kernel {
    cpu: AtomicUsize,
    magazines: OnceLock<[CpuMagazine<'static, Kernel, 8>; 2]>,
}

impl Kernel {
    fn magazine(&self) -> &CpuMagazine<'static, Kernel, 8> {
        &self.magazines.get().unwrap()[self.cpu()]
    }

    fn run_on(&self, cpu: usize) {
        self.cpu.store(cpu, Ordering::Relaxed);
    }

    fn free(&self, frame: Pfn) {
        // SAFETY: the tests free what they have allocated.
        unsafe { self.magazine().free(frame) }
    }
}

impl Platform for Kernel {
    fn cpu(&self) -> usize {
        self.cpu.load(Ordering::Relaxed)
    }

    /// Drains the magazine of the own CPU only.
    fn drain_magazines(&self) -> bool {
        self.magazine().drain()
    }
}

/// Sends each CPU an interrupt that drains its magazine, and waits, before memory is moved.
struct Interrupts(&'static Kernel);

impl Hooks for Interrupts {
    fn migrate(&mut self, _: PfnRange) -> Migration {
        let here = self.0.cpu();
        let any = [0, 1].map(|cpu| {
            self.0.run_on(cpu);
            self.0.magazine().drain()
        });
        self.0.run_on(here);
        if any == [false; 2] { Migration::Unmovable("nothing to drain") } else { Migration::Moved }
    }
}

fn on_a_machine(
    request: AllocRequest,
    test: impl FnOnce(&'static Frames<Kernel>, &mut Hotplug<'static, Kernel>),
) {
    let memory = Memory::new(2 * SECTION);
    let frames: &Frames<Kernel> = Box::leak(Box::new(Frames::new(Kernel::default())));
    // SAFETY: one thread uses them, and calls the one of the CPU that it plays.
    let magazine = |_| unsafe { CpuMagazine::new(frames, request) };
    assert!(frames.platform().magazines.set([0, 1].map(magazine)).is_ok());
    let mut hotplug = boot(frames, &memory, SECTION);
    test(frames, &mut hotplug);
    frames.validated().unwrap();
}

#[test]
fn an_allocation_uses_the_frames_of_its_cpus_magazine_before_it_fails() {
    on_a_machine(ONE, |frames, _| {
        let kernel = frames.platform();
        let mut owned = vec![kernel.magazine().alloc().unwrap()];
        owned.extend(std::iter::from_fn(|| frames.alloc_range(ONE).ok()).map(PfnRange::start));
        assert_eq!(frames.validated().unwrap().free, 0);
        assert_eq!(kernel.magazine().alloc(), Err(AllocError::OutOfMemory));
        kernel.free(owned.swap_remove(0));
        // On the other CPU, the engine asks for that CPU's magazine only.
        kernel.run_on(1);
        assert_eq!(frames.alloc_range(ONE), Err(AllocError::OutOfMemory));
        kernel.run_on(0);
        owned.push(frames.alloc_range(ONE).unwrap().start());
        // SAFETY: they are allocated.
        unsafe { frames.free_many(&owned) }.unwrap();
    });
}

#[test]
fn a_removal_waits_for_the_magazine_of_another_cpu() {
    on_a_machine(ONE.movable(), |frames, hotplug| {
        let kernel = frames.platform();
        let hot = range(SECTION, SECTION);
        plug(hotplug, hot);
        for cpu in [0, 1] {
            kernel.run_on(cpu);
            let page = kernel.magazine().alloc().unwrap();
            assert!(hot.contains(page));
            kernel.free(page);
        }
        let mut offline = hotplug.offline(hot).unwrap();
        let Progress::Pending(blocker) = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED)
        else {
            panic!("the magazine of CPU 0 is empty")
        };
        assert!(matches!(blocker.why, Why::Unmovable(_)), "{blocker:?}");
        let done = offline.poll(hotplug, &mut Interrupts(kernel), Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(hot));
        hotplug.remove(hot).unwrap();
    });
}

#[test]
fn a_poisoned_frame_of_a_magazine_is_out_of_use() {
    on_a_machine(ONE, |frames, hotplug| {
        let kernel = frames.platform();
        let page = kernel.magazine().alloc().unwrap();
        kernel.free(page);
        assert_eq!(hotplug.poison(page), Ok(Poisoned::Out));
        assert_ne!(kernel.magazine().alloc(), Ok(page));
        assert!(kernel.magazine().drain());
        // A frame that is in use stays in use, whatever the magazine has.
        let page = kernel.magazine().alloc().unwrap();
        assert_eq!(hotplug.poison(page), Ok(Poisoned::InUse));
        frames.free_range(range(page.number(), 1)).unwrap();
        assert_eq!(frames.validated().unwrap().poisoned, 2);
        kernel.magazine().drain();
    });
}
