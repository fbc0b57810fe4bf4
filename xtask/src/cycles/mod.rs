//! Finds files of a crate that use each other in a cycle. A file of a cycle cannot be read, tested
//! or moved without the other files.
//!
//! A file uses the files that define the names in its paths. If a name leads to a file that only
//! re-exports it, the file with the definition counts. Calls of methods do not count, because an
//! `impl` block may be in another file than its type.

mod graph;
mod source;

use crate::{step::root, steps::Steps};
use graph::Graph;

/// Fails if files of a crate form a cycle.
pub(crate) fn check(steps: &mut Steps) {
    let crates = root().join("crates").read_dir().into_iter().flatten().flatten();
    let crates = crates.map(|entry| format!("crates/{}", entry.file_name().to_string_lossy()));
    let other_packages =
        ["guest", "guest-pseries", "guest-xen", "lab", "ports/ostd", "time-limit", "xtask"];
    let other_packages = other_packages.map(str::to_owned);
    for name in crates.chain(other_packages) {
        match Graph::of_crate(&root().join(&name).join("src")) {
            Ok(graph) => check_crate(steps, &name, &graph),
            Err(error) => steps.fail(format!("{name}: its files cannot be read: {error}")),
        }
    }
}

fn check_crate(steps: &mut Steps, name: &str, graph: &Graph) {
    let cycles = graph.cycles();
    let files: usize = cycles.iter().map(Vec::len).sum();
    if files > 0 {
        let cycles = format_cycles(graph, &cycles);
        steps.fail(format!("{name}: {files} files use each other in cycles{cycles}"));
    }
}

/// Formats the cycles: a line for each file, with the files of the same cycle that it uses.
fn format_cycles(graph: &Graph, cycles: &[Vec<&Vec<String>>]) -> String {
    let module_name = |module: &Vec<String>| {
        if module.is_empty() { "the crate's root".to_owned() } else { module.join("::") }
    };
    let mut text = String::new();
    for cycle in cycles {
        for module in cycle {
            let used: Vec<String> = graph
                .files_used_by(module)
                .filter(|used| cycle.contains(used))
                .map(module_name)
                .collect();
            text += &format!("\n  {} uses {}", module_name(module), used.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the cycles of a crate with these files.
    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let module = |name: &str| match name {
            "" => Vec::new(),
            name => name.split('/').map(str::to_owned).collect(),
        };
        let graph = Graph::new(files.iter().map(|(name, text)| (module(name), *text)));
        let cycles = graph.cycles();
        cycles.iter().map(|cycle| cycle.iter().map(|module| module.join("/")).collect()).collect()
    }

    const ROOT: (&str, &str) = ("", "mod a; mod b; pub use a::A; pub use b::B;");

    #[test]
    fn files_that_use_each_other_are_a_cycle() {
        let a = ("a", "use crate::b::B; pub struct A;");
        for b in [
            "use crate::a::A; pub struct B;",
            "use super::{a::{self, A}}; pub struct B;",
            "pub struct B; fn f() -> crate::a::A { super::a::new() }",
            "pub struct B; mod inner { fn f() { super::super::a::new() } }",
            "use crate::a; pub struct B; fn f() { a::new() }",
        ] {
            assert_eq!(cycles(&[ROOT, a, ("b", b)]), [["a", "b"]], "{b}");
        }
    }

    #[test]
    fn a_file_uses_the_file_that_defines_a_name_and_not_the_file_that_reexports_it() {
        let (a, b) = (("a", "use crate::B;"), ("b", "pub struct B;"));
        assert!(cycles(&[ROOT, a, b]).is_empty());
        assert_eq!(cycles(&[ROOT, a, ("b", "use crate::A; pub struct B;")]), [["a", "b"]]);
        let root = ("", "mod a; mod b; pub use b::B; pub struct Own; fn f() -> B { a::f() }");
        assert_eq!(cycles(&[root, ("a", "use crate::Own;"), b]), [["", "a"]]);
        assert_eq!(cycles(&[root, ("a", ""), ("b", "use super::Own;")]), [["", "b"]]);
        let root = ("", "mod b; pub use b::B; pub struct Own;");
        assert!(cycles(&[root, ("b", "use super::Own;")]).is_empty(), "`B` is only re-exported");
    }

    #[test]
    fn comments_strings_and_test_modules_do_not_count() {
        let a = ("a", "use crate::b::B;");
        for b in [
            "// crate::a::A\n/* use crate::a::A; /* */ crate::a */ /// [`A`](crate::a::A)",
            "const TEXT: &str = \"use crate::a::A; \\\" crate::a\"; const C: char = '\"';",
            "const TEXT: &str = r#\"\" crate::a::A\"#; fn f<'a>(_: &'a str) {}",
            "#[cfg(test)] mod tests { use crate::a::A; fn f() { { crate::a::f() } } } struct B;",
            "#[cfg(all(test, not(loom)))]\n#[allow(unused)]\nmod tests { use crate::a::A; }",
            "pub(in crate::a) struct B; mod inner { use super::B; fn f(_: inner::a::A) {} }",
            "use other::a::A; use std::{fmt, a::A};",
        ] {
            assert!(cycles(&[ROOT, a, ("b", b)]).is_empty(), "{b}");
        }
        let not_for_tests = "#[cfg(not(test))] mod inner { use crate::a::A; }";
        assert_eq!(cycles(&[ROOT, a, ("b", not_for_tests)]), [["a", "b"]]);
    }

    #[test]
    fn a_directory_and_its_files_can_be_a_cycle() {
        let parent = ("a", "mod c; use c::C; pub struct A;");
        let files = [("", "mod a; pub use a::A;"), parent, ("a/c", "use super::A; pub struct C;")];
        assert_eq!(cycles(&files), [["a", "a/c"]]);
        let child = ("a/c", "pub struct C;");
        assert!(cycles(&[files[0], parent, child]).is_empty());
    }

    #[test]
    fn a_path_through_an_imported_module_counts() {
        let files = |b| {
            [
                ("", "mod a; mod b;"),
                ("a", "pub mod c;"),
                ("a/c", "use crate::b::B; pub fn new() {}"),
                ("b", b),
            ]
        };
        for b in
            ["use crate::a; fn f() { a::c::new() }", "use crate::a as d; fn f() { d::c::new() }"]
        {
            assert_eq!(cycles(&files(b)), [["a/c", "b"]], "{b}");
        }
        assert!(cycles(&files("use other::a; fn f() { a::c::new() }")).is_empty());
    }

    #[test]
    fn two_separate_cycles_are_reported_separately() {
        let files = [
            ("", "mod a; mod b; mod c; mod d; mod e;"),
            ("a", "use crate::b::B; use crate::c::C;"),
            ("b", "use crate::a::A;"),
            ("c", "use crate::d::D;"),
            ("d", "use crate::e::E;"),
            ("e", "use crate::c::C;"),
        ];
        assert_eq!(cycles(&files), [vec!["a", "b"], vec!["c", "d", "e"]]);
    }
}
