//! Tests that arbitrary calls of the C interface cause no panic and no double allocation.

mod calls;
#[allow(dead_code)]
#[path = "../c_api/machine.rs"]
mod machine;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn arbitrary_calls_keep_the_machine_consistent(script in prop::collection::vec(any::<u8>(), 0..3000)) {
        calls::run_script(&script);
    }
}
