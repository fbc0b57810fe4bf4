//! Passes frames from one thread to another through a bounded ring, as a driver's interrupt handler
//! passes them to a worker.

use super::allocator::index;
use std::{
    hint,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

/// The number of entries, as in the ring of a network card.
const LEN: usize = 256;
pub(super) const ENTRIES: u64 = LEN as u64;

/// The number of reads after which a waiting thread yields the CPU: the thread for which it waits
/// may need the same CPU.
const READS_BEFORE_YIELD: u32 = 1 << 12;

/// A ring with one sender and one receiver.
pub(super) struct Ring {
    entries: [AtomicU64; LEN],
    sent_count: PaddedCount,
    received_count: PaddedCount,
}

/// A count that has a pair of cache lines to itself, because processors fetch lines in pairs.
#[repr(align(128))]
struct PaddedCount(AtomicU64);

impl Ring {
    pub(super) fn new() -> Ring {
        let [sent, received] = [(); 2].map(|()| PaddedCount(AtomicU64::new(0)));
        Ring {
            entries: [const { AtomicU64::new(0) }; LEN],
            sent_count: sent,
            received_count: received,
        }
    }

    /// Returns the sender. A ring must have only one.
    pub(super) fn sender(&self) -> Sender<'_> {
        Sender {
            ring: self,
            sent_count: self.sent_count.0.load(Ordering::Relaxed),
            free_entries: 0,
        }
    }

    /// Returns the receiver. A ring must have only one.
    pub(super) fn receiver(&self) -> Receiver<'_> {
        Receiver {
            ring: self,
            received_count: self.received_count.0.load(Ordering::Relaxed),
            ready_entries: 0,
        }
    }

    fn entry(&self, number: u64) -> &AtomicU64 {
        &self.entries[index(number % ENTRIES)]
    }
}

/// Sends frames.
pub(super) struct Sender<'a> {
    ring: &'a Ring,
    sent_count: u64,
    /// The number of frames that can be sent before the receiver's count is read again.
    free_entries: u64,
}

impl Sender<'_> {
    /// Waits for a free entry, and sends a frame.
    #[inline]
    pub(super) fn send(&mut self, frame: u64) {
        if self.free_entries == 0 {
            // Acquire pairs with the Release in `receive`: the receiver has read the entries that
            // it counts.
            self.free_entries = wait_until_not_0(|| {
                ENTRIES - (self.sent_count - self.ring.received_count.0.load(Ordering::Acquire))
            });
        }
        self.free_entries -= 1;
        // Relaxed is enough, because the store of the count below publishes the entry.
        self.ring.entry(self.sent_count).store(frame, Ordering::Relaxed);
        self.sent_count += 1;
        // Release pairs with the Acquire in `receive`.
        self.ring.sent_count.0.store(self.sent_count, Ordering::Release);
    }
}

/// Receives frames.
pub(super) struct Receiver<'a> {
    ring: &'a Ring,
    received_count: u64,
    /// The number of frames that can be received before the sender's count is read again.
    ready_entries: u64,
}

impl Receiver<'_> {
    /// Waits for a frame, and receives it.
    #[inline]
    pub(super) fn receive(&mut self) -> u64 {
        if self.ready_entries == 0 {
            // Acquire pairs with the Release in `send`: the entries that the sender counts are
            // visible.
            self.ready_entries = wait_until_not_0(|| {
                self.ring.sent_count.0.load(Ordering::Acquire) - self.received_count
            });
        }
        self.ready_entries -= 1;
        let frame = self.ring.entry(self.received_count).load(Ordering::Relaxed);
        self.received_count += 1;
        // Release pairs with the Acquire in `send`.
        self.ring.received_count.0.store(self.received_count, Ordering::Release);
        frame
    }
}

/// Reads the count until it is not 0, and returns the count.
fn wait_until_not_0(count: impl Fn() -> u64) -> u64 {
    loop {
        for _ in 0..READS_BEFORE_YIELD {
            match count() {
                0 => hint::spin_loop(),
                count => return count,
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
