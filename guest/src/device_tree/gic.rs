//! Reads the registers of a GICv3, an interrupt controller.

use super::error::TreeError;
use super::node::{Node, Range};

/// The registers of a GICv3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gic {
    /// The distributor.
    pub distributor: Range,
    /// The first redistributors, one for each CPU.
    pub redistributors: Range,
    /// The translation of messages, if there is one.
    pub its: Option<Range>,
}

impl Gic {
    pub(super) fn read<'t>(node: &Node<'t>) -> Result<Self, TreeError<'t>> {
        let mut ranges = [None; 2];
        let mut places = ranges.iter_mut();
        node.each_range(|range| {
            // The ranges after the first redistributors belong to further ones and to old software.
            if let Some(place) = places.next() {
                *place = Some(range);
            }
            Ok(())
        })?;
        match ranges {
            [Some(distributor), Some(redistributors)] => {
                Ok(Gic { distributor, redistributors, its: None })
            }
            _ => Err(node.malformed("reg")),
        }
    }
}
