//! Plans decoders: from a window, bridges and devices to settings, without an access to registers.

use super::topology::{Bridge, Component, Device, PlanError, Step, Wish};
use crate::{
    cedt::{Arithmetic, Restrictions, Window},
    command::Extent,
    decoder::{Destination, MAX_PORTS, Occupancy, Setting},
    interleave::{Granularity, UNIT, Ways},
};
use hotmem_addr::{Bytes, PfnRange};

/// The largest number of devices of a plan.
const MAX_DEVICES: usize = 16;

/// Addresses of a window, and the decoders that route them to devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    range: PfnRange,
    ways: Ways,
    granularity: Granularity,
    /// The devices in the order in which addresses alternate. The first `ways.count()` are valid.
    members: [Member; MAX_DEVICES],
    /// How the decoders of bridges alternate.
    bridge_ways: Ways,
    bridge_granularity: Granularity,
    /// The bridges that have decoders.
    routes: [Option<Route>; MAX_DEVICES],
}

/// A device of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Member {
    /// The position in the caller's list.
    device: usize,
    /// The number of the decoder.
    n: u32,
    /// The first byte of the device's memory.
    start: u64,
    /// The bytes between that of the decoder before and `start`.
    skip: u64,
}

/// A bridge of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Route {
    /// The position in the caller's list.
    bridge: usize,
    /// The number of the decoder.
    n: u32,
    ports: [u8; MAX_PORTS],
}

impl Plan {
    /// Plans how addresses of `window` alternate between all of `devices`, of which there are 1, 2, 4, 8
    /// or 16. Uses the lowest addresses that lie after those of all decoders in use.
    ///
    /// # Errors
    /// The devices cannot share the window so. The error names what prevents it.
    pub fn new(
        window: &Window,
        bridges: &[Bridge],
        devices: &[Device],
        wish: Wish,
    ) -> Result<Plan, PlanError> {
        let count = devices.len();
        let ways = Ways::new(count).filter(|ways| ways.bits().is_some());
        let ways = ways.ok_or(PlanError::Devices(count))?;
        check(window, wish)?;
        let targets = window.targets();
        if let Some(device) = devices.iter().position(|device| !targets.contains(&device.bridge)) {
            return Err(PlanError::OutsideWindow { device });
        }
        let wanted = count / targets.len();
        let interleave = Interleave::choose(window, bridges, devices, wanted, wish)?;

        let range = addresses(window, bridges, devices, wish)?;
        let mut members = [Member { device: 0, n: 0, start: 0, skip: 0 }; MAX_DEVICES];
        for (target, &uid) in targets.iter().enumerate() {
            for (port, (at, device)) in below(devices, uid).enumerate() {
                let n = free_decoder(Component::Device(at), device.decoders)?;
                let mapped_end = device.decoders.memory_end;
                let start = device.memory.start.max(mapped_end);
                // What a decoder leaves out is whole units, too.
                let start = start.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX);
                let free = Bytes(device.memory.end.saturating_sub(start));
                if free < wish.len {
                    return Err(PlanError::DeviceFull { device: at, free });
                }
                members[interleave.member(target, port)] =
                    Member { device: at, n, start, skip: start - mapped_end };
            }
        }
        let mut routes = [None; MAX_DEVICES];
        for (route, &uid) in routes.iter_mut().zip(targets) {
            let (at, bridge) = bridge(bridges, uid)?;
            let Some(decoders) = bridge.decoders else { continue };
            let n = free_decoder(Component::Bridge(at), decoders)?;
            let mut ports = [0; MAX_PORTS];
            for (port, (_, device)) in ports.iter_mut().zip(below(devices, uid)) {
                *port = device.port;
            }
            *route = Some(Route { bridge: at, n, ports });
        }
        let bridge_ways = Ways::new(wanted).ok_or(PlanError::Interleave)?;
        let (granularity, bridge_granularity) = (interleave.device, interleave.bridge);
        Ok(Plan { range, ways, granularity, members, bridge_ways, bridge_granularity, routes })
    }

    /// Returns the addresses of the host.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// Returns the decoders in the order in which to commit them: no address is routed to a device
    /// before the device decodes it. They are freed in reverse order.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = Step> {
        let devices = self.members[..self.ways.count()].iter().map(|member| {
            let destination = Destination::Memory { skip: member.skip };
            let (ways, granularity) = (self.ways, self.granularity);
            let setting = Setting { range: self.range, ways, granularity, destination };
            Step { component: Component::Device(member.device), n: member.n, setting }
        });
        let bridges = self.routes.iter().flatten().map(|route| {
            let destination = Destination::Ports(route.ports);
            let (ways, granularity) = (self.bridge_ways, self.bridge_granularity);
            let setting = Setting { range: self.range, ways, granularity, destination };
            Step { component: Component::Bridge(route.bridge), n: route.n, setting }
        });
        devices.chain(bridges)
    }

    /// Returns the device to which an address of the host goes, and the address in the device. Returns
    /// `None` if the address is not in the range.
    #[must_use]
    pub fn locate(&self, address: u64) -> Option<(usize, u64)> {
        let offset = address.checked_sub(self.range.start().phys_addr())?;
        if offset >= self.range.bytes().0 {
            return None;
        }
        let (shift, bits) = (self.granularity.shift(), self.ways.bits()?);
        let member = usize::try_from(offset >> shift & ((1 << bits) - 1)).ok()?;
        let Member { device, start, .. } = self.members[member];
        let low = offset & ((1 << shift) - 1);
        Some((device, start + (offset >> (shift + bits) << shift | low)))
    }

    /// Returns the addresses of the host for an extent of a device, for example of dynamic capacity.
    /// Returns `None` if the plan does not route all of it, if it is not whole frames, or if addresses
    /// alternate between devices, so that no range of addresses is the extent's alone.
    #[must_use]
    pub fn range_of(&self, device: usize, extent: Extent) -> Option<PfnRange> {
        if self.ways != Ways::ONE {
            return None;
        }
        let start = self.address(device, extent.start)?;
        let range = PfnRange::from_bytes(start, Bytes(extent.len)).ok()?;
        self.range.covers(range).then_some(range)
    }

    /// Returns the address of the host that goes to this address of a device. Returns `None` if the plan
    /// routes no address there.
    #[must_use]
    pub fn address(&self, device: usize, device_address: u64) -> Option<u64> {
        let (shift, bits) = (self.granularity.shift(), self.ways.bits()?);
        let mut members = self.members[..self.ways.count()].iter();
        let member = members.position(|member| member.device == device)?;
        let offset = device_address.checked_sub(self.members[member].start)?;
        if offset >= self.range.bytes().0 >> bits {
            return None;
        }
        let low = offset & ((1 << shift) - 1);
        let offset = (offset >> shift << bits | member as u64) << shift | low;
        Some(self.range.start().phys_addr() + offset)
    }
}

