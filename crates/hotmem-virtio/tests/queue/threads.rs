//! Runs the device on a thread that sleeps until it is notified, with a driver that sleeps until it is
//! interrupted: if one of them tells the other too little, both sleep for ever.

use crate::shared::SharedPage;
use crate::{Queue, SIZE, push};
use hotmem_virtio::queue::QueueFeatures;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const CHAINS: u32 = if cfg!(miri) { 100 } else { 20_000 };

/// The device's side of a queue of `SIZE` descriptors with `EVENT_IDX`, by atomic accesses.
struct Device {
    page: SharedPage,
    driver_area: usize,
    device_area: usize,
    taken: u16,
}

// SAFETY: the driver and the device access the page at the same time only by atomics.
unsafe impl Send for Device {}

impl Device {
    fn word(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: the word lies inside the page, which is never freed, and is aligned.
        unsafe { AtomicU16::from_ptr(self.page.start.add(offset).cast().as_ptr()) }
    }

    fn has_chain(&self) -> bool {
        self.word(self.driver_area + 2).load(Ordering::Acquire) != self.taken
    }

    /// Uses the next chain. Returns whether the driver must be interrupted.
    fn use_chain(&mut self) -> bool {
        let entry = usize::from(self.taken) % SIZE;
        let head = self.word(self.driver_area + 4 + 2 * entry).load(Ordering::Relaxed);
        let element = self.device_area + 4 + 8 * entry;
        for (i, half) in [head, 0, 0, 0].into_iter().enumerate() {
            self.word(element + 2 * i).store(half, Ordering::Relaxed);
        }
        let index = self.taken;
        self.taken = index.wrapping_add(1);
        self.word(self.device_area + 2).store(self.taken, Ordering::Release);
        // The used index is visible before the device looks whether to interrupt (2.7.14).
        fence(Ordering::SeqCst);
        let used_event = self.word(self.driver_area + 4 + 2 * SIZE);
        used_event.load(Ordering::Relaxed) == index
    }

    /// Asks to be notified of the next chain. Returns whether there is one already.
    fn asks_too_late(&mut self) -> bool {
        self.word(self.device_area + 4 + 8 * SIZE).store(self.taken, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.has_chain()
    }

    /// Serves the queue until the driver is gone.
    fn run(mut self, notified: &Receiver<()>, interrupt: &Sender<()>) {
        loop {
            while self.has_chain() {
                if self.use_chain() && interrupt.send(()).is_err() {
                    return;
                }
            }
            if !self.asks_too_late() && notified.recv().is_err() {
                return;
            }
        }
    }
}

fn queue() -> (Queue, Device) {
    let page = SharedPage::new();
    let (mut queue, _) = Queue::new(page.dma(0)).unwrap();
    queue.reset(SIZE, QueueFeatures { indirect: false, event_index: true });
    let offset = |area: u64| usize::try_from(area - queue.descriptors()).unwrap();
    let (driver_area, device_area) = (offset(queue.driver_area()), offset(queue.device_area()));
    (queue, Device { page, driver_area, device_area, taken: 0 })
}

fn push_one(queue: &mut Queue) {
    push(queue, &[(0x1000, 4, false)]).unwrap();
}

#[test]
fn neither_side_sleeps_for_ever() {
    let (mut queue, device) = queue();
    let (notify, notified) = channel();
    let (interrupt, interrupted) = channel();
    let thread = thread::spawn(move || device.run(&notified, &interrupt));
    // Miri is so slow that it could not even measure the host.
    let limit = match cfg!(miri) {
        true => Duration::from_secs(600),
        false => hotmem_time_limit::scaled(Duration::from_secs(10)),
    };
    let (mut pushed, mut popped) = (0, 0);
    while popped < CHAINS {
        while pushed < CHAINS && usize::from(queue.outstanding()) < SIZE {
            push_one(&mut queue);
            pushed += 1;
            if queue.wants_notification() {
                notify.send(()).unwrap();
            }
        }
        match queue.pop().unwrap() {
            Some(_) => popped += 1,
            None => {
                interrupted.recv_timeout(limit).expect("an interrupt or a notification is lost")
            }
        }
    }
    drop(notify);
    thread.join().unwrap();
}
