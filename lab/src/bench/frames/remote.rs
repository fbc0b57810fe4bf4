//! Remote frees: one CPU allocates frames and passes them through a ring to another CPU, which
//! frees them.

use super::ring::{ENTRIES, Receiver, Ring, Sender};
use super::subject::{Allocator, Own, until_some};
use crate::hosted::Threads;

/// The role of a thread.
pub(super) enum Part<'a> {
    Allocates(Sender<'a>),
    Frees(Receiver<'a>),
    /// It allocates and frees, as two CPUs that take turns.
    Both(Sender<'a>, Receiver<'a>),
}

/// Returns one ring for every two threads.
pub(super) fn rings(threads: usize) -> Vec<Ring> {
    (0..threads.div_ceil(2)).map(|_| Ring::new()).collect()
}

/// Returns the roles of all threads.
pub(super) fn parts(rings: &[Ring], threads: usize) -> Vec<Part<'_>> {
    if let ([ring], 1) = (rings, threads) {
        return vec![Part::Both(ring.sender(), ring.receiver())];
    }
    let two = |ring| [Part::Allocates(Ring::sender(ring)), Part::Frees(Ring::receiver(ring))];
    rings.iter().flat_map(two).collect()
}

impl Part<'_> {
    /// Allocates `operations` pieces, frees as many, or both.
    pub(super) fn run<A: Allocator>(
        &mut self,
        allocator: &A,
        own: &mut A::Own<'_>,
        order: u32,
        operations: u64,
    ) {
        match self {
            Part::Allocates(sender) => {
                (0..operations).for_each(|_| sender.send(until_some(|| own.alloc(order))));
            }
            Part::Frees(receiver) => {
                (0..operations).for_each(|_| own.free(receiver.receive(), order));
            }
            Part::Both(sender, receiver) => {
                let mut other = allocator.own();
                let mut left = operations;
                while left > 0 {
                    let burst = left.min(ENTRIES);
                    Threads::run_as(0);
                    (0..burst).for_each(|_| sender.send(until_some(|| own.alloc(order))));
                    Threads::run_as(1);
                    (0..burst).for_each(|_| other.free(receiver.receive(), order));
                    left -= burst;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_part() {
        let names = |threads: usize| {
            let rings = rings(threads);
            let name = |part: &Part<'_>| match part {
                Part::Allocates(_) => 'a',
                Part::Frees(_) => 'f',
                Part::Both(..) => 'b',
            };
            parts(&rings, threads).iter().map(name).collect::<String>()
        };
        assert_eq!([1, 2, 4].map(names), ["b", "af", "afaf"]);
        // Accesses without remote frees have any number of threads.
        assert_eq!(names(3).len(), 4);
    }
}
