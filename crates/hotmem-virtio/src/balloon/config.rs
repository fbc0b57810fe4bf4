//! The device's configuration: four numbers that have nothing to do with each other.

use super::features::Features;

/// `struct virtio_balloon_config` (5.5.4), as the device reports it. Any value may stand in it.
///
/// Each field is read and written by one access of four bytes, so there is nothing to be torn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawConfig {
    /// Frames that the device wants in the balloon.
    pub num_pages: u32,
    /// What hints are wanted for; 0 where the field is not available.
    pub free_page_hint_cmd_id: u32,
    /// The generation (2.5) before the rest was read: another one with each change that the device
    /// tells of.
    pub generation: u32,
}

impl RawConfig {
    /// Where `num_pages` is in the configuration space.
    pub const NUM_PAGES: usize = 0;
    /// Where `actual` is: frames in the balloon, for the driver to write.
    pub const ACTUAL: usize = 4;
    /// Where `free_page_hint_cmd_id` is, if [`Features::FREE_PAGE_HINT`] is negotiated.
    pub const FREE_PAGE_HINT_CMD_ID: usize = 8;
    /// Where `poison_val` is, if [`Features::PAGE_POISON`] is negotiated: for the driver to write,
    /// before `DRIVER_OK`.
    pub const POISON_VAL: usize = 12;

    /// Reads what is available under these features, of this generation or later.
    ///
    /// # Errors
    /// The first that `read` fails with.
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
