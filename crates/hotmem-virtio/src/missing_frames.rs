//! Tells how much kernel memory an addition lacks.

use hotmem::AddError;

/// Returns the number of frames of kernel memory that must be free before the same addition can
/// succeed, or 0 if it was refused for another reason. A kernel with a balloon that may deflate asks
/// it for these frames ([`EngineMemory::need`](crate::balloon::EngineMemory::need)) before it refuses
/// the memory.
#[must_use]
pub fn missing_frames(error: &AddError) -> u64 {
    match error {
        AddError::NoMetadata(bytes) => bytes.frames(),
        AddError::NoTables { frames, .. } => *frames,
        AddError::Range(_) | AddError::TooManyNodes(_) => 0,
    }
}
