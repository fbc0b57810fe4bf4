//! Tests that two CPUs that divide the first pageblocks of a group at the same time leave the frame
//! that one of them has prepared for the bitmaps, and that is not needed, filled as free memory is.
//!
//! The other CPU is an interrupt handler on the same thread, which runs when the engine asks for the
//! number of the CPU or of its node. So each interleaving at these calls is tried, and none depends on the host.

use hotmem::{
    AllocRequest, BootMap, BootRange, Contents, Frames, NoHooks, NodeId, OnlineType, Pfn, PfnRange,
    Platform,
};
use hotmem_testkit::{Memory, PAGEBLOCK, RawRanges as _, SECTION, Validated as _, pfn, range};
use std::cell::{Cell, RefCell};

const FILL_WORD: u32 = 0x5aa5_0ff0;
const TWO_FILL_WORDS: u64 = (FILL_WORD as u64) << 32 | FILL_WORD as u64;
const BOOT_FRAMES: u64 = 8 * PAGEBLOCK;
/// The first frame of the first section after boot memory, which has several sections if they are small.
const PLUGGED_START: u64 = BOOT_FRAMES.next_multiple_of(SECTION);
/// Two pageblocks that have their bitmaps in one frame.
const PLUGGED: PfnRange =
    PfnRange::with_len(Pfn::new(PLUGGED_START).unwrap(), 2 * PAGEBLOCK).unwrap();

type Handler = Box<dyn FnOnce()>;

thread_local! {
    /// The handler of the next interrupt, and the number of calls before it.
    static INTERRUPT: RefCell<Option<(u64, Handler)>> = const { RefCell::new(None) };
    /// What the handler has allocated.
    static ALLOCATED: Cell<Option<PfnRange>> = const { Cell::new(None) };
}

/// A CPU that is interrupted once.
struct InterruptedCpu;

impl InterruptedCpu {
    /// Runs the handler if the interrupt is due.
    fn accept_interrupt() {
        let due = INTERRUPT.with_borrow_mut(|interrupt| match interrupt {
            Some((0, _)) => interrupt.take(),
            Some((calls, _)) => {
                *calls -= 1;
                None
            }
            None => None,
        });
        if let Some((_, handler)) = due {
            handler();
        }
    }
}

impl Platform for InterruptedCpu {
    fn cpu(&self) -> usize {
        InterruptedCpu::accept_interrupt();
        0
    }

    fn node(&self) -> NodeId {
        InterruptedCpu::accept_interrupt();
        NodeId::ZERO
    }
}

fn allocate_all(frames: &Frames<InterruptedCpu>) -> Vec<PfnRange> {
    core::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1).movable()).ok()).collect()
}

fn free_all(frames: &Frames<InterruptedCpu>, all: Vec<PfnRange>) {
    all.into_iter().for_each(|frame| frames.fill_and_free_range(frame).unwrap());
}

/// Divides the first pageblock, and the second at call number `call` of the platform. Returns
/// whether there was such a call.
fn is_interrupted(call: u64, boot_memory_is_full: bool) -> bool {
    let memory = Memory::new(PLUGGED.end().number());
    // The handler of the interrupt needs the instance for as long as the thread lives.
    let frames: &'static _ = Box::leak(Box::new(Frames::new(InterruptedCpu)));
    let ram = [BootRange { start: 0, len: range(0, BOOT_FRAMES).bytes() }];
    let mut hotplug =
        hotmem_testkit::start(frames, memory.direct_map(), BootMap::from(&ram)).unwrap();
    let all = allocate_all(frames);
    frames.set_contents(Contents::Filled(FILL_WORD)).unwrap();
    free_all(frames, all);
    hotplug.announce(PLUGGED).unwrap();
    hotmem_testkit::make_words(&mut hotplug, PLUGGED);
    let full = if boot_memory_is_full { allocate_all(frames) } else { vec![] };
    hotplug.add(PLUGGED).unwrap();
    hotplug.online(PLUGGED, OnlineType::Movable, &mut NoHooks).unwrap();
    let [first, second] = [0, PAGEBLOCK]
        .map(|block| AllocRequest::frames(1).movable().at(pfn(PLUGGED_START + block)));
    let handler: Handler = Box::new(move || ALLOCATED.set(frames.alloc_range(second).ok()));
    INTERRUPT.set(Some((call, handler)));
    let divided = frames.alloc_range(first).unwrap();
    let is_interrupted = INTERRUPT.take().is_none();
    let by_handler = ALLOCATED.take();
    free_all(frames, full.into_iter().chain([divided]).chain(by_handler).collect());
    let all = allocate_all(frames);
    for frame in &all {
        let is_filled = memory.words(frame.start().number()).all(|word| word == TWO_FILL_WORDS);
        assert!(is_filled, "call {call}: {frame} was free, but not filled");
    }
    free_all(frames, all);
    frames.validated().unwrap();
    is_interrupted
}

#[test]
fn a_frame_that_is_not_needed_for_bitmaps_is_filled() {
    for boot_memory_is_full in [false, true] {
        let calls = (0..).take_while(|&call| is_interrupted(call, boot_memory_is_full)).count();
        assert!(calls > 1, "the engine calls the platform more than once");
    }
}
