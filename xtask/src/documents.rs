//! Checks of what documents say about the tree: the oldest version of Rust of each crate, dependencies to
//! copy, code of examples, figures that are copied from docs/benchmarks.md, and the container of
//! developers.

use crate::workspace::Package;

/// Returns the version of Rust that README.md names for a package: in the last cell of the row that has
/// the package, or in parentheses after its name.
fn rust_version_in<'t>(readme: &'t str, name: &str) -> Option<&'t str> {
    let quoted = format!("`{name}`");
    let in_text =
        readme.split(&format!("{quoted} (")).nth(1).and_then(|rest| rest.split(')').next());
    let in_row = || {
        let row = readme.lines().find(|line| line.starts_with('|') && line.contains(&quoted))?;
        row.trim_end_matches([' ', '|']).rsplit('|').next().map(str::trim)
    };
    in_text.or_else(in_row)
}

/// Returns the packages whose oldest version of Rust README.md does not name rightly.
fn wrong_rust_versions(readme: &str, packages: &[Package]) -> Vec<String> {
    let published = packages.iter().filter(|package| package.is_published);
    let wrong = published.filter(|package| {
        rust_version_in(readme, &package.name) != package.rust_version.as_deref()
    });
    wrong.map(|package| package.name.clone()).collect()
}

/// Returns the rows of the table of times in docs/frames.md whose figures docs/benchmarks.md does not
/// have in its row of the same name.
fn rows_that_differ<'t>(frames: &'t str, benchmarks: &str) -> Vec<&'t str> {
    let figures = |line: &&str| line.contains(" ns |");
    let differs = |row: &&str| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let name = format!("| {} |", cells.next().unwrap_or_default());
        let Some(measured) = benchmarks.lines().find(|line| line.starts_with(&name)) else {
            return true;
        };
        let figures = cells.filter(|cell| *cell != "–");
        figures.into_iter().any(|figure| !has_figure(measured, figure))
    };
    frames.lines().filter(figures).filter(differs).collect()
}

/// Returns whether a row of measurements has this median, such as `6.69 ns`.
fn has_figure(row: &str, figure: &str) -> bool {
    let (number, unit) = figure.split_once(' ').unwrap_or((figure, ""));
    // A median is followed by its spread in parentheses, and the unit is before or after that.
    row.match_indices(&format!(" {number} ")).any(|(at, found)| {
        let rest = &row[at + found.len()..];
        let after_spread = rest.split_once(") ").map(|(_, after)| after);
        rest.starts_with(unit) || after_spread.is_some_and(|after| after.starts_with(unit))
    })
}

