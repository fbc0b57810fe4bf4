//! Points of free page hints (5.5.6.5).

use super::services::Service;
use super::session::Balloon;
use super::wire::HINT_COMMAND;
use crate::failure::{Stop, require};

type Result = core::result::Result<(), Stop>;

/// `VIRTIO_BALLOON_CMD_ID_STOP`
const STOP: u32 = 0;
/// The first command ID that is not reserved.
const FIRST_COMMAND: u32 = 2;

pub(crate) fn stale_id_ignored(balloon: &mut Balloon<'_>) -> Result {
    let queue = balloon.queue(Service::Hints)?;
    balloon.driver.device().start_hints()?;
    balloon.driver.wait_for(|driver| driver.config(HINT_COMMAND) >= FIRST_COMMAND);
    let command = balloon.driver.config(HINT_COMMAND);
    require("the command ID must be 2 or more", command >= FIRST_COMMAND, command.into())?;
    let stale = if command == FIRST_COMMAND { u32::MAX } else { command - 1 };
    balloon.mark(0..4)?;
    send_command(balloon, queue, stale)?;
    for page in 0..4 {
        balloon.driver.send(queue, &[balloon.page_buffer(page, true)])?;
    }
    send_command(balloon, queue, STOP)?;
    for page in 0..4 {
        balloon.expect_kept("a page of a stale hint must keep its contents", page)?;
    }
    Ok(())
}

fn send_command(balloon: &mut Balloon<'_>, queue: u16, command: u32) -> Result {
    balloon.driver.clear_buffers()?;
    let buffer = balloon.driver.readable(&command.to_le_bytes())?;
    balloon.driver.send(queue, &[buffer])?;
    Ok(())
}
