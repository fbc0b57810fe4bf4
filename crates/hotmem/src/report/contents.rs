//! What free memory holds is settled before there is a reporter.

use super::{Contents, ReporterError};
use crate::frames::Frames;
use crate::platform::Platform;

impl<P: Platform> Frames<P> {
    /// From now on free memory holds this: the kernel has filled all that is free, and fills what
    /// it frees. The engine fills what it frees itself, and what comes online. To be called while
    /// nobody else allocates or frees, and before there is a reporter, which is told what the host
    /// leaves.
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
