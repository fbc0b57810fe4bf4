//! Reads the device's configuration.

use super::features::Features;

/// `struct virtio_balloon_config` (5.5.4), as the device reports it. Its values are not trusted.
///
/// Each field is read and written by one access of four bytes, so no field can be torn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawConfig {
    /// The requested size of the balloon in frames.
    pub num_pages: u32,
    /// The command that requests hints, or 0 if the field is not available.
    pub free_page_hint_cmd_id: u32,
    /// The configuration generation (2.5), which is read before the other fields. Each change that
    /// the device announces changes the generation.
    pub generation: u32,
}

impl RawConfig {
    /// The offset of `num_pages` in the configuration space.
    pub const NUM_PAGES: usize = 0;
    /// The offset of `actual`, the balloon's size in frames, which the driver writes.
    pub const ACTUAL: usize = 4;
    /// The offset of `free_page_hint_cmd_id`, if [`Features::FREE_PAGE_HINT`] is negotiated.
    pub const FREE_PAGE_HINT_CMD_ID: usize = 8;
    /// The offset of `poison_val`, if [`Features::PAGE_POISON`] is negotiated. The driver writes it
    /// before `DRIVER_OK`.
    pub const POISON_VAL: usize = 12;

    /// Reads the fields that are available under these features. Their values are of this
    /// generation or a later one.
    ///
    /// # Errors
    /// The first error that `read` returns.
    pub fn read<E>(
        features: Features,
        generation: u32,
        mut read: impl FnMut(usize) -> Result<u32, E>,
    ) -> Result<RawConfig, E> {
        let hints = features.contains(Features::FREE_PAGE_HINT);
        Ok(RawConfig {
            num_pages: read(Self::NUM_PAGES)?,
            free_page_hint_cmd_id: if hints { read(Self::FREE_PAGE_HINT_CMD_ID)? } else { 0 },
            generation,
        })
    }
}