/// Returns the pieces of code on a page that are not in the example that the page has named last. The
/// line `// …` separates two pieces.
fn code_that_differs(page: &str, example: impl Fn(&str) -> String) -> Vec<&str> {
    let blocks = page.match_indices("```rust\n").flat_map(|(at, fence)| {
        let name = page[..at].rsplit("`embedding/").next().and_then(|rest| rest.split('`').next());
        let example = example(name.unwrap_or_default());
        let code = page[at + fence.len()..].split("```").next().unwrap_or_default();
        code.split("// …\n").filter(move |piece| !example.contains(piece))
    });
    blocks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{step::root, workspace::members};
    use std::fs;

    /// The dependencies to copy are those with which the steps of the page are built.
    #[test]
    fn the_page_on_embedding_has_the_dependencies_of_its_kernels() {
        let read = |name| fs::read_to_string(root().join(name)).unwrap();
        let page = read("docs/embedding.md");
        let block =
            page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let table = |text: &str| text.parse::<toml::Table>().unwrap()["dependencies"].clone();
        let printed = table(block);
        let mut used = table(&read("embedding/Cargo.toml"));
        let used = used.as_table_mut().unwrap();
        // It reads the loader's tables, which each kernel does in its own way.
        used.remove("hotmem-guest").unwrap();
        for dependency in used.iter_mut().filter_map(|(_, value)| value.as_table_mut()) {
            if dependency.remove("path").is_some() {
                dependency.insert("git".into(), "https://github.com/hotmem/hotmem".into());
            }
        }
        assert_eq!(printed.as_table(), Some(&*used));
    }

    #[test]
    fn the_page_on_embedding_has_the_code_of_its_kernels() {
        let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
        let page = read("docs/embedding.md");
        assert!(page.contains("```rust\n"), "the page has code");
        let example = |name: &str| read(&format!("embedding/{name}"));
        assert_eq!(code_that_differs(&page, example), [""; 0]);
    }

    #[test]
    fn code_that_its_example_lacks_is_found() {
        let example = |name: &str| if name == "b.rs" { "1;\n2;\n3;\n" } else { "4;\n" }.to_owned();
        let named = ["a.rs", "b.rs"].map(|name| format!("`embedding/{name}` `c`\n")).concat();
        let page = |code| format!("{named}```rust\n{code}```\n");
        assert_eq!(code_that_differs(&page("1;\n// …\n3;\n"), example), [""; 0]);
        assert_eq!(code_that_differs(&page("2;\n// …\n4;\n"), example), ["4;\n"]);
    }

    /// A developer's container has the system and the packages of CI.
    #[test]
    fn the_dev_container_is_that_of_ci() {
        let read = |name| fs::read_to_string(root().join(name)).unwrap();
        let (ci, container) =
            (read(".github/workflows/ci.yml"), read(".devcontainer/devcontainer.json"));
        let image = ci.lines().find_map(|line| line.trim().strip_prefix("container: ")).unwrap();
        assert!(container.contains(&format!("\"image\": \"{image}\"")), "{image}");
        let installs = ci.lines().filter_map(|line| line.trim().strip_prefix("- run: "));
        let is_install = |line: &&str| line.starts_with("apt-get") || line.starts_with("curl");
        let installs: Vec<_> = installs.filter(is_install).collect();
        assert!(installs.len() == 2 && container.contains(&installs.join(" && ")), "{installs:?}");
    }

    #[test]
    fn the_readme_names_the_oldest_rust_of_each_published_crate() {
        let readme = fs::read_to_string(root().join("README.md")).unwrap();
        assert_eq!(wrong_rust_versions(&readme, &members()), [""; 0]);
        let workspace = env!("CARGO_PKG_RUST_VERSION");
        assert!(readme.contains(&format!("Rust {workspace}")), "Rust {workspace}");
    }

    /// Two screens. What does not fit belongs into docs/.
    #[test]
    fn the_readme_is_short() {
        let readme = fs::read_to_string(root().join("README.md")).unwrap();
        assert!(readme.lines().count() <= 125, "{} lines", readme.lines().count());
    }

    #[test]
    fn versions_of_rust_are_found_in_rows_and_in_text() {
        let readme = "| x | `a` | 1.88 |\nuse `b` (1.94)\n| y | take `c` or `d` | 1.90 |\n";
        let version = |name| rust_version_in(readme, name);
        assert_eq!([version("a"), version("b"), version("d")], ["1.88", "1.94", "1.90"].map(Some));
        assert_eq!(version("e"), None);
    }

    #[test]
    fn the_page_on_frames_has_the_times_of_the_benchmarks() {
        let read = |name| fs::read_to_string(root().join(name)).unwrap();
        let frames = read("docs/frames.md");
        assert!(frames.matches(" ns |").count() > 20, "the table was found");
        assert_eq!(rows_that_differ(&frames, &read("docs/benchmarks.md")), [""; 0]);
    }

    #[test]
    fn a_figure_that_differs_is_found() {
        let benchmarks = "| a | 6.69 (6.57 to 6.95) ns | b: 1.10 µs (446 ns to 1.63 µs) | x |";
        assert_eq!(rows_that_differ("| a | 6.69 ns | 1.10 µs | – |", benchmarks), [""; 0]);
        for row in ["| a | 6.95 ns |", "| a | 6.69 ns | 1.10 ns |", "| c | 6.69 ns |"] {
            assert_eq!(rows_that_differ(row, benchmarks), [row]);
        }
    }
}
