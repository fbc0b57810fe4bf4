//! `cargo xtask lines`, which counts lines of code: those that are neither blank nor a comment nor in
//! a module of tests.

use crate::{
    files::{module, rust_files},
    rust_source::Source,
    step::root,
    workspace::members,
};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// Prints the lines of code of each package, or of each entry of a directory.
pub(crate) fn run(directory: Option<&str>) -> io::Result<()> {
    let counts = match directory {
        Some(directory) => by_entry(&root().join(directory))?,
        None => by_package()?,
    };
    for (name, lines) in &counts {
        println!("{lines:7}  {name}");
    }
    println!("{:7}  in all", counts.values().sum::<usize>());
    Ok(())
}

/// Returns the lines in the `src` of each package of the workspace.
fn by_package() -> io::Result<BTreeMap<String, usize>> {
    let sources = members().into_iter().map(|package| format!("{}/src", package.directory));
    let lines = |src: String| Ok((src.clone(), by_entry(&root().join(src))?.values().sum()));
    sources.map(lines).collect()
}

/// Returns the lines of each file of a directory, and those of each directory in it.
fn by_entry(directory: &Path) -> io::Result<BTreeMap<String, usize>> {
    fs::metadata(directory)?;
    let (mut lines, mut test_modules) = (BTreeMap::new(), BTreeSet::<PathBuf>::new());
    // The file with the modules of the directory may stand beside it.
    let parent = Some(directory.with_extension("rs")).filter(|parent| parent.exists());
    for path in rust_files(directory).into_iter().chain(parent) {
        let text = fs::read_to_string(&path)?;
        let tests = Source::read(&text)?.test_modules;
        test_modules.extend(tests.iter().map(|name| module(&path).join(name)));
        lines.insert(path, of_text(&text)?);
    }
    let mut counts = BTreeMap::new();
    for (path, lines) in lines {
        let is_of_tests = module(&path).ancestors().any(|module| test_modules.contains(module));
        let Ok(path) = path.strip_prefix(directory) else { continue };
        if let Some(entry) = path.iter().next().filter(|_| !is_of_tests) {
            let slash = if path.iter().count() > 1 { "/" } else { "" };
            *counts.entry(format!("{}{slash}", entry.display())).or_default() += lines;
        }
    }
    Ok(counts)
}

/// Returns the lines of code in the text of a Rust source.
pub(crate) fn of_text(text: &str) -> io::Result<usize> {
    let mut lines = BTreeSet::new();
    add_lines(Source::read(text)?.file.to_token_stream(), &mut lines);
    let text: Vec<&str> = text.lines().map(str::trim).collect();
    // The documentation is an attribute, which has tokens.
    let is_code = |line: &str| {
        !line.is_empty() && !["//", "#[doc", "#![doc"].iter().any(|doc| line.starts_with(doc))
    };
    Ok(lines.into_iter().filter(|line| is_code(text[line - 1])).count())
}

/// Adds the numbers of the lines with these tokens.
fn add_lines(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in tokens {
        if let TokenTree::Group(group) = token {
            lines.extend([group.span_open(), group.span_close()].map(|span| span.start().line));
            add_lines(group.stream(), lines);
        } else {
            lines.extend(token.span().start().line..=token.span().end().line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_does_not_exist_is_an_error() {
        assert!(by_entry(&root().join("no-such-directory")).is_err());
    }

    /// `steps/tests.rs` is a module of tests of `steps.rs`.
    #[test]
    fn files_of_tests_are_not_counted() {
        let counts = by_entry(&root().join("xtask/src")).unwrap();
        assert!(counts["steps.rs"] > 100 && counts["cycles/"] > 100, "{counts:?}");
        assert!(!counts.contains_key("steps/"), "{counts:?}");
    }

    #[test]
    fn blank_lines_comments_and_modules_of_tests_are_not_counted() {
        let text = "//! A file.\n\nuse a::b;\n// comment\n/// Documentation.\nfn f() {\n    /* a\n    b */\n\
                    \n    \"one\\\n     two\";\n}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        assert_eq!(of_text(text).unwrap(), 5);
    }
}
