//! Tests that the processors in a table of the MultiProcessor Specification are found, and that
//! arbitrary tables are read correctly.

mod script;

use proptest::prelude::*;
use script::{BASE_MEMORY, BIOS, Firmware};

#[test]
fn the_enabled_processors_are_found_in_both_areas() {
    let entries = [processor(3, 1), processor(4, 0), vec![2; 8], processor(9, 3)].concat();
    for pointer_at in [BASE_MEMORY, BASE_MEMORY + 0x3f0, BIOS, BIOS + 0xfff0] {
        let firmware = Firmware::with_table(pointer_at, BIOS + 0x100, &entries);
        assert_eq!(firmware.apic_ids(), Some(vec![3, 9]), "{pointer_at:#x}");
    }
}

#[test]
fn a_table_that_is_cut_or_has_unknown_entries_ends_there() {
    let cut = [processor(1, 1), processor(2, 1)[..19].to_vec()].concat();
    let unknown = [processor(1, 1), vec![5; 8], processor(2, 1)].concat();
    for entries in [cut, unknown] {
        let firmware = Firmware::with_table(BIOS, BIOS + 0x100, &entries);
        assert_eq!(firmware.apic_ids(), Some(vec![1]));
    }
}

#[test]
fn a_table_with_a_wrong_sum_or_out_of_reach_is_no_table() {
    let mut firmware = Firmware::with_table(BIOS, BIOS + 0x100, &processor(1, 1));
    firmware.write(BIOS + 0x100 + 44 + 1, &[2]);
    assert_eq!(firmware.apic_ids(), None);
    let firmware = Firmware::with_table(BIOS, 0xffff_fff0, &processor(1, 1));
    assert_eq!(firmware.apic_ids(), None);
    assert_eq!(Firmware::empty().apic_ids(), None);
}

fn processor(apic_id: u8, flags: u8) -> Vec<u8> {
    let mut entry = vec![0, apic_id, 0x14, flags];
    entry.resize(20, 0xee);
    entry
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HOTMEM_DEEP").is_some() {
        20_000
    } else {
        300
    }))]

    #[test]
    fn arbitrary_tables_are_read_correctly(script in prop::collection::vec(any::<u8>(), 0..200)) {
        script::run(&script);
    }

    /// Small numbers yield entries of known types.
    #[test]
    fn tables_of_known_entries_are_read_correctly(script in prop::collection::vec(0_u8..7, 0..200)) {
        script::run(&script);
    }
}
