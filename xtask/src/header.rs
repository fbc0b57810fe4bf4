//! `cargo xtask header`, which generates `hotmem.h` from the crate `hotmem-c` by cbindgen.
//! `cargo xtask lint` fails if the file differs from the generated text.

use crate::files::rust_files;
use crate::step::root;
use std::path::Path;
use std::{fs, io};

/// The sources of public items, in the order of the header.
const SOURCES: [&str; 11] = [
    "error",
    "diagnose",
    "hooks",
    "instance",
    "request",
    "frames",
    "zeroed",
    "control",
    "poison",
    "virtio_mem/mod",
    "balloon/mod",
];
const SOURCE_DIR: &str = "crates/hotmem-c/src";
const TEMPLATE: &str = "crates/hotmem-c/cbindgen.toml";
pub(crate) const HEADER: &str = "crates/hotmem-c/include/hotmem.h";

/// Writes the header.
pub(crate) fn write() -> io::Result<()> {
    fs::write(root().join(HEADER), generate().map_err(io::Error::other)?)
}

/// Returns a problem if the header differs from the text that is generated from the sources.
pub(crate) fn problems() -> io::Result<Vec<String>> {
    let current = fs::read_to_string(root().join(HEADER)).unwrap_or_default();
    let generated = generate().map_err(|error| io::Error::other(format!("{HEADER}: {error}")))?;
    let differs = format!("{HEADER} differs from its sources: run cargo xtask header");
    let mut problems = if generated == current { Vec::new() } else { vec![differs] };
    problems.extend(unlisted_sources()?);
    Ok(problems)
}

/// Returns a problem for each file with C functions that is not among [`SOURCES`].
fn unlisted_sources() -> io::Result<Vec<String>> {
    let mut problems = Vec::new();
    for file in rust_files(&root().join(SOURCE_DIR)) {
        let name = file.strip_prefix(root().join(SOURCE_DIR)).unwrap_or(&file).with_extension("");
        let is_listed = SOURCES.iter().any(|source| name == Path::new(source));
        if !is_listed && fs::read_to_string(&file)?.contains("#[unsafe(no_mangle)]") {
            let name = name.display();
            problems.push(format!("{HEADER} has no functions of {name}.rs: add it to SOURCES"));
        }
    }
    Ok(problems)
}

/// Generates the text of the header.
fn generate() -> Result<String, String> {
    let config = cbindgen::Config::from_file(root().join(TEMPLATE))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in SOURCES {
        let source = format!("{SOURCE_DIR}/{name}.rs");
        // cbindgen prints a warning for a missing file, and generates the header without it.
        if !root().join(&source).is_file() {
            return Err(format!("the source {source} is missing"));
        }
        builder = builder.with_src(root().join(source));
    }
    let bindings = builder.generate().map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    Ok(text.lines().map(|line| with_hexadecimal_mask(line) + "\n").collect())
}

/// Returns a line of the header. The value of a set of feature bits, which cbindgen writes in decimal, is
/// hexadecimal, as in specifications.
fn with_hexadecimal_mask(line: &str) -> String {
    let definition = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' '));
    let mask = definition.filter(|(name, _)| name.ends_with("_FEATURES"));
    match mask.and_then(|(name, value)| Some((name, value.parse::<u64>().ok()?))) {
        Some((name, value)) => format!("#define {name} UINT64_C({value:#x})"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sets_of_feature_bits_become_hexadecimal() {
        let masked = "#define HOTMEM_BALLOON_FEATURES UINT64_C(0x10000003f)";
        assert_eq!(with_hexadecimal_mask("#define HOTMEM_BALLOON_FEATURES 4294967359"), masked);
        for same in
            ["#define HOTMEM_BALLOON_SIZE 8192", "#define HOTMEM_H", "// FEATURES 1", masked]
        {
            assert_eq!(with_hexadecimal_mask(same), same);
        }
    }
}
