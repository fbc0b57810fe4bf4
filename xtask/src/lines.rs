//! `cargo xtask lines`, which counts lines of code: those that are neither blank nor a comment nor in
//! a module of tests.

use crate::{rust_source::Source, step::root, workspace::members};
use proc_macro2::{TokenStream, TokenTree};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    process::ExitCode,
};

/// Prints the lines of code of each package, or of each entry of a directory.
pub(crate) fn run(directory: Option<&str>) -> ExitCode {
    let counted = match directory {
        Some(directory) => by_entry(&root().join(directory)),
        None => by_package(),
    };
    match counted {
        Ok(counts) => {
            for (name, lines) in &counts {
                println!("{lines:7}  {name}");
            }
            println!("{:7}  in all", counts.values().sum::<usize>());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the lines in the `src` of each package of the workspace.
fn by_package() -> io::Result<BTreeMap<String, usize>> {
    let lines = |directory: String| {
        let src = format!("{directory}/src");
        Ok((src.clone(), in_directory(&root().join(src))?))
    };
    members().into_iter().map(|package| lines(package.directory)).collect()
}

fn by_entry(directory: &Path) -> io::Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    let test_modules = test_modules(directory)?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if test_modules.contains(&stem) {
            continue;
        }
        if path.is_dir() {
            counts.insert(format!("{name}/"), in_directory(&path)?);
        } else if name.ends_with(".rs") {
            counts.insert(name, of_text(&fs::read_to_string(&path)?)?);
        }
    }
    Ok(counts)
}

fn in_directory(directory: &Path) -> io::Result<usize> {
    Ok(by_entry(directory)?.values().sum())
}

/// Returns the modules of tests that are files of a directory or directories in it.
fn test_modules(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut modules = BTreeSet::new();
    let parent = directory.with_extension("rs");
    let files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    for file in files.chain([parent]).filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let source = fs::read_to_string(file).unwrap_or_default();
        modules.extend(Source::read(&source)?.test_modules);
    }
    Ok(modules)
}

/// Returns the lines of code in the text of a Rust source.
pub(crate) fn of_text(text: &str) -> io::Result<usize> {
    let mut lines = BTreeSet::new();
    add_lines(Source::read(text)?.tokens, &mut lines);
    let text: Vec<&str> = text.lines().collect();
    Ok(lines.into_iter().filter(|line| !text[line - 1].trim().is_empty()).count())
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
    fn blank_lines_comments_and_modules_of_tests_are_not_counted() {
        let text = "//! A file.\n\nuse a::b;\n// comment\n/// Documentation.\nfn f() {\n    /* a\n    b */\n\
                    \n    \"one\\\n     two\";\n}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        assert_eq!(of_text(text).unwrap(), 5);
    }
}
