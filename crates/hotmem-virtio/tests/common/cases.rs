//! How much is left to chance.

use proptest::prelude::ProptestConfig;

/// This many cases, or `PROPTEST_CASES`, or many more where time does not matter. Failures print
/// themselves; no files.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let is_set = |name| std::env::var_os(name).is_some();
    let cases = match () {
        () if is_set("PROPTEST_CASES") => config.cases,
        () if is_set("HOTMEM_DEEP") => 20 * cases,
        () => cases,
    };
    ProptestConfig { cases, ..config }
}
