//! Sets the contents of free memory, which is allowed only before the instance has a reporter.

use super::{Contents, ReporterError};
use crate::frames::Frames;
use crate::platform::Platform;

impl<P: Platform> Frames<P> {
    /// Sets what free memory contains from now on. The kernel has filled all free memory with
    /// `contents`, and fills the frames that it frees. The engine fills the frames that it frees
    /// itself, and memory that comes online. Call this while no other code allocates or frees. Call
    /// it before the reporter is created, because [`Reporter::new`](super::Reporter::new) compares
    /// these contents with those that the host leaves.
    ///
    /// No free memory is [known to be zero](Self::keep_zero_marks) any more. Cost: O(sections).
    ///
    /// # Errors
    /// [`ReporterError::HasReporter`].
    pub fn set_contents(&self, contents: Contents) -> Result<(), ReporterError> {
        if self.wakeup().has_reporter() {
            return Err(ReporterError::HasReporter);
        }
        self.store_contents(contents);
        self.words().sections().for_each(|section| section.words().forget_zeroes());
        Ok(())
    }
}
