//! Reads Rust sources, and leaves out the modules that are built only for tests.

use std::io;
use syn::{Attribute, Item};

/// A source file. Comments and inline modules of tests are left out.
pub(crate) struct Source {
    pub(crate) file: syn::File,
    /// The names of the modules that are built only for tests and that are files of their own.
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The text is not Rust.
    pub(crate) fn read(text: &str) -> io::Result<Source> {
        let mut file = syn::parse_file(text).map_err(io::Error::other)?;
        let mut test_modules = Vec::new();
        remove_tests(&mut file.items, &mut test_modules);
        Ok(Source { file, test_modules })
    }
}

fn remove_tests(items: &mut Vec<Item>, test_modules: &mut Vec<String>) {
    items.retain_mut(|item| {
        let Item::Mod(module) = item else { return true };
        let is_for_tests = module.attrs.iter().any(requires_tests);
        match &mut module.content {
            Some((_, items)) => remove_tests(items, test_modules),
            None if is_for_tests => test_modules.push(module.ident.to_string()),
            None => {}
        }
        !is_for_tests
    });
}

/// Returns whether an attribute is a `cfg` that requires `test`.
fn requires_tests(attribute: &Attribute) -> bool {
    let Ok(list) = attribute.meta.require_list() else { return false };
    let text: String = list.tokens.to_string().split_whitespace().collect();
    // A string, such as the name of a feature, is a word of its own.
    let is_word = |c: char| c.is_alphanumeric() || "_\"".contains(c);
    list.path.is_ident("cfg")
        && text.split(|c| !is_word(c)).any(|word| word == "test")
        && !text.contains("not(test")
        && !text.contains("any(test")
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::ToTokens;

    fn words(text: &str) -> (String, Vec<String>) {
        let Source { file, test_modules } = Source::read(text).unwrap();
        let tokens = file.to_token_stream().to_string();
        (tokens.split_whitespace().collect(), test_modules)
    }

    #[test]
    fn comments_and_modules_of_tests_are_left_out() {
        for hidden in [
            "//! Documentation.\n// comment\n/* comment */ /// documentation",
            "#[cfg(test)] mod tests { use super::*; }",
            "#[cfg(all(test, not(loom)))] pub(super) mod tests { fn f() {} }",
        ] {
            let (kept, _) = words(&format!("{hidden}\nstruct A;"));
            assert!(kept.ends_with("structA;") && !kept.contains("mod"), "{kept}");
        }
        let inner = words("mod a { #[cfg(test)] mod tests { fn f() {} } fn g() {} }").0;
        assert!(inner.contains("fng") && !inner.contains("fnf"), "{inner}");
        assert_eq!(
            words("#[cfg(test)]\nmod tests;\n#[cfg(all(loom, test))] mod models;").1,
            ["tests", "models"]
        );
    }

    #[test]
    fn what_other_builds_have_is_kept() {
        for kept in [
            "#[cfg(not(test))] mod inner { fn f() {} }",
            "#[cfg(any(test, feature = \"probes\"))] mod inner { fn f() {} }",
            "#[cfg(feature = \"test\")] mod inner { fn f() {} }",
            "#[cfg(test)] fn helper() {} mod inner { fn f() {} }",
        ] {
            assert!(words(kept).0.contains("modinner{fnf(){}}"), "{kept}");
        }
    }
}
