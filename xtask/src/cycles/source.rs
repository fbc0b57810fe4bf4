//! Reads the paths that a source file uses and the names that it brings into scope.

use std::{collections::HashMap, iter::Peekable, str::Chars};

/// The references of a file to other files. A path is the list of its segments.
#[derive(Default, Debug)]
pub(super) struct Source {
    /// The paths that the file's code uses.
    pub(super) paths: Vec<Vec<String>>,
    /// The names that `use` brings into scope, with their full paths.
    pub(super) names: HashMap<String, Vec<String>>,
}

/// A word, `::`, or a single character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'t> {
    Word(&'t str),
    Colons,
    Sign(char),
}

use Token::{Colons, Sign, Word};

impl Source {
    /// Reads the text of a file. Comments, strings and modules of tests are ignored.
    ///
    /// A path of a `pub use` counts only if the file itself uses the name.
    pub(super) fn read(text: &str) -> Source {
        let text = without_comments_and_strings(text);
        let tokens = without_tests(&tokens(&text));
        let mut source = Source::default();
        let (mut reexported, mut used) = (Vec::new(), Vec::new());
        // The depth of braces at which each open inline module began.
        let (mut depth, mut modules) = (0_usize, Vec::new());
        let mut index = 0;
        while let Some(&token) = tokens.get(index) {
            let rest = &tokens[index..];
            index += match rest {
                [Word("mod"), Word(_), Sign('{'), ..] => {
                    depth += 1;
                    modules.push(depth);
                    3
                }
                [Word("mod"), Word(_), Sign(';'), ..] => 3,
                // The path in `pub(in path)` does not count.
                [Word("pub"), Sign('('), ..] => {
                    let len = length_to(rest, Sign(')'));
                    source.record_use(&rest[len..], true, modules.len(), &mut reexported) + len
                }
                [Word("pub"), ..] => {
                    source.record_use(&rest[1..], true, modules.len(), &mut reexported) + 1
                }
                // `use<…>` lists the generic parameters that an opaque type captures.
                [Word("use"), Sign('<'), ..] => 2,
                [Word("use"), ..] => source.record_use(rest, false, modules.len(), &mut reexported),
                [Word(word), ..] => {
                    let (path, len) = path(rest);
                    used.push(*word);
                    if path.len() > 1 {
                        source.paths.extend(relative_to_file(path, modules.len()));
                    }
                    len
                }
                _ => {
                    match token {
                        Sign('{') => depth += 1,
                        Sign('}') => {
                            if modules.last() == Some(&depth) {
                                modules.pop();
                            }
                            depth = depth.saturating_sub(1);
                        }
                        _ => {}
                    }
                    1
                }
            };
        }
        for path in reexported {
            if path.last().is_some_and(|name| used.contains(&name.as_str())) {
                source.paths.push(path);
            }
        }
        source
    }

