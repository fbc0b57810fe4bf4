//! Runs operations on arbitrary tables and ranges: no operation panics, only tables of the kernel
//! are read, and all reports lie in the range. The fuzzer runs the same harness.
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
    let all = |op, how| [op, how, 47, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for op in 4..8 {
        for how in 0..16 {
            let links = (0..8).map(|index| link(0, index)).chain([link(1, 0), link(2, 1)]);
            let script = links.chain([all(op, how), all(op, how)]).flatten();
            script::run(&[0].into_iter().chain(script).collect::<Vec<u8>>());
        }
    }
}
