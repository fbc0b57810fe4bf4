//! Tests that arbitrary tables of persistent memory are read correctly.

mod script;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HOTMEM_DEEP").is_some() {
        200_000
    } else {
        2000
    }))]

    #[test]
    fn arbitrary_tables_are_read_correctly(script in prop::collection::vec(any::<u8>(), 0..200)) {
        script::run(&script);
    }

    /// Small numbers yield ranges that are close to each other.
    #[test]
    fn tables_with_close_ranges_are_read_correctly(script in prop::collection::vec(0_u8..12, 0..160)) {
        script::run(&script);
    }
}
