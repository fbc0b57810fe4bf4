//! Reads Rust sources as tokens, and leaves out what is built only for tests.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::io;

/// The tokens of a source file. Comments, documentation and inline modules of tests are left out.
pub(crate) struct Source {
    pub(crate) tokens: TokenStream,
    /// The names of the modules that are built only for tests and that are files of their own.
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The text is not Rust.
    pub(crate) fn read(text: &str) -> io::Result<Source> {
        let mut test_modules = Vec::new();
        let tokens = text.parse::<TokenStream>();
        let tokens = tokens.map_err(|error| io::Error::other(error.to_string()))?;
        let tokens = without_tests(tokens, &mut test_modules);
        Ok(Source { tokens, test_modules })
    }
}

fn without_tests(tokens: TokenStream, test_modules: &mut Vec<String>) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let (mut kept, mut rest): (Vec<TokenTree>, _) = (Vec::new(), &tokens[..]);
    // Whether the attributes before the next item require tests, and where they begin in `kept`.
    let (mut is_for_tests, mut attributes) = (false, 0);
    while let [first, after @ ..] = rest {
        let used = match rest {
            [TokenTree::Punct(mark), TokenTree::Group(attribute), ..]
                if mark.as_char() == '#' && attribute.delimiter() == Delimiter::Bracket =>
            {
                if !is_for_tests && requires_tests(attribute) {
                    (is_for_tests, attributes) = (true, kept.len());
                }
                if !is_documentation(attribute) {
                    kept.extend_from_slice(&rest[..2]);
                }
                2
            }
            // The documentation of the file.
            [TokenTree::Punct(mark), TokenTree::Punct(_), TokenTree::Group(attribute), ..]
                if mark.as_char() == '#' && is_documentation(attribute) =>
            {
                3
            }
            [TokenTree::Ident(keyword), TokenTree::Ident(name), _, ..]
                if is_for_tests && keyword == "mod" =>
            {
                if !matches!(rest[2], TokenTree::Group(_)) {
                    test_modules.push(name.to_string());
                }
                kept.truncate(attributes);
                is_for_tests = false;
                3
            }
            _ => {
                // `pub` and `pub(…)` may stand between the attribute and the module.
                let is_visibility = matches!(first, TokenTree::Ident(word) if word == "pub")
                    || matches!(first, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis);
                is_for_tests &= is_visibility;
                kept.push(match first {
                    TokenTree::Group(group) => {
                        let inner = without_tests(group.stream(), test_modules);
                        let mut inner = Group::new(group.delimiter(), inner);
                        inner.set_span(group.span());
                        TokenTree::Group(inner)
                    }
                    other => other.clone(),
                });
                rest = after;
                continue;
            }
        };
        rest = &rest[used..];
    }
    kept.into_iter().collect()
}

fn is_documentation(attribute: &Group) -> bool {
    matches!(attribute.stream().into_iter().next(), Some(TokenTree::Ident(word)) if word == "doc")
}

/// Returns whether an attribute is a `cfg` that requires `test`.
fn requires_tests(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    let is_cfg = text.starts_with("cfg(");
    // A string, such as the name of a feature, is a word of its own.
    let is_word = |c: char| c.is_alphanumeric() || "_\"".contains(c);
    let words: Vec<&str> = text.split(|c| !is_word(c)).collect();
    is_cfg && words.contains(&"test") && !text.contains("not(test") && !text.contains("any(test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> (String, Vec<String>) {
        let Source { tokens, test_modules } = Source::read(text).unwrap();
        (tokens.to_string().split_whitespace().collect(), test_modules)
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