/// Returns the number of the component's first free decoder.
fn free_decoder(component: Component, decoders: Occupancy) -> Result<u32, PlanError> {
    if decoders.committed >= decoders.capability.count {
        return Err(PlanError::NoFreeDecoder(component));
    }
    Ok(decoders.committed)
}

/// By which address bits the window, the bridges and the devices alternate. These are consecutive:
/// the window has the lower ones if `window_first`, else the bridges have them.
struct Interleave {
    device: Granularity,
    bridge: Granularity,
    window_first: bool,
    window_bits: u8,
    bridge_bits: u8,
}

impl Interleave {
    /// Chooses bits that all components support. Each bridge has `wanted` devices.
    fn choose(
        window: &Window,
        bridges: &[Bridge],
        devices: &[Device],
        wanted: usize,
        wish: Wish,
    ) -> Result<Self, PlanError> {
        for &uid in window.targets() {
            let (_, bridge) = bridge(bridges, uid)?;
            let found = below(devices, uid).count();
            if found != wanted || found == 0 {
                return Err(PlanError::Uneven { uid, found, wanted });
            }
            for (device, second) in below(devices, uid) {
                if below(&devices[..device], uid).any(|(_, first)| first.port == second.port) {
                    return Err(PlanError::SharedPort { device });
                }
            }
            if bridge.decoders.is_none() && wanted > 1 {
                return Err(PlanError::NoDecoders { uid });
            }
        }
        let bits =
            |ways: Option<Ways>| ways.and_then(Ways::bits).ok_or(PlanError::WindowInterleave);
        let window_bits = bits(Some(window.ways))?;
        let bridge_bits = bits(Ways::new(wanted))?;
        let outer = if window_bits == 0 { wish.granularity } else { window.granularity };
        let at = |encoding: Option<u8>| encoding.and_then(Granularity::from_encoding);
        let above = at(outer.encoding().checked_add(window_bits));
        let below = at(outer.encoding().checked_sub(bridge_bits));
        let choices = [
            // The bits do not matter where nothing alternates.
            (bridge_bits == 0).then_some((outer, outer, true)),
            above.map(|bridge| (outer, bridge, true)),
            below.map(|bridge| (bridge, bridge, false)),
        ];
        let works = |&(device, bridge, _): &(Granularity, Granularity, bool)| {
            let (all, ports) = (Ways::new(devices.len()), Ways::new(wanted));
            let (Some(all), Some(ports)) = (all, ports) else { return false };
            let mut used = bridges.iter().filter(|bridge| window.targets().contains(&bridge.uid));
            devices.iter().all(|one| one.decoders.capability.supports(all, device))
                && used.all(|one| {
                    one.decoders.is_none_or(|Occupancy { capability, .. }| {
                        capability.supports(ports, bridge) && wanted <= capability.targets
                    })
                })
        };
        let (device, bridge, window_first) =
            choices.into_iter().flatten().find(works).ok_or(PlanError::Interleave)?;
        Ok(Interleave { device, bridge, window_first, window_bits, bridge_bits })
    }