    /// Records the `use` at the start of the tokens, and returns its length in tokens. Returns 0 if
    /// the tokens do not begin with `use`.
    fn record_use(
        &mut self,
        tokens: &[Token<'_>],
        is_public: bool,
        inline_depth: usize,
        reexported: &mut Vec<Vec<String>>,
    ) -> usize {
        let [Word("use"), tree @ ..] = tokens else { return 0 };
        let len = length_to(tree, Sign(';'));
        let mut found = Vec::new();
        expand(&tree[..len.saturating_sub(1)], &[], &mut found);
        for (name, path) in found {
            let Some(path) = relative_to_file(path, inline_depth) else { continue };
            if is_public {
                reexported.push(path.clone())
            } else {
                self.paths.push(path.clone())
            }
            if inline_depth == 0 {
                self.names.insert(name, path);
            }
        }
        len + 1
    }
}

/// Converts a path within `inline_depth` nested inline modules to a path relative to the file.
/// Returns `None` if the path does not lead out of the inline modules.
fn relative_to_file(mut path: Vec<String>, inline_depth: usize) -> Option<Vec<String>> {
    let super_count =
        path.iter().take(inline_depth).take_while(|segment| *segment == "super").count();
    let starts_with_keyword =
        path.first().is_some_and(|first| first == "crate" || first == "super");
    path.drain(..super_count);
    ((inline_depth == 0 || starts_with_keyword) && !path.is_empty()).then_some(path)
}

/// Collects all paths of a `use` tree, each with the name that it brings into scope.
fn expand(tree: &[Token<'_>], prefix: &[String], found: &mut Vec<(String, Vec<String>)>) {
    let mut path = prefix.to_vec();
    let mut name = None;
    let mut index = 0;
    while let Some(token) = tree.get(index) {
        match token {
            Word("as") => {
                if let Some(Word(alias)) = tree.get(index + 1) {
                    name = Some((*alias).to_owned());
                }
                index += 1;
            }
            Word("self") if path.len() > prefix.len() || !prefix.is_empty() => {}
            Word(segment) => path.push((*segment).to_owned()),
            Sign('{') => {
                let inner = &tree[index + 1..];
                let mut depth = 0_usize;
                let mut start = 0;
                for (end, token) in inner.iter().enumerate() {
                    match token {
                        Sign('{') => depth += 1,
                        Sign('}') if depth > 0 => depth -= 1,
                        Sign(',' | '}') if depth == 0 => {
                            if start < end {
                                expand(&inner[start..end], &path, found);
                            }
                            start = end + 1;
                        }
                        _ => {}
                    }
                }
                return;
            }
            Sign('*') => path.push("*".to_owned()),
            _ => {}
        }
        index += 1;
    }
    if let Some(last) = path.last().cloned() {
        found.push((name.unwrap_or(last), path));
    }
}

/// Returns the path at the start of the tokens, and its length in tokens.
fn path(tokens: &[Token<'_>]) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    let mut index = 0;
    while let Some(Word(word)) = tokens.get(index) {
        path.push((*word).to_owned());
        if tokens.get(index + 1) != Some(&Colons) {
            return (path, index + 1);
        }
        index += 2;
    }
    (path, index.max(1))
}

/// Returns the number of tokens up to and including the first `last`.
fn length_to(tokens: &[Token<'_>], last: Token<'_>) -> usize {
    tokens.iter().position(|token| *token == last).map_or(tokens.len(), |index| index + 1)
}

/// Removes the tokens of inline modules that are built only for tests.
fn without_tests<'t>(tokens: &[Token<'t>]) -> Vec<Token<'t>> {
    let mut kept = Vec::new();
    let (mut index, mut for_tests) = (0, false);
    while let Some(&token) = tokens.get(index) {
        let rest = &tokens[index..];
        match rest {
            [Sign('#'), Sign('['), ..] => {
                let len = length_to(rest, Sign(']'));
                for_tests |= is_for_tests(&rest[..len]);
                index += len;
            }
            [Word("mod"), Word(_), Sign('{'), ..] if for_tests => {
                let mut depth = 0_usize;
                let end = rest.iter().position(|token| {
                    match token {
                        Sign('{') => depth += 1,
                        Sign('}') => depth -= 1,
                        _ => {}
                    }
                    *token == Sign('}') && depth == 0
                });
                index += end.map_or(rest.len(), |end| end + 1);
                for_tests = false;
            }
            _ => {
                kept.push(token);
                for_tests = false;
                index += 1;
            }
        }
    }
    kept
}

/// Returns whether an attribute is a `cfg` that requires `test`.
fn is_for_tests(attribute: &[Token<'_>]) -> bool {
    let requires_test = |pair: &[Token<'_>]| pair[1] == Word("test") && pair[0] != Word("not");
    let is_negated =
        attribute.windows(3).any(|tokens| tokens == [Word("not"), Sign('('), Word("test")]);
    attribute.contains(&Word("cfg")) && attribute.windows(2).any(requires_test) && !is_negated
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let len = if is_word(first) {
            let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(Word(&rest[..len]));
            len
        } else if rest.starts_with("::") {
            tokens.push(Colons);
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(Sign(first));
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

/// Returns the text without comments, strings and character literals.
fn without_comments_and_strings(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(first) = chars.next() {
        match (first, chars.peek()) {
            ('/', Some('/')) => while chars.next_if(|&c| c != '\n').is_some() {},
            ('/', Some('*')) => skip_comment(&mut chars),
            ('"', _) => skip_quoted(&mut chars, '"'),
            ('\'', _) => {
                // A character literal has a second quote after one character or an escape. A
                // lifetime does not.
                let mut ahead = chars.clone();
                let is_escape = ahead.next() == Some('\\');
                if is_escape || ahead.next() == Some('\'') {
                    skip_quoted(&mut chars, '\'');
                }
            }
            ('r', Some('"' | '#')) if !plain.ends_with(|c: char| c.is_alphanumeric()) => {
                skip_raw(&mut chars);
            }
            _ => {
                plain.push(first);
                continue;
            }
        }
        plain.push(' ');
    }
    plain
}

/// Skips a block comment, whose first slash has been read.
fn skip_comment(chars: &mut Peekable<Chars<'_>>) {
    let (mut depth, mut previous) = (0_usize, '/');
    for c in chars.by_ref() {
        match (previous, c) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth = depth.saturating_sub(1),
            _ => {
                previous = c;
                continue;
            }
        }
        previous = ' ';
        if depth == 0 {
            return;
        }
    }
}

/// Skips up to and including the closing quote.
fn skip_quoted(chars: &mut Peekable<Chars<'_>>, quote: char) {
    while let Some(c) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            _ if c == quote => return,
            _ => {}
        }
    }
}

/// Skips a raw string, whose `r` has been read. If a raw identifier follows the `r`, only its `#`
/// is skipped.
fn skip_raw(chars: &mut Peekable<Chars<'_>>) {
    let mut marks = 0;
    while chars.next_if_eq(&'#').is_some() {
        marks += 1;
    }
    if chars.next_if_eq(&'"').is_none() {
        return;
    }
    while let Some(c) = chars.next() {
        if c == '"' {
            let mut ahead = chars.clone();
            if (0..marks).all(|_| ahead.next() == Some('#')) {
                *chars = ahead;
                return;
            }
        }
    }
}
