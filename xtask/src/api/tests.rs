//! Tests of the list of the interface.

use super::*;

fn api(root: &str, module: &str) -> Result<Api, String> {
    let [root, module] = [root, module].map(|text| syn::parse_file(text).unwrap().items);
    let all_items: Vec<&Item> = root.iter().chain(&module).collect();
    Api::new(&root, |name| (name == "inner").then_some(&module), &all_items)
}

#[test]
fn reexports_of_the_root_are_listed_with_their_functions() {
    let root = "pub mod inner; mod hidden; pub use hidden::{A, b}; pub use inner::C as C;";
    let module = "pub struct A; pub struct C; pub(crate) struct D; pub fn b() {} \
                  impl A { pub fn a(&self) {} fn own(&self) {} made! { pub fn new() {} } } \
                  impl Clone for A { fn clone(&self) -> A { A } } impl D { pub fn d() {} }";
    let api = api(root, module).unwrap();
    let items: Vec<_> = api.items.keys().map(String::as_str).collect();
    assert_eq!(items, ["A", "C", "inner", "inner::A", "inner::C"]);
    let functions: Vec<_> = api.functions.keys().map(String::as_str).collect();
    assert_eq!(functions, ["A::a", "A::new", "b", "inner::b"]);
}

#[test]
fn a_signature_is_one_line_with_the_path_of_the_function() {
    let module = "pub struct A; pub trait T { fn t(&self, _: u8) -> u8 { 0 } fn u(); } \
                  impl A { pub const unsafe fn a<T: Copy>(\n    &self,\n    one: T,\n) -> T \
                  where T: Clone { one } made! { pub fn new(a: u8) -> A { A } } }";
    let list = api("pub use hidden::{A, T};", module).unwrap().list();
    let lines: Vec<_> = list.lines().collect();
    let functions = [
        "2 functions",
        "const unsafe fn A::a<T: Copy>(&self, one: T) -> T where T: Clone",
        "fn A::new(a: u8) -> A",
        "2 functions of traits",
        "fn T::t(&self, _: u8) -> u8",
        "fn T::u();",
    ];
    assert_eq!(lines[3..], functions);
}

#[test]
fn items_of_the_counting_build_are_not_listed() {
    let root = "#[cfg(hotmem_atomics = \"counted\")] pub use elsewhere::counted; \
                #[cfg(not(loom))] pub use hidden::A;";
    let api = api(root, "pub struct A;").unwrap();
    assert_eq!(api.items.into_keys().collect::<Vec<_>>(), ["A"]);
}

#[test]
fn items_for_tests_and_benches_are_not_listed() {
    let root = "pub use hidden::A; #[cfg(feature = \"internals\")] pub use hidden::B;";
    let module = "pub struct A; impl A { #[cfg(feature = \"probes\")] pub fn probes() {} \
                  #[cfg(feature = \"internals\")] pub fn isolate() {} \
                  #[cfg(feature = \"std\")] pub fn new() {} } \
                  #[cfg(feature = \"internals\")] impl A { pub fn tables() {} } \
                  pub struct B; impl B { pub fn b() {} }";
    let api = api(root, module).unwrap();
    assert_eq!(api.items.into_keys().collect::<Vec<_>>(), ["A"]);
    assert_eq!(api.functions.into_keys().collect::<Vec<_>>(), ["A::new"]);
}

#[test]
fn a_path_that_cannot_be_resolved_is_an_error() {
    assert!(api("pub use elsewhere::*;", "").is_err());
    assert!(api("pub mod missing;", "").is_err());
}
