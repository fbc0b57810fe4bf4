//! Sets what free memory holds, before there is a reporter.

use super::{Contents, ReporterError};
use crate::frames::Frames;
use crate::platform::Platform;

impl<P: Platform> Frames<P> {
    /// Sets what free memory holds from now on. The kernel has filled all free memory with it, and
    /// fills the frames that it frees; the engine fills the frames that it frees itself, and memory
    /// that comes online. Call this while no other code allocates or frees, and before there is a
    /// reporter: the reporter is told what contents the host leaves.
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
