//! Points of the configuration of a balloon (5.5.4).

use super::services::Service;
use super::session::Balloon;
use super::wire::{ACTUAL, HINT_COMMAND, NUM_PAGES};
use crate::failure::{Stop, expect};

type Result = core::result::Result<(), Stop>;

pub(crate) fn actual_readback(balloon: &mut Balloon<'_>) -> Result {
    for pages in [5, 0] {
        balloon.driver.set_config(ACTUAL, pages);
        expect("actual", pages, balloon.driver.config(ACTUAL))?;
    }
    Ok(())
}

pub(crate) fn read_only(balloon: &mut Balloon<'_>) -> Result {
    let mut fields = [NUM_PAGES; 2];
    if balloon.queue(Service::Hints).is_ok() {
        fields[1] = HINT_COMMAND;
    }
    for field in fields {
        let before = balloon.driver.config(field);
        balloon.driver.set_config(field, before ^ 77);
        expect("a field that the driver must not write", before, balloon.driver.config(field))?;
    }
    Ok(())
}
