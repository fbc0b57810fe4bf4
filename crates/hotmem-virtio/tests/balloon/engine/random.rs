//! Tests random sequences of events.

use super::*;
use proptest::{collection::vec, prelude::*};

#[derive(Clone, Debug)]
enum Event {
    Allocate(u64),
    Free(usize),
    Target(u32),
    HintCommand(u32),
    /// The kernel needs this number of frames of the balloon.
    Need(u64),
    /// The kernel wants to migrate the frame with this number.
    Migrate(u64),
    /// The device stops answering on the queue with this index.
    SilenceQueue(usize),
    /// The device answers on all queues.
    AnswerAgain,
    Steps(u32),
    /// The driver runs for this number of milliseconds.
    Run(u64),
    /// The kernel pins memory: the first frame, and the number of frames.
    Pin(u64, u64),
    /// The kernel unpins all memory.
    Unpin,
    /// The host initialises this number of bytes of the next reports, at most.
    Initialise(u32),
    /// The host initialises frames of the next inflate requests: the bits of each byte of the
    /// bitmap, and the number of bytes, at most.
    InitialiseInflated(u8, u32),
    Reset,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => prop_oneof![Just(1), 2..64u64, Just(PAGEBLOCK_FRAMES), 600..9000u64].prop_map(Event::Allocate),
        4 => any::<usize>().prop_map(Event::Free),
        1 => (0..60_000u32).prop_map(Event::Target),
        1 => (0..4u32).prop_map(Event::HintCommand),
        1 => (0..5000u64).prop_map(Event::Need),
        2 => (0..SIZE / 4096).prop_map(Event::Migrate),
        1 => (0..5usize).prop_map(Event::SilenceQueue),
        1 => Just(Event::AnswerAgain),
        4 => (1..40u32).prop_map(Event::Steps),
        2 => (0..700u64).prop_map(Event::Run),
        2 => (0..SIZE / 4096, prop_oneof![1..4u64, 500..40_000u64])
            .prop_map(|(first, len)| Event::Pin(first, len)),
        1 => Just(Event::Unpin),
        1 => prop_oneof![Just(0), any::<u32>(), 0..100_000_000u32].prop_map(Event::Initialise),
        1 => (prop_oneof![Just(u8::MAX), any::<u8>()], prop_oneof![Just(u32::MAX), 0..40u32])
            .prop_map(|(bits, bytes)| Event::InitialiseInflated(bits, bytes)),
        1 => Just(Event::Reset),
    ]
}

proptest! {
    #![proptest_config(crate::case_count::cases(10))]

    #[test]
    fn no_frame_has_two_owners(history in vec(event(), 1..80), eager: bool) {
        let machine = Machine::new();
        let mut hotplug = machine.boot();
        let settings = if eager { ReporterSettings::EAGER } else { settings_that_keep_none_free() };
        let mut guest = Guest::new(&machine, FEATURES, settings);
        for event in history {
            match event {
                Event::Allocate(frames) => guest.allocate(frames),
                Event::Free(index) => guest.free(index),
                Event::Target(frames) => guest.device.config.num_pages = frames,
                Event::HintCommand(command) => guest.device.request_hints(command),
                Event::Need(frames) => guest.memory.need(frames),
                Event::Migrate(pfn) => {
                    let used = PfnRange::with_len(Pfn::new(pfn).unwrap(), 1).unwrap();
                    let _ = guest.memory.migrate(used);
                }
                Event::SilenceQueue(queue) => guest.device.silent_queues.push(Queue::ALL[queue]),
                Event::AnswerAgain => guest.device.silent_queues.clear(),
                Event::Steps(n) => {
                    for _ in 0..n {
                        guest.answered_queue = guest.answered_queue.or_else(|| guest.device.answer());
                        guest.step();
                    }
                }
                Event::Run(ms) => {
                    guest.device.silent_queues.clear();
                    guest.run(Duration::from_millis(ms));
                }
                Event::Pin(first, len) => {
                    guest.pin(&mut hotplug, range(first, len.min(SIZE / 4096 - first)));
                }
                Event::Unpin => guest.unpin_all(&mut hotplug),
                Event::Initialise(bytes) => guest.initialised_bytes = bytes,
                Event::InitialiseInflated(bits, bytes) => {
                    (guest.initialised_bits, guest.bitmap_bytes) = (bits, bytes);
                }
                Event::Reset => guest.reset(),
            }
        }
        guest.unpin_all(&mut hotplug);
        guest.check();
        guest.device.silent_queues.clear();
        guest.device.config.num_pages = 0;
        guest.device.request_hints(DONE);
        guest.memory.need(0);
        guest.run(Duration::from_secs(60));
        guest.check();
        prop_assert_eq!(guest.driver.status(), Status::Settled);
        prop_assert_eq!(guest.memory.inflated_frames(), 0);
        while !guest.tagged_allocations.is_empty() {
            guest.free(0);
        }
        guest.run(Duration::from_secs(60));
        let counts = machine.frames.counts();
        prop_assert_eq!(counts.isolated, 0);
        prop_assert_eq!(counts.reported, counts.free_whole);
    }
}
