//! Defines the callbacks of the frame allocator into the kernel.

use crate::words::NodeId;

/// The callbacks of the frame allocator into the kernel: which CPU and node the caller runs on, and
/// what to do about missing or reportable memory. Each instance has its own value of this type, so
/// one process can have many instances.
pub trait Platform {
    /// Whether the engine counts the frames that callers allocate and free, for
    /// [`Frames::allocated_frames`](crate::Frames::allocated_frames). Each allocation and each free
    /// then costs one atomic read-modify-write more.
    const COUNTS_ALLOCATED: bool = false;

    /// Returns the number of the CPU that runs the caller. The number is **only a hint**: two CPUs
    /// may return the same one, and a thread may move to another CPU right after the call. A wrong
    /// number costs time, but never correctness. The engine calls this often and from any context,
    /// so it must be cheap.
    fn cpu(&self) -> usize;

    /// Returns the NUMA node that is nearest to the caller. The node is only a hint. If the machine
    /// does not know the node, the first online node stands for it.
    fn node(&self) -> NodeId {
        NodeId::ZERO
    }

    /// Wakes the reporter: memory waits to be reported, and the reporter's last step was idle. The
    /// kernel must ensure that [`Reporter::step`](crate::report::Reporter::step) is called soon.
    /// The engine calls this at most once each time that the reporter becomes idle. The call
    /// happens within the call that made memory free, such as a free, and in the context of that
    /// call. So an implementation may only set a flag or wake a thread.
    fn wake_reporter(&self) {}

    /// Frees the frames that the kernel keeps in magazines (`hotmem_port::Magazine`), and returns
    /// whether there were any. The engine calls this before an allocation fails because no memory is
    /// free, when memory is to be drained, and when a frame that is in use is poisoned. It may be
    /// called from within an allocation, in its context, so it cannot wait for a magazine that is in
    /// use on this or another CPU. A kernel with a magazine for each CPU
    /// (`hotmem_port::CpuMagazine`) drains that of this CPU. It may send the other CPUs an interrupt
    /// whose handler drains theirs; a later attempt finds those frames free.
    fn drain_magazines(&self) -> bool {
        false
    }
}

/// A machine with one CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCpu;

impl Platform for OneCpu {
    fn cpu(&self) -> usize {
        0
    }
}
