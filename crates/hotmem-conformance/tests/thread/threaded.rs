//! Runs a model on a thread of its own, as VMMs run their devices.

use hotmem_conformance::model::Model;
use hotmem_conformance::{GuestMemory, Host, Inaccessible, Registers, Unsupported};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

/// A model whose thread ends when its adapter is dropped.
pub(crate) struct Threaded(Arc<Mutex<Model>>);

impl Threaded {
    pub(crate) fn new(model: Model) -> Threaded {
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

    fn take_interrupt(&mut self) -> Result<bool, Unsupported> {
        self.model().take_interrupt()
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
