//! Tests that arbitrary calls of the C interface cause no panic and no double allocation.

mod calls;
mod documented;
#[allow(dead_code)]
#[path = "../c_api/instance.rs"]
mod instance;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn arbitrary_calls_keep_the_instance_consistent(script in prop::collection::vec(any::<u8>(), 0..3000)) {
        calls::run_script(&script);
    }
}
