//! Tests the division of devices that hold their own map.

use super::*;
use hotmem_addr::Bytes;
use hotmem_addr::geometry::PAGEBLOCK_FRAMES;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_altmap_divides_a_device_into_map_and_data(
        start in 0..1_u64 << 39, frames in 0..1_u64 << 24, reserved in 0..3_u64,
        order in prop::sample::select(vec![0, 9, 18]), share in any::<bool>(),
    ) {
        let kernel = Kernel::<8, 1, false>::default();
        let compound = Compound::new(order).unwrap();
        let memmap = Memmap::new(Kind::DeviceDax, compound, &kernel);
        let memmap = if share { memmap.sharing_tails().unwrap_or(memmap) } else { memmap };
        let (device, layout) = (range(start, frames), memmap.layout());
        let align = compound.frames().max(PAGEBLOCK_FRAMES as u64);
        match Altmap::carve(device, reserved, layout) {
            Ok(altmap) => {
                let (map, data) = (altmap.map(), altmap.data());
                prop_assert_eq!(map.start().number(), start + reserved);
                prop_assert!(device.covers(map) && device.covers(data) && map.end() <= data.start());
                prop_assert!(data.is_aligned(align) && !data.is_empty());
                prop_assert!(layout.frames_needed(data) <= map.frames());
                let own_frames = layout.pages(data).filter(|page| page.backing == Backing::OwnFrame);
                if frames < 1 << 18 {
                    prop_assert_eq!(own_frames.count() as u64, layout.frames_needed(data));
                }
                // Alignment wastes less than one compound or pageblock at each end.
                let wasted = frames - reserved - map.frames() - data.frames();
                prop_assert!(wasted < 2 * align);
            }
            Err(AltmapError::DeviceTooSmall { map_frames, .. }) => {
                prop_assert!(frames < reserved + map_frames + 2 * align);
            }
        }
    }
}

#[test]
fn the_map_of_a_device_of_100_gb_has_the_documented_size() {
    let kernel = Kernel::<8, 1, false>::default();
    let device = range(1 << 24, Bytes::gib(100).frames());
    let unshared = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &kernel);
    let map = Altmap::carve(device, 2, unshared.layout()).unwrap().map();
    assert_eq!(map.bytes(), Bytes::mib(1600));
    let sharing = unshared.sharing_tails().unwrap();
    let map = Altmap::carve(device, 2, sharing.layout()).unwrap().map();
    assert_eq!(map.bytes(), Bytes::mib(200));
    let refused = Altmap::carve(range(0, 512 + 7), 0, unshared.layout()).unwrap_err();
    assert_eq!(
        std::format!("{refused}"),
        "0x0000000000000000-0x0000000000206fff has no room for \
        data behind 9 frames of descriptors"
    );
}
