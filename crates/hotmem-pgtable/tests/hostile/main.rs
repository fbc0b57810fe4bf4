//! Runs operations on arbitrary tables and ranges. Checks that no operation panics, that operations
//! read only tables of the kernel, and that they pass only pages in the range to the owner. The
//! fuzz target uses `script.rs`.
#![cfg(not(loom))]

mod script;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HOTMEM_DEEP").is_some() {
        20_000
    } else {
        1000
    }))]
    #[test]
    fn operations_on_arbitrary_tables_report_only_pages_in_the_range(
        script in prop::collection::vec(any::<u8>(), 0..600)
    ) {
        script::run(&script);
    }
}

#[test]
fn operations_on_tables_that_point_to_themselves_end() {
    let link = |table, index| [2, table, index, table, 0, 0, 0, 0, 0, 0, 0, 1];
    let all = |op, options| [op, options, 47, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for op in 4..8 {
        for options in 0..16 {
            let links = (0..8).map(|index| link(0, index)).chain([link(1, 0), link(2, 1)]);
            let script = links.chain([all(op, options), all(op, options)]).flatten();
            script::run(&[0].into_iter().chain(script).collect::<Vec<u8>>());
        }
    }
}
