//! Tables of persistent memory that may say anything.

mod script;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HOTMEM_DEEP").is_some() {
        200_000
    } else {
        2000
    }))]

    #[test]
    fn what_is_read_holds(script in prop::collection::vec(any::<u8>(), 0..200)) {
        script::run(&script);
    }

    /// Small numbers are ranges that touch each other.
    #[test]
    fn and_so_where_ranges_are_close(script in prop::collection::vec(0_u8..12, 0..160)) {
        script::run(&script);
    }
}
