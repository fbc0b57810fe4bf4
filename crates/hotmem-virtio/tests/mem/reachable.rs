//! Tests a memory manager that can use only a part of the device's region.

use crate::device::Device;
use crate::setup::Setup;
use core::time::Duration;
use hotmem::{Bytes, PfnRange};
use hotmem_virtio::mem::{Leftover, Pending, Reachable, Reason, Status, Step};

const MIB: u64 = 1 << 20;
const BASE: u64 = 4 << 30;
const REGION: u64 = 256 * MIB;
const REASON: Reason = Reason::Other("not ours");

/// Makes a setup in which the memory manager uses the region without the first 32 MiB and the last
/// 64 MiB.
fn setup(block: u64) -> Setup {
    let mut setup = Setup::new(Device::new(block, BASE, REGION));
    let range = PfnRange::from_bytes(BASE + 32 * MIB, Bytes(160 * MIB)).unwrap();
    setup.memory.reachable = Some(Reachable { range, obstacle: Some(REASON) });
    setup
}

fn limited(requested: u64, reachable: u64) -> Status {
    let (requested, reachable) = (Bytes(requested), Bytes(reachable));
    Status::Pending(Pending::Region { requested, reachable, reason: REASON })
}

#[test]
fn the_reachable_part_is_plugged_and_unplugged() {
    for block in [4096, 256 << 10, 2 * MIB, 32 * MIB] {
        for preplugged in [vec![], vec![0], vec![REGION / block / 2, REGION / block - 1]] {
            for leftover in [Leftover::Adopt, Leftover::UnplugAll] {
                let mut setup = setup(block);
                setup.driver.set_leftover(leftover);
                for &number in &preplugged {
                    setup.device.preplug(number as usize);
                }
                for (requested, plugged) in
                    [(64, 64), (160, 160), (192, 160), (256, 160), (32, 32), (0, 0), (256, 160)]
                {
                    setup.device.resize(requested * MIB);
                    assert_eq!(setup.poll(), Step::Idle);
                    let expected = match requested == plugged {
                        true => Status::Reached,
                        false => limited(requested * MIB, plugged * MIB),
                    };
                    assert_eq!(setup.driver.status(), expected, "{block} {preplugged:?}");
                    assert_eq!(setup.driver.plugged(), Bytes(plugged * MIB));
                    assert_eq!(setup.device.config.plugged_size, plugged * MIB);
                    assert_eq!(setup.memory.plugged_units() * setup.unit_bytes(), plugged * MIB);
                }
            }
        }
    }
}

/// A device whose usable region has room for no more than the requested size.
#[test]
fn a_usable_region_that_is_partly_unreachable_is_the_reason() {
    let mut setup = setup(2 * MIB);
    setup.device.config.requested_size = 64 * MIB;
    setup.device.config.usable_region_size = 64 * MIB;
    setup.run(Duration::from_secs(60));
    assert_eq!(setup.driver.status(), limited(64 * MIB, 32 * MIB));
    assert_eq!(setup.driver.plugged(), Bytes(32 * MIB));
    // The device itself is the reason if its usable region is too small.
    setup.device.config.requested_size = 128 * MIB;
    setup.run(Duration::from_secs(60));
    assert_eq!(setup.driver.status(), Status::Pending(Pending::UsableRegion));
}
