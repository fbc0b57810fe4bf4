//! Checks devices that run on a thread of their own: their adapter does not run them.

use hotmem_conformance::model::Model;
use hotmem_conformance::runner::{Suite, Verdict};
use hotmem_conformance::{
    BALLOON_POINTS, GuestMemory, Host, Inaccessible, MEMORY_POINTS, Point, Registers, Unsupported,
};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

/// A model whose thread ends when its adapter is dropped.
struct Threaded(Arc<Mutex<Model>>);

impl Threaded {
    fn new(model: Model) -> Threaded {
        let model = Arc::new(Mutex::new(model));
        let device: Weak<Mutex<Model>> = Arc::downgrade(&model);
        thread::spawn(move || {
            while let Some(model) = device.upgrade() {
                model.lock().unwrap().run();
                drop(model);
                thread::sleep(Duration::from_micros(50));
            }
        });
        Threaded(model)
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap()
    }
}

impl Registers for Threaded {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.model().read(offset, data);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.model().write(offset, data);
    }
}

impl GuestMemory for Threaded {
    fn ram(&self) -> Range<u64> {
        self.model().ram()
    }

    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        self.model().read_memory(addr, data)
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        self.model().write_memory(addr, data)
    }
}

impl Host for Threaded {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        self.model().set_requested_size(bytes)
    }

    fn node(&mut self) -> Result<u16, Unsupported> {
        self.model().node()
    }

    fn set_balloon_pages(&mut self, pages: u32) -> Result<(), Unsupported> {
        self.model().set_balloon_pages(pages)
    }

    fn ask_statistics(&mut self) -> Result<(), Unsupported> {
        self.model().ask_statistics()
    }

    fn statistic(&mut self, tag: u16) -> Result<Option<u64>, Unsupported> {
        self.model().statistic(tag)
    }

    fn start_hints(&mut self) -> Result<(), Unsupported> {
        self.model().start_hints()
    }
}

fn check(points: &'static [Point], model: fn() -> Model) {
    // A busy host may not run the device's thread for a long time.
    let (answer_limit, point_limit) = (Duration::from_secs(60), Duration::from_secs(600));
    let suite = Suite::new(points, move || Threaded::new(model()));
    for (point, verdict) in
        suite.answer_limit(answer_limit).point_limit(point_limit).run().verdicts()
    {
        assert_eq!(verdict, &Verdict::Passed, "{}", point.name);
    }
}

#[test]
fn a_memory_device_on_a_thread_passes_every_point() {
    check(MEMORY_POINTS, || Model::memory(None));
}

#[test]
fn a_balloon_on_a_thread_passes_every_point() {
    check(BALLOON_POINTS, || Model::balloon(None));
}
