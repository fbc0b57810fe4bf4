//! Tests random operations on random address spaces.

use super::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_stopped_operation_reports_its_changes_and_changes_no_later_entry(
        pages in prop::collection::btree_map(0u64..1600, (0u64..8, any::<bool>()), 1..400),
        granted in prop::option::of(0u64..1600),
        refuse_after in prop::option::of(0u64..400),
        batch in prop::sample::select(vec![1usize, 7, 512]),
        protect in any::<bool>(),
    ) {
        let xen = Xen::new(64);
        let space = xen.new_space();
        let frame = xen.take_frame();
        let mut map = BTreeMap::new();
        for (page, (flags, is_kernel_data)) in pages {
            let flags = Flags::from_bits_retain((flags & 3) << 5 | flags >> 2 << 1);
            let page_flags = flags | Flags::PRESENT | Flags::USER;
            // An entry that is not present holds data of the kernel. Its address bits must not be those
            // of a frame: Xen takes such an entry for an attack by L1TF.
            let entry = match (granted == Some(page), is_kernel_data && !protect) {
                (true, _) => Entry::new(frame, page_flags | GRANT),
                (false, true) => Entry::from_bits(flags.bits() | 8),
                (false, false) => Entry::new(frame, page_flags),
            };
            xen.put(space, page * PAGE_BYTES, entry, false);
            map.insert(page * PAGE_BYTES, entry);
        }
        let granted = granted.filter(|page| map.contains_key(&(page * PAGE_BYTES)));
        xen.refuse_after.set(refuse_after);
        let mut owner = RecordingOwner::new(&xen);
        let config = Config { batch, ..with_grants() };
        let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
        let all = range(0, 1600 * PAGE_BYTES);
        let result = with_tables(&xen, space, config, |mut tables| {
            if protect {
                tables.protect(all, change, &mut owner)
            } else {
                tables.unmap_range(all, KEEP_TABLES, &mut owner)
            }
        });
        // The number of pages before the grant; `None` if there is no grant.
        let before_grant = granted.map(|page| map.range(..page * PAGE_BYTES).count() as u64);
        let entries_done = [before_grant, refuse_after].into_iter().flatten().min();
        let stop_address = entries_done
            .and_then(|count| map.keys().nth(usize::try_from(count).unwrap()).copied());
        match (result, stop_address) {
            (Ok(()), None) => {}
            (Err(stopped), Some(address)) => prop_assert_eq!(stopped.address, address),
            // All entries were changed, and the flush was refused.
            (Err(stopped), None) => {
                let flush = Fault::Refused { purpose: HypercallPurpose::Flush, errno: Errno::EINVAL };
                prop_assert_eq!(stopped.reason, StopReason::Mmu(flush));
                prop_assert_eq!((stopped.address, stopped.is_flushed), (1600 * PAGE_BYTES, false));
                prop_assert_eq!(refuse_after, Some(map.len() as u64));
            }
            unexpected => prop_assert!(false, "{:?}", unexpected),
        }
        let end = stop_address.unwrap_or(1600 * PAGE_BYTES);
        let unmapped: Vec<_> = map.range(..end).map(|(virt, entry)| (*virt, *entry)).collect();
        prop_assert_eq!(owner.pages(), if protect { Vec::new() } else { unmapped });
        for (virt, entry) in map {
            let found = xen.entry(xen.find(space, virt).unwrap());
            let expected = match (virt < end, protect) {
                (false, _) => entry,
                (true, true) => change.apply(entry),
                (true, false) => Entry::EMPTY,
            };
            let is_empty = expected.is_empty() && found.is_empty();
            prop_assert!(found == expected || is_empty, "{found:?} at {virt:#x}");
        }
    }

    #[test]
    fn page_tables_behave_like_a_map_from_addresses_to_entries(
        pages in prop::collection::btree_map(0u64..4096, (any::<bool>(), 0u64..4), 1..120),
        ranges in prop::collection::vec((0u64..4096, 1u64..2000, 0..3usize, 0..4u8), 1..8),
        pins_l1 in any::<bool>(),
        batch in prop::sample::select(vec![1usize, 7, 512]),
    ) {
        let xen = Xen::new(64);
        let space = xen.new_space();
        let frame = xen.take_frame();
        let mut map = BTreeMap::new();
        for (page, (writable, accessed_dirty)) in pages {
            let flags = Flags::from_bits_retain(accessed_dirty << 5 | u64::from(writable) << 1);
            let entry = Entry::new(frame, Flags::PRESENT | Flags::USER | flags);
            xen.put(space, page * PAGE_BYTES, entry, pins_l1);
            map.insert(page * PAGE_BYTES, entry);
        }
        let config = Config { pins_l1, batch, ..CONFIG };
        for (page, pages, tables, operation) in ranges {
            let (start, bytes) = (page * PAGE_BYTES, pages * PAGE_BYTES);
            let mut owner = RecordingOwner::new(&xen);
            if operation == 0 {
                let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
                let range = range(start, bytes);
                with_tables(&xen, space, config, |mut tables| tables.protect(range, change, &mut owner)).unwrap();
                for (_, entry) in map.range_mut(start..start + bytes) {
                    *entry = change.apply(*entry);
                }
            } else {
                let tables = [CoveredTables::Free, CoveredTables::Keep, CoveredTables::Cheapest][tables];
                let options =
                    Unmap { tables, ignore_accessed_and_dirty: operation == 1, is_dying: operation == 2 };
                let range = range(start, bytes);
                with_tables(&xen, space, config, |mut tables| tables.unmap_range(range, options, &mut owner)).unwrap();
                let unmapped: Vec<_> = map.range(start..start + bytes).map(|(v, e)| (*v, *e)).collect();
                map.retain(|virt, _| !(start..start + bytes).contains(virt));
                prop_assert_eq!(owner.pages(), unmapped);
            }
            for (virt, entry) in &map {
                prop_assert_eq!(xen.entry(xen.find(space, *virt).unwrap()), *entry);
            }
        }
        let mut owner = RecordingOwner::new(&xen);
        with_tables(&xen, space, config, |tables| tables.teardown(&mut owner)).unwrap();
        prop_assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
        // Only the direct map's table and the frame that all entries map are still in use.
        prop_assert_eq!(xen.used_frames(), 2);
    }
}
