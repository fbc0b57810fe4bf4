//! Makes arbitrary calls of the C interface.

mod calls;
#[allow(dead_code)]
#[path = "../c_api/machine.rs"]
mod machine;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_calls_break_the_machine(script in prop::collection::vec(any::<u8>(), 0..3000)) {
        calls::play(&script);
    }
}
