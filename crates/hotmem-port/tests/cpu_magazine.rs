//! Tests that the magazines of CPUs are drained: before an allocation returns an out-of-memory error,
//! when memory is removed, and when a frame in a magazine is poisoned. The tests with interrupts
//! are in `src/cpu_magazine.rs`.

use hotmem::*;
use hotmem_port::CpuMagazine;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, SECTION, boot, plug, range};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);

/// A kernel with two CPUs, each of which has a magazine. One thread runs the code of both CPUs.
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
        // SAFETY: the tests free only frames that they have allocated from a magazine.
        unsafe { self.magazine().free(frame) }
    }
}

impl Platform for Kernel {
    fn cpu(&self) -> usize {
        self.cpu.load(Ordering::Relaxed)
    }

    /// Drains the magazine of the calling CPU only.
    fn drain_magazines(&self) -> bool {
        self.magazine().drain()
    }
}

/// Hooks that drain the magazine of each CPU, as an inter-processor interrupt would, when frames must
/// be migrated.
struct DrainAllCpus(&'static Kernel);

impl Hooks for DrainAllCpus {
    fn migrate(&mut self, _: PfnRange) -> Migration {
        let calling_cpu = self.0.cpu();
        let had_frames = [0, 1].map(|cpu| {
            self.0.run_on(cpu);
            self.0.magazine().drain()
        });
        self.0.run_on(calling_cpu);
        if had_frames == [false; 2] {
            Migration::Unmovable("all magazines are empty")
        } else {
            Migration::Moved
        }
    }
}

/// Runs `test` on an instance whose magazines allocate frames by `request`.
fn with_instance(
    request: AllocRequest,
    test: impl FnOnce(&'static Frames<Kernel>, &mut Hotplug<'static, Kernel>),
) {
    let memory = Memory::new(2 * SECTION);
    let frames: &Frames<Kernel> = Box::leak(Box::new(Frames::new(Kernel::default())));
    // SAFETY: one thread makes all calls, so one call on a magazine returns before the next begins.
    let magazine = |_| unsafe { CpuMagazine::new(frames, request) };
    assert!(frames.platform().magazines.set([0, 1].map(magazine)).is_ok());
    let mut hotplug = boot(frames, &memory, SECTION);
    test(frames, &mut hotplug);
    frames.validated().unwrap();
}

#[test]
fn an_allocation_drains_the_magazine_of_its_cpu_before_it_fails() {
    with_instance(ONE_FRAME, |frames, _| {
        let kernel = frames.platform();
        let mut owned = vec![kernel.magazine().alloc().unwrap()];
        owned
            .extend(std::iter::from_fn(|| frames.alloc_range(ONE_FRAME).ok()).map(PfnRange::start));
        assert_eq!(frames.validated().unwrap().free, 0);
        assert_eq!(kernel.magazine().alloc(), Err(AllocError::OutOfMemory));
        kernel.free(owned.swap_remove(0));
        // An allocation on CPU 1 drains the magazine of CPU 1 only, which is empty.
        kernel.run_on(1);
        assert_eq!(frames.alloc_range(ONE_FRAME), Err(AllocError::OutOfMemory));
        kernel.run_on(0);
        owned.push(frames.alloc_range(ONE_FRAME).unwrap().start());
        // SAFETY: all frames of `owned` are allocated, and nothing uses them.
        unsafe { frames.free_many(&owned) }.unwrap();
    });
}

#[test]
fn a_removal_succeeds_after_the_magazines_of_all_cpus_are_drained() {
    with_instance(ONE_FRAME.movable(), |frames, hotplug| {
        let kernel = frames.platform();
        let hotplugged = range(SECTION, SECTION);
        plug(hotplug, hotplugged);
        for cpu in [0, 1] {
            kernel.run_on(cpu);
            let page = kernel.magazine().alloc().unwrap();
            assert!(hotplugged.contains(page));
            kernel.free(page);
        }
        let mut offline = hotplug.offline(hotplugged).unwrap();
        let Progress::Pending(blocker) = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED)
        else {
            panic!("the frame in the magazine of CPU 0 does not block the offlining")
        };
        assert!(matches!(blocker.kind, BlockerKind::Unmovable(_)), "{blocker:?}");
        let done = offline.poll(hotplug, &mut DrainAllCpus(kernel), Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(hotplugged));
        hotplug.remove(hotplugged).unwrap();
    });
}

#[test]
fn a_poisoned_frame_of_a_magazine_is_quarantined() {
    with_instance(ONE_FRAME, |frames, hotplug| {
        let kernel = frames.platform();
        let page = kernel.magazine().alloc().unwrap();
        kernel.free(page);
        assert_eq!(hotplug.poison(page), Ok(Poisoned::Quarantined));
        assert_ne!(kernel.magazine().alloc(), Ok(page));
        assert!(kernel.magazine().drain());
        // A poisoned frame that is allocated stays in use, because no magazine has it.
        let page = kernel.magazine().alloc().unwrap();
        assert_eq!(hotplug.poison(page), Ok(Poisoned::InUse));
        frames.free_range(range(page.number(), 1)).unwrap();
        assert_eq!(frames.validated().unwrap().poisoned, 2);
        kernel.magazine().drain();
    });
}
