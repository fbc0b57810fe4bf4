//! Carries out requests of `hotmem-dlpar`.

use anyhow::{Result, bail};
use hotmem::{Budget, Bytes, Map, OnlineType, Platform, geometry::PAGEBLOCK_FRAMES};
use hotmem_dlpar::{
    Connectors, Dlpar, DrcIndex, MAX_LIST_LEN, Machine, Progress, PropertyValue, Request,
};

pub(super) const LMB_SIZE: Bytes = Bytes::mib(256);

/// Polls a request until its end. Each poll handles about `at_once` LMBs.
///
/// # Errors
/// The request failed, or waits.
pub(super) fn carry_out<'f, P: Platform, M: Map, C: Connectors>(
    request: Request,
    dlpar: &mut Dlpar<'_, 'f, P>,
    machine: &mut Machine<'_, 'f, P, M, C>,
    at_once: u32,
) -> Result<()> {
    let pageblocks = LMB_SIZE.frames() / PAGEBLOCK_FRAMES as u64 * u64::from(at_once);
    dlpar.begin(request.online_as(OnlineType::Movable))?;
    loop {
        match dlpar.poll(machine, Budget { pageblocks }) {
            Progress::Working => {}
            Progress::Ready(Ok(_)) => return Ok(()),
            other => bail!("the request did not succeed: {other:?}"),
        }
    }
}

/// The connectors of a platform, such as QEMU, whose firmware does not need the device tree's property
/// of the LMBs to be kept current. [`update`](Connectors::update) writes nothing.
pub(super) struct WithoutProperty<'c, C>(pub(super) &'c mut C);

impl<C: Connectors> Connectors for WithoutProperty<'_, C> {
    fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32) {
        self.0.entity_sense(connector)
    }

    fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32 {
        self.0.set_allocation(connector, usable)
    }

    fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32 {
        self.0.set_isolation(connector, isolated)
    }

    fn configure(
        &mut self,
        connector: DrcIndex,
        list: &mut [u32; MAX_LIST_LEN],
    ) -> (i32, Option<usize>) {
        self.0.configure(connector, list)
    }

    fn update(&mut self, _: PropertyValue<'_>, _: Option<PropertyValue<'_>>) -> i32 {
        0
    }
}
