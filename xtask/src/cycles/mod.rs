//! Finds files of a crate that use each other in a cycle, and directories whose files do. A file of a
//! cycle cannot be read, tested or moved without the other files.
//!
//! A file uses the files that define the names in its paths. If a name leads to a file that only
//! re-exports it, the file with the definition counts. Calls of methods do not count, because an
//! `impl` block may be in another file than its type.
//!
//! A directory counts as one part of the directory around it. So a file that uses one file of a
//! directory, while another file of that directory uses it, is in a cycle with the directory.

mod graph;
mod source;

use crate::step::root;
use graph::Graph;
use std::io;

/// Returns the cycles that files of a crate form, a message for each crate.
pub(crate) fn problems() -> io::Result<Vec<String>> {
    let crates = root().join("crates").read_dir()?.flatten();
    let crates = crates.map(|entry| format!("crates/{}", entry.file_name().to_string_lossy()));
    let other_packages =
        ["guest", "guest-pseries", "guest-xen", "lab", "ports/ostd", "time-limit", "xtask"];
    let mut problems = Vec::new();
    for name in crates.chain(other_packages.map(str::to_owned)) {
        match Graph::of_crate(&root().join(&name).join("src")) {
            Ok(graph) => problems.extend(problem(&name, &graph)),
            Err(error) => problems.push(format!("{name}: its files cannot be read: {error}")),
        }
    }
    Ok(problems)
}

fn problem(name: &str, graph: &Graph) -> Option<String> {
    let cycles = [graph, &graph.of_parts()].map(format_cycles);
    let cycles = cycles.into_iter().find(|cycles| !cycles.is_empty())?;
    Some(format!("{name}: files use each other in cycles{cycles}"))
}

/// Formats the cycles of a graph: a line for each file or part, with those of the same cycle that it
/// uses.
fn format_cycles(graph: &Graph) -> String {
    let line = |module: &Vec<String>, cycle: &[&Vec<String>]| {
        let used = graph.files_used_by(module).filter(|used| cycle.contains(used));
        let used: Vec<String> = used.map(|module| module_name(module)).collect();
        format!("\n  {} uses {}", module_name(module), used.join(", "))
    };
    let lines = |cycle: &Vec<&Vec<String>>| -> String {
        cycle.iter().map(|module| line(module, cycle)).collect()
    };
    graph.cycles().iter().map(lines).collect()
}

fn module_name(module: &[String]) -> String {
    if module.is_empty() { "the crate's root".to_owned() } else { module.join("::") }
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
        let graph = Graph::new(files.iter().map(|(name, text)| (module(name), *text))).unwrap();
        let names = |graph: &Graph| -> Vec<Vec<String>> {
            let cycles = graph.cycles().into_iter();
            cycles.map(|cycle| cycle.iter().map(|module| module.join("/")).collect()).collect()
        };
        let cycles = names(&graph);
        if cycles.is_empty() { names(&graph.of_parts()) } else { cycles }
    }

    const ROOT: (&str, &str) = ("", "mod a; mod b; pub use a::A; pub use b::B;");

    #[test]
    fn this_repository_has_no_cycles() {
        assert_eq!(problems().unwrap(), [""; 0]);
    }

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
            "// crate::a::A\n/* use crate::a::A; /* */ crate::a */ \n/// [`A`](crate::a::A)\nstruct B;",
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
    fn a_file_and_a_directory_whose_files_use_each_other_are_a_cycle() {
        let files = |outcome| {
            [
                ("", "mod calls; mod exchange; mod request;"),
                ("calls", "use crate::request::Refused; pub trait Calls {}"),
                ("exchange", "use crate::calls::Calls; pub struct Exchange;"),
                ("request", "mod acquire; mod outcome; pub use outcome::Refused;"),
                ("request/acquire", "use crate::exchange::Exchange;"),
                ("request/outcome", outcome),
            ]
        };
        let expected = [["calls", "exchange", "request"]];
        assert_eq!(cycles(&files("pub struct Refused;")), expected);
        // The directory's own file may use the directory's other files, and be used by them.
        let parts = [("", "mod a;"), ("a", "mod b; pub use b::B;"), ("a/b", "pub struct B;")];
        assert!(cycles(&parts).is_empty());
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
