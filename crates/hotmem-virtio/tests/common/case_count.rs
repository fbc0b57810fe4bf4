//! Configures the number of random cases.

use proptest::prelude::ProptestConfig;

/// Configures `cases` random cases, or the number in `PROPTEST_CASES`, or many more cases in deep
/// tests. Failures are printed and not written to files.
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