    /// Returns the position, in the order in which addresses alternate, of the device below a port.
    fn member(&self, target: usize, port: usize) -> usize {
        if self.window_first {
            target | port << self.window_bits
        } else {
            port | target << self.bridge_bits
        }
    }
}

fn check(window: &Window, wish: Wish) -> Result<(), PlanError> {
    if wish.len == Bytes::ZERO || !wish.len.0.is_multiple_of(UNIT) {
        return Err(PlanError::Len(wish.len));
    }
    let restrictions = window.restrictions;
    let allows = restrictions.contains(Restrictions::HOST_ONLY) && restrictions.contains(wish.kind);
    if !allows || restrictions.contains(Restrictions::FIXED) {
        return Err(PlanError::Restrictions(restrictions));
    }
    let is_xor = window.arithmetic == Arithmetic::Xor && window.ways != Ways::ONE;
    if is_xor || window.ways.bits().is_none() {
        return Err(PlanError::WindowInterleave);
    }
    let targets = window.targets();
    match targets.iter().enumerate().find(|&(n, uid)| targets[..n].contains(uid)) {
        Some((_, &uid)) => Err(PlanError::RepeatedTarget { uid }),
        None => Ok(()),
    }
}

/// Returns the lowest addresses after those of all decoders that the plan uses.
fn addresses(
    window: &Window,
    bridges: &[Bridge],
    devices: &[Device],
    wish: Wish,
) -> Result<PfnRange, PlanError> {
    let mut start = window.range.start();
    let used = bridges.iter().filter(|bridge| window.targets().contains(&bridge.uid));
    let ends =
        used.filter_map(|bridge| bridge.decoders).chain(devices.iter().map(|one| one.decoders));
    for occupancy in ends {
        start = start.max(occupancy.end);
    }
    let wanted = Bytes(wish.len.0.saturating_mul(devices.len() as u64));
    let full = PlanError::WindowFull { window: window.range, wanted };
    let range = PfnRange::with_len(start, wanted.frames());
    range.filter(|range| window.range.covers(*range)).ok_or(full)
}

/// Returns the devices below a bridge, with their positions.
fn below(devices: &[Device], uid: u32) -> impl Iterator<Item = (usize, &Device)> {
    devices.iter().enumerate().filter(move |(_, device)| device.bridge == uid)
}

fn bridge(bridges: &[Bridge], uid: u32) -> Result<(usize, &Bridge), PlanError> {
    let mut found = bridges.iter().enumerate().filter(|(_, bridge)| bridge.uid == uid);
    found.next().ok_or(PlanError::UnknownBridge { uid })
}
