//! A bounded ring through which one thread hands frames to another, as a driver's interrupt handler
//! and a worker do.

use std::{
    hint, iter,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

/// The number of entries, as in the ring of a network card.
pub(super) const ENTRIES: u64 = 256;

/// The number of reads after which the thread yields the CPU, in case the other thread has none.
const READS_BEFORE_YIELD: u32 = 1 << 12;

/// A ring with one sender and one receiver.
pub(super) struct Ring {
    entries: Vec<AtomicU64>,
    sent: Line,
    received: Line,
}

/// A count with a pair of cache lines of its own, because processors fetch lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

impl Ring {
    pub(super) fn new() -> Ring {
        let entries = iter::repeat_with(|| AtomicU64::new(0));
        let [sent, received] = [(); 2].map(|()| Line(AtomicU64::new(0)));
        Ring { entries: entries.take(super::subject::index(ENTRIES)).collect(), sent, received }
    }

    /// Returns the only sender.
    pub(super) fn sender(&self) -> Sender<'_> {
        Sender { ring: self, sent: self.sent.0.load(Ordering::Relaxed), room: 0 }
    }

    /// Returns the only receiver.
    pub(super) fn receiver(&self) -> Receiver<'_> {
        Receiver { ring: self, received: self.received.0.load(Ordering::Relaxed), there: 0 }
    }

    fn entry(&self, number: u64) -> &AtomicU64 {
        &self.entries[super::subject::index(number % ENTRIES)]
    }
}

/// Sends frames.
pub(super) struct Sender<'a> {
    ring: &'a Ring,
    sent: u64,
    /// The number of frames that can be sent before the receiver's count is read again.
    room: u64,
}

impl Sender<'_> {
    /// Waits for a free entry, and sends a frame.
    #[inline]
    pub(super) fn send(&mut self, frame: u64) {
        if self.room == 0 {
            // Acquire pairs with the Release in `receive`: the receiver has read the entries that
            // it counts.
            self.room =
                wait(|| ENTRIES - (self.sent - self.ring.received.0.load(Ordering::Acquire)));
        }
        self.room -= 1;
        // Relaxed: the count publishes the entry.
        self.ring.entry(self.sent).store(frame, Ordering::Relaxed);
        self.sent += 1;
        // Release pairs with the Acquire in `receive`.
        self.ring.sent.0.store(self.sent, Ordering::Release);
    }
}

/// Receives frames.
pub(super) struct Receiver<'a> {
    ring: &'a Ring,
    received: u64,
    /// The number of frames that can be received before the sender's count is read again.
    there: u64,
}

impl Receiver<'_> {
    /// Waits for a frame, and receives it.
    #[inline]
    pub(super) fn receive(&mut self) -> u64 {
        if self.there == 0 {
            // Acquire pairs with the Release in `send`: the entries that the sender counts are
            // visible.
            self.there = wait(|| self.ring.sent.0.load(Ordering::Acquire) - self.received);
        }
        self.there -= 1;
        let frame = self.ring.entry(self.received).load(Ordering::Relaxed);
        self.received += 1;
        // Release pairs with the Acquire in `send`.
        self.ring.received.0.store(self.received, Ordering::Release);
        frame
    }
}

/// Waits until the count is not 0, and returns it.
fn wait(count: impl Fn() -> u64) -> u64 {
    loop {
        for _ in 0..READS_BEFORE_YIELD {
            match count() {
                0 => hint::spin_loop(),
                some => return some,
            }
        }
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_order() {
        let ring = Ring::new();
        let (mut sender, mut receiver) = (ring.sender(), ring.receiver());
        let count = 10 * ENTRIES + 7;
        thread::scope(|scope| {
            scope.spawn(move || (0..count).for_each(|frame| sender.send(frame)));
            (0..count).for_each(|frame| assert_eq!(receiver.receive(), frame));
        });
    }

    #[test]
    fn one_thread_can_fill_and_empty_a_ring() {
        let ring = Ring::new();
        let (mut sender, mut receiver) = (ring.sender(), ring.receiver());
        for _ in 0..3 {
            (0..ENTRIES).for_each(|frame| sender.send(frame));
            assert!((0..ENTRIES).all(|frame| receiver.receive() == frame));
        }
    }
}
