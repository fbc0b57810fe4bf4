//! Runs the access pattern of remote frees. One CPU allocates runs and passes them through a ring
//! to another CPU, which frees them.

use super::allocator::{Allocator, ThreadState, alloc_until_some};
use super::length::Length;
use super::ring::{ENTRIES, Ring};
use crate::hosted::ThreadCpus;

/// The role of a thread, and its ring.
pub(super) enum RemoteRole<'a> {
    Allocates(&'a Ring),
    Frees(&'a Ring),
    /// Acts as two CPUs in turn. One allocates, the other frees.
    Both(&'a Ring),
}

/// Returns one ring for every two threads.
pub(super) fn rings(threads: usize) -> Vec<Ring> {
    (0..threads.div_ceil(2)).map(|_| Ring::new()).collect()
}

/// Returns the roles of all threads.
pub(super) fn roles(rings: &[Ring], threads: usize) -> Vec<RemoteRole<'_>> {
    if let ([ring], 1) = (rings, threads) {
        return vec![RemoteRole::Both(ring)];
    }
    rings.iter().flat_map(|ring| [RemoteRole::Allocates(ring), RemoteRole::Frees(ring)]).collect()
}

impl RemoteRole<'_> {
    /// Allocates `operations` allocations, frees `operations` allocations, or does both, according
    /// to the role.
    ///
    /// The ends of the ring are local, so that the processor's registers hold their counts.
    pub(super) fn run<A: Allocator>(
        &self,
        allocator: &A,
        thread_state: &mut A::ThreadState<'_>,
        length: Length,
        operations: u64,
    ) {
        match self {
            RemoteRole::Allocates(ring) => {
                let mut sender = ring.sender();
                (0..operations)
                    .for_each(|_| sender.send(alloc_until_some(|| thread_state.alloc(length))));
            }
            RemoteRole::Frees(ring) => {
                let mut receiver = ring.receiver();
                (0..operations).for_each(|_| thread_state.free(receiver.receive(), length));
            }
            RemoteRole::Both(ring) => {
                let (mut sender, mut receiver) = (ring.sender(), ring.receiver());
                let mut freeing_cpu = allocator.thread_state();
                let mut remaining = operations;
                while remaining > 0 {
                    let burst = remaining.min(ENTRIES);
                    ThreadCpus::run_as(0);
                    (0..burst)
                        .for_each(|_| sender.send(alloc_until_some(|| thread_state.alloc(length))));
                    ThreadCpus::run_as(1);
                    (0..burst).for_each(|_| freeing_cpu.free(receiver.receive(), length));
                    remaining -= burst;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_role() {
        let names = |threads: usize| {
            let rings = rings(threads);
            let name = |role: &RemoteRole<'_>| match role {
                RemoteRole::Allocates(_) => 'a',
                RemoteRole::Frees(_) => 'f',
                RemoteRole::Both(_) => 'b',
            };
            roles(&rings, threads).iter().map(name).collect::<String>()
        };
        assert_eq!([1, 2, 4].map(names), ["b", "af", "afaf"]);
        // With an odd number of threads, there is one role more than there are threads. No thread
        // has the last role.
        assert_eq!(names(3).len(), 4);
    }
}
