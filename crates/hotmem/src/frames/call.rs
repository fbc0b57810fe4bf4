//! One call of the allocator: the context that all its steps share.
//!
//! While a CPU divides a pageblock, joins its frames to a whole pageblock again, or moves it from one
//! CPU's hint to another, searches cannot find the pageblock, although it has free frames. An operation
//! that hides memory for a moment is a *hiding step*. Each CPU counts the hiding steps that it has
//! started and those that it has ended, so that a search that found nothing knows whether it may have
//! missed memory (see `exhaustion.rs`). All steps of one call count as one hiding step, however many of
//! them hide memory.

use super::Frames;
use super::cpu_record::Cpu;
use crate::platform::Platform;
use crate::words::SectionWords;
use core::cell::Cell;

/// One call of the allocator by one CPU. Every part of the allocator but its fast paths is a method
/// of this type.
///
/// Between the first [`start_hiding`](CallContext::start_hiding) and the drop of the context, searches
/// of other CPUs may miss the memory that the call hides.
pub(crate) struct CallContext<'f, P> {
    pub(crate) frames: &'f Frames<P>,
    /// The record of the CPU on which the call began. A caller that is moved to another CPU
    /// meanwhile goes on with this record: each record may be used by several CPUs.
    pub(super) cpu: &'f Cpu,
    is_hiding: Cell<bool>,
}

impl<P: Platform> Frames<P> {
    /// Begins a call. Changes no count.
    pub(crate) fn call(&self) -> CallContext<'_, P> {
        self.call_on(self.listed_cpu())
    }

    /// Begins a call on the CPU of this record, which is listed.
    pub(super) fn call_on<'f>(&'f self, cpu: &'f Cpu) -> CallContext<'f, P> {
        CallContext { frames: self, cpu, is_hiding: Cell::new(false) }
    }

    /// Begins a call that goes on with a hiding step that was counted on the CPU of this record.
    pub(super) fn call_that_hides<'f>(&'f self, cpu: &'f Cpu) -> CallContext<'f, P> {
        CallContext { frames: self, cpu, is_hiding: Cell::new(true) }
    }
}

impl<'f, P> CallContext<'f, P> {
    /// Returns the words of all sections.
    pub(crate) fn words(&self) -> &'f SectionWords {
        &self.frames.words
    }

    /// Counts the start of a hiding step, unless the call has counted one already. The caller calls
    /// this *before* the step that hides memory.
    pub(crate) fn start_hiding(&self) {
        if !self.is_hiding.replace(true) {
            self.cpu.start_hiding_step();
        }
    }

    /// Ends the call, and returns the number of hiding steps that it has counted, 0 or 1.
    pub(super) fn end(self) -> u32 {
        u32::from(self.is_hiding.get())
    }
}

/// Counts the end of the hiding step, if one was started: searches can find all memory again.
impl<P> Drop for CallContext<'_, P> {
    #[inline(never)]
    fn drop(&mut self) {
        if self.is_hiding.get() {
            self.cpu.end_hiding_step();
        }
    }
}
