//! Defines how a kernel that keeps a descriptor of each frame has them written and removed.

use crate::addr::{Pfn, PfnRange};
use crate::range_error::RangeError;

/// Describes RAM for a kernel that keeps a *descriptor* of each frame. A kernel without descriptors
/// does not implement this trait: its [`Map::descriptors`](crate::Map::descriptors) returns `None`.
/// No method has a default.
///
/// Descriptors can lie in two places, and a kernel may use one of them or both: in the memory that
/// they describe ([`pageblocks_needed`](Self::pageblocks_needed)), and in frames that the engine
/// allocates for them ([`frames_needed`](Self::frames_needed)). Each of these two methods returns 0
/// if the kernel does not use its place.
///
/// The engine calls these methods in the context of a call that adds or removes memory. The methods
/// may use the frame allocator.
///
/// # Safety
/// The implementation promises, for as long as the [`Frames`](crate::Frames) of the instance exist:
/// - Frames that `take` yields are used only for descriptors of this instance, and for the page
///   tables that map them. A frame that is passed to `free` is one of these, or one that the kernel
///   allocated itself. Nobody uses that frame any more, and it is passed only once. The engine
///   refuses a frame that is not allocated.
/// - Only [`describe`](Self::describe) writes the pageblocks of
///   [`pageblocks_needed`](Self::pageblocks_needed), and not after the range that they describe is
///   [undescribed](Self::undescribe).
pub unsafe trait Describe {
    /// Returns the maximum number of frames that the descriptors of `range` need if it is RAM,
    /// whatever other memory is described when they are written. This includes the page tables of
    /// the descriptors, but not the pageblocks of `range` that hold descriptors
    /// ([`pageblocks_needed`](Self::pageblocks_needed)).
    fn frames_needed(&self, range: PfnRange) -> u64;

    /// Returns the number of pageblocks at the start of `section` that hold the section's own
    /// descriptors: one if a descriptor has 64 bytes, and 0 if all descriptors lie in other frames.
    /// `section` is added as a whole. With such pageblocks, adding memory needs no free memory for
    /// its descriptors. These pageblocks come online with the section, but are never allocated or
    /// migrated. They do not prevent the section's removal, and are removed with the last part of
    /// the section.
    fn pageblocks_needed(&self, section: PfnRange) -> u64;

    /// Writes the descriptors of `range`, which is mapped and is now RAM. The descriptors lie in
    /// the [pageblocks of `range` that are for them](Self::pageblocks_needed), and in frames from
    /// `take`. Must not fail: `take` yields as many frames as
    /// [`frames_needed`](Self::frames_needed) has returned.
    ///
    /// # Safety
    /// The engine promises: `range` is mapped and used by nobody, and `take` yields frames that
    /// nobody else uses.
    unsafe fn describe(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>);

    /// Removes the descriptors of `range`, which is not RAM any more. Passes to `free` the frames
    /// that held the descriptors, and the frames of page tables that mapped only these descriptors.
    /// `free` returns an error for a frame that is not allocated, which is a bug of the kernel, as
    /// for [`Map::release_tables`](crate::Map::release_tables).
    ///
    /// # Safety
    /// The engine promises: `range` was described, and is used by nobody.
    unsafe fn undescribe(
        &mut self,
        range: PfnRange,
        free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    );
}
