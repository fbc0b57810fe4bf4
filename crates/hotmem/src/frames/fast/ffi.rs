//! The fast paths of single frames, for functions that C code calls.
//!
//! [`Frames::alloc`] and [`Frames::free_raw`] call their fast paths as functions, so that the code
//! of each kernel function that allocates stays small. A function that C code calls is compiled
//! only once. The fast path is inlined into it, so that it need not save registers for a call.

use super::free_frame::is_complete;
use crate::addr::Pfn;
use crate::frames::Frames;
use crate::platform::Platform;
use crate::words::Zone;

/// The fast paths of single frames, for functions that code in another language calls.
///
/// `cpu` is the number that [`Platform::cpu`] would return. If it is the number of another CPU, the
/// call is slower, but still correct.
pub trait FastPath {
    /// Allocates one frame for any purpose, if one atomic read-modify-write suffices. Returns the
    /// frame's number. The caller then owns the frame, as after
    /// [`Allocation::into_raw`](crate::Allocation::into_raw). If the result is `None`, nothing has
    /// changed, and [`Frames::alloc`] may still find a frame.
    fn alloc_frame_fast(&self, cpu: usize) -> Option<u64>;

    /// Frees one frame, if one atomic read-modify-write suffices.
    ///
    /// # Safety
    /// The same as for [`Frames::free_raw`].
    unsafe fn free_frame_fast(&self, frame: Pfn, cpu: usize) -> FastFree;

    /// Completes a free after [`FastFree::Incomplete`].
    fn complete_free(&self, frame: Pfn);
}

/// What [`FastPath::free_frame_fast`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastFree {
    /// It has freed the frame.
    Complete,
    /// It has freed the frame. The caller must call [`FastPath::complete_free`].
    Incomplete,
    /// Nothing. [`Frames::free_raw`] may free the frame.
    Nothing,
}

impl<P: Platform> FastPath for Frames<P> {
    #[inline(always)]
    fn alloc_frame_fast(&self, cpu: usize) -> Option<u64> {
        let frame = self.cpus.get_inlined(cpu).take_at_cursor(Zone::Kernel)?;
        self.count_allocated(1);
        Some(frame)
    }

    #[inline(always)]
    unsafe fn free_frame_fast(&self, frame: Pfn, cpu: usize) -> FastFree {
        let cpu = self.cpus.get_inlined(cpu);
        let Some(freed) = cpu.last_freed.free(frame, &cpu.last_change) else {
            return FastFree::Nothing;
        };
        self.count_freed(1);
        if is_complete(cpu, freed, frame) { FastFree::Complete } else { FastFree::Incomplete }
    }

    fn complete_free(&self, frame: Pfn) {
        self.complete_last_free(frame);
    }
}
