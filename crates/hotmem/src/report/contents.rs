//! Sets what free memory holds, before there is a reporter.

use super::{Contents, ReporterError};
use crate::frames::Frames;
use crate::platform::Platform;

impl<P: Platform> Frames<P> {
    /// Sets what free memory holds from now on. The kernel has filled all free memory with it, and
    /// fills what it frees; the engine fills what it frees itself, and what comes online. To be
    /// called while nobody else allocates or frees, and before there is a reporter, which is told
    /// what the host leaves.
    ///
    /// # Errors
    /// [`ReporterError::AlreadyThere`].
    pub fn set_contents(&self, contents: Contents) -> Result<(), ReporterError> {
        if self.wakeup().is_taken() {
            return Err(ReporterError::AlreadyThere);
        }
        self.store_contents(contents);
        Ok(())
    }
}
