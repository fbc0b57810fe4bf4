//! Reads the paths that a source file uses and the names that it brings into scope.

use crate::rust_source;
use proc_macro2::{TokenStream, TokenTree};
use std::{
    collections::{BTreeSet, HashMap},
    io,
};
use syn::{
    UseTree,
    visit::{self, Visit},
};

/// The segments of a path.
pub(super) type Path = Vec<String>;

/// The references of a file to other files.
#[derive(Default, Debug)]
pub(super) struct Source {
    /// The paths that the file's code uses.
    pub(super) paths: Vec<Path>,
    /// The names that `use` brings into scope, with their full paths.
    pub(super) names: HashMap<String, Path>,
}

impl Source {
    /// Reads the text of a file. Comments and modules of tests are ignored.
    ///
    /// A path of a `pub use` counts only if the file itself uses the name.
    ///
    /// # Errors
    /// The text is not Rust.
    pub(super) fn read(text: &str) -> io::Result<Source> {
        let mut reader = Reader::default();
        reader.visit_file(&rust_source::Source::read(text)?.file);
        let Reader { mut source, reexported, used, .. } = reader;
        let is_used = |path: &Path| path.last().is_some_and(|name| used.contains(name));
        source.paths.extend(reexported.into_iter().filter(is_used));
        Ok(source)
    }

    /// Adds the references of another file of the same module.
    pub(super) fn extend(&mut self, other: Source) {
        self.paths.extend(other.paths);
        self.names.extend(other.names);
    }
}

#[derive(Default)]
struct Reader {
    source: Source,
    /// The number of inline modules around the code that is being read.
    inline_depth: usize,
    reexported: Vec<Path>,
    /// The first segment of each path.
    used: BTreeSet<String>,
}

impl Reader {
    fn add(&mut self, path: Path) {
        self.used.extend(path.first().cloned());
        if path.len() > 1 {
            self.source.paths.extend(relative_to_file(path, self.inline_depth));
        }
    }

    /// Adds the paths in the tokens of a macro or of an attribute.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Path::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Ident(word) if colons == 2 => {
                    path.push(word.to_string());
                    colons = 0;
                }
                token => {
                    self.add(std::mem::take(&mut path));
                    colons = 0;
                    match token {
                        TokenTree::Ident(word) => path.push(word.to_string()),
                        TokenTree::Group(group) => self.add_tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.add(path);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.inline_depth += 1;
        visit::visit_item_mod(self, module);
        self.inline_depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut found = Vec::new();
        expand(&item.tree, &[], &mut found);
        for (name, path) in found {
            let Some(path) = relative_to_file(path, self.inline_depth) else { continue };
            match item.vis {
                syn::Visibility::Inherited => self.source.paths.push(path.clone()),
                _ => self.reexported.push(path.clone()),
            }
            if self.inline_depth == 0 {
                self.source.names.insert(name, path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.add_tokens(item.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.add_tokens(list.tokens.clone());
        }
    }

    /// The path in `pub(in path)` does not count.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// Converts a path within `inline_depth` nested inline modules to a path relative to the file.
/// Returns `None` if the path does not lead out of the inline modules.
fn relative_to_file(mut path: Path, inline_depth: usize) -> Option<Path> {
    let super_count =
        path.iter().take(inline_depth).take_while(|segment| *segment == "super").count();
    let starts_with_keyword =
        path.first().is_some_and(|first| first == "crate" || first == "super");
    path.drain(..super_count);
    ((inline_depth == 0 || starts_with_keyword) && !path.is_empty()).then_some(path)
}

/// Collects all paths of a `use` tree, each with the name that it brings into scope.
fn expand(tree: &UseTree, prefix: &[String], found: &mut Vec<(String, Path)>) {
    let with = |name: &dyn ToString| [prefix, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => expand(&path.tree, &with(&path.ident), found),
        UseTree::Group(group) => group.items.iter().for_each(|tree| expand(tree, prefix, found)),
        UseTree::Glob(_) => found.push(("*".to_owned(), with(&'*'))),
        UseTree::Name(name) if name.ident == "self" => {
            found.extend(prefix.last().map(|last| (last.clone(), prefix.to_vec())));
        }
        UseTree::Name(name) => found.push((name.ident.to_string(), with(&name.ident))),
        UseTree::Rename(name) if name.ident == "self" => {
            found.push((name.rename.to_string(), prefix.to_vec()));
        }
        UseTree::Rename(name) => found.push((name.rename.to_string(), with(&name.ident))),
    }
}
