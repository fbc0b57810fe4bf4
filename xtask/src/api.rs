//! `cargo xtask api`, which lists the public interface of the engine in docs/api.txt.
//!
//! The list has all items that users of the engine can name, and the inherent functions of types
//! among them. Other crates may define the items. The list has no trait methods, variants or
//! fields, and nothing that only the benches' and tests' builds have.

use crate::{step::root, steps::Steps};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};
use syn::{
    Attribute, Expr, ExprLit, ImplItem, Item, ItemImpl, ItemUse, Lit, Type, UseTree, Visibility,
};

const LIST: &str = "docs/api.txt";
/// The crate whose root defines the interface.
const ENGINE: &str = "crates/hotmem/src";
/// The crates that define the items of the interface.
const DEFINING_CRATES: [&str; 3] =
    [ENGINE, "crates/hotmem-addr/src", "crates/hotmem-invariant/src"];
/// The largest allowed size of the interface.
const LIMITS: Counts = Counts { items: 81, functions: 108 };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    items: usize,
    functions: usize,
}

/// Fails if the list in docs/ differs from the sources, or is longer than [`LIMITS`].
pub(crate) fn check(steps: &mut Steps) {
    let checked = Api::of_engine().map(|api| {
        let listed = fs::read_to_string(root().join(LIST)).unwrap_or_default();
        (listed == api.list(), api.counts())
    });
    match checked {
        Ok((true, counts))
            if counts.items <= LIMITS.items && counts.functions <= LIMITS.functions => {}
        Ok((true, Counts { items, functions })) => steps.fail(format!(
            "the engine has {items} public items and {functions} functions, but at most {} and {} are allowed",
            LIMITS.items, LIMITS.functions
        )),
        Ok((false, _)) => {
            steps.fail(format!("{LIST} differs from the engine's interface: run cargo xtask api"));
        }
        Err(error) => steps.fail(format!("the engine's interface cannot be read: {error}")),
    }
}

/// Writes the list.
pub(crate) fn write() -> ExitCode {
    let written = Api::of_engine().and_then(|api| {
        fs::write(root().join(LIST), api.list())?;
        Ok(api.counts())
    });
    match written {
        Ok(Counts { items, functions }) => {
            println!("{LIST}: {items} items, {functions} functions");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{LIST}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The public interface of a crate: the path and the kind of each item, and the path of each
/// function. Paths start at the crate's root.
#[derive(Default, Debug, PartialEq, Eq)]
struct Api {
    items: BTreeMap<String, &'static str>,
    functions: BTreeSet<String>,
}

impl Api {
    fn of_engine() -> io::Result<Api> {
        let mut sources = Vec::new();
        for dir in DEFINING_CRATES {
            parse(&root().join(dir), &mut sources)?;
        }
        let engine = root().join(ENGINE);
        let module_items = |module: &str| {
            let candidates = [format!("{module}.rs"), format!("{module}/mod.rs")];
            let path =
                candidates.iter().map(|name| engine.join(name)).find(|path| path.exists())?;
            sources.iter().find(|(file, _)| *file == path).map(|(_, file)| file.items.as_slice())
        };
        let all_items: Vec<&Item> = sources.iter().flat_map(|(_, file)| &file.items).collect();
        Api::new(module_items("lib").unwrap_or_default(), module_items, &all_items)
            .map_err(io::Error::other)
    }

    /// Follows the root's `pub use` and `pub mod` to definitions. `module_items` returns the items
    /// of a module. `all_items` are the items of all files.
    fn new<'s>(
        root: &'s [Item],
        module_items: impl Fn(&str) -> Option<&'s [Item]>,
        all_items: &[&Item],
    ) -> Result<Api, String> {
        let mut defined = BTreeMap::new();
        all_items.iter().filter_map(|item| definition(item)).for_each(|(name, kind)| {
            defined.insert(name, kind);
        });
        let mut api = Api::default();
        api.add_public_items(root, "", &module_items, &defined)?;
        for item in all_items {
            if let Item::Impl(block @ ItemImpl { trait_: None, attrs, .. }) = item
                && !needs_test_feature(attrs)
            {
                api.add_functions(block);
            }
        }
        Ok(api)
    }

    fn add_public_items<'s>(
        &mut self,
        items: &'s [Item],
        path: &str,
        module_items: &impl Fn(&str) -> Option<&'s [Item]>,
        defined: &BTreeMap<String, &'static str>,
    ) -> Result<(), String> {
        for item in items.iter().filter(|item| is_public(item) && !is_for_tests(item)) {
            let mut names = Vec::new();
            match item {
                Item::Use(item) => imported_names(&item.tree, &mut names),
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    self.items.insert(format!("{path}{name}"), "mod");
                    let inner = module_items(&name).ok_or(format!("no file for {name}"))?;
                    self.add_public_items(
                        inner,
                        &format!("{path}{name}::"),
                        module_items,
                        defined,
                    )?;
                }
                other => names.extend(definition(other).map(|(name, _)| name)),
            }
            for name in names {
                let kind = defined.get(&name).ok_or(format!("{name} has no definition"))?;
                let path = format!("{path}{name}");
                if *kind == "fn" {
                    self.functions.insert(path);
                } else {
                    self.items.insert(path, kind);
                }
            }
        }
        Ok(())
    }

    fn add_functions(&mut self, block: &ItemImpl) {
        let Type::Path(path) = &*block.self_ty else { return };
        let Some(type_name) = path.path.segments.last().map(|segment| segment.ident.to_string())
        else {
            return;
        };
        let is_type = |path: &&String| path.rsplit("::").next() == Some(type_name.as_str());
        let Some(path) = self.items.keys().find(is_type).cloned() else { return };
        for item in &block.items {
            match item {
                ImplItem::Fn(function) => {
                    let is_public = matches!(function.vis, Visibility::Public(_));
                    if is_public && !needs_test_feature(&function.attrs) {
                        self.functions.insert(format!("{path}::{}", function.sig.ident));
                    }
                }
                // The macro expands to functions of the same names.
                ImplItem::Macro(called) => {
                    let inner = &called.mac.tokens;
                    let block =
                        syn::parse_str::<ItemImpl>(&format!("impl {type_name} {{ {inner} }}"));
                    block.iter().for_each(|block| self.add_functions(block));
                }
                _ => {}
            }
        }
    }

    fn counts(&self) -> Counts {
        Counts { items: self.items.len(), functions: self.functions.len() }
    }

    fn list(&self) -> String {
        let Counts { items, functions } = self.counts();
        let mut list = format!("{items} items\n");
        for (path, kind) in &self.items {
            let _ = writeln!(list, "{kind} {path}");
        }
        let _ = writeln!(list, "{functions} functions");
        for path in &self.functions {
            let _ = writeln!(list, "fn {path}");
        }
        list
    }
}

/// Parses all source files below a directory, except models and tests.
fn parse(dir: &Path, files: &mut Vec<(PathBuf, syn::File)>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "loom_tests" {
            parse(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let parsed = syn::parse_file(&fs::read_to_string(&path)?);
            let parsed =
                parsed.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            files.push((path, parsed));
        }
    }
    Ok(())
}

/// Returns the name and the kind of an item that is public in its file.
fn definition(item: &Item) -> Option<(String, &'static str)> {
    let (name, kind) = match item {
        Item::Struct(item) => (&item.ident, "struct"),
        Item::Enum(item) => (&item.ident, "enum"),
        Item::Union(item) => (&item.ident, "union"),
        Item::Trait(item) => (&item.ident, "trait"),
        Item::Type(item) => (&item.ident, "type"),
        Item::Const(item) => (&item.ident, "const"),
        Item::Static(item) => (&item.ident, "static"),
        Item::Fn(item) => (&item.sig.ident, "fn"),
        _ => return None,
    };
    is_public(item).then(|| (name.to_string(), kind))
}

fn is_public(item: &Item) -> bool {
    let visibility = match item {
        Item::Struct(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Union(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Const(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Use(item) => &item.vis,
        Item::Mod(item) => &item.vis,
        _ => return false,
    };
    matches!(visibility, Visibility::Public(_))
}

/// Returns whether an item exists only in the build that counts cache line transfers, or only for
/// tests and benches.
fn is_for_tests(item: &Item) -> bool {
    let Item::Use(ItemUse { attrs, .. }) = item else { return false };
    let cfg_attrs = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    let mut conditions = cfg_attrs.filter_map(|attr| attr.parse_args::<syn::MetaNameValue>().ok());
    conditions.any(|condition| condition.path.is_ident("hotmem_atomics"))
        || needs_test_feature(attrs)
}

/// Returns whether an item exists only with the feature `probes` or `internals`, for tests and
/// benches of this repository.
fn needs_test_feature(attrs: &[Attribute]) -> bool {
    let cfg_attrs = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    let mut conditions = cfg_attrs.filter_map(|attr| attr.parse_args::<syn::MetaNameValue>().ok());
    conditions.any(|condition| {
        let Expr::Lit(ExprLit { lit: Lit::Str(feature), .. }) = &condition.value else {
            return false;
        };
        condition.path.is_ident("feature")
            && ["probes", "internals"].contains(&feature.value().as_str())
    })
}

/// Collects the names that a `use` brings into scope.
fn imported_names(tree: &UseTree, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => imported_names(&path.tree, names),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(rename) => names.push(rename.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| imported_names(tree, names)),
        UseTree::Glob(_) => names.push("*".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(root: &str, module: &str) -> Result<Api, String> {
        let [root, module] = [root, module].map(|text| syn::parse_file(text).unwrap().items);
        let all_items: Vec<&Item> = root.iter().chain(&module).collect();
        Api::new(&root, |name| (name == "inner").then_some(&module), &all_items)
    }

    #[test]
    fn reexports_of_the_root_are_listed_with_their_functions() {
        let root = "pub mod inner; mod hidden; pub use hidden::{A, b}; pub use inner::C as C;";
        let module = "pub struct A; pub struct C; pub(crate) struct D; pub fn b() {} \
                      impl A { pub fn a(&self) {} fn own(&self) {} made! { pub fn new() {} } } \
                      impl Clone for A { fn clone(&self) -> A { A } } impl D { pub fn d() {} }";
        let api = api(root, module).unwrap();
        let items: Vec<_> = api.items.keys().map(String::as_str).collect();
        assert_eq!(items, ["A", "C", "inner", "inner::A", "inner::C"]);
        let functions: Vec<_> = api.functions.iter().map(String::as_str).collect();
        assert_eq!(functions, ["A::a", "A::new", "b", "inner::b"]);
    }

    #[test]
    fn items_of_the_counting_build_are_not_listed() {
        let root = "#[cfg(hotmem_atomics = \"counted\")] pub use elsewhere::counted; \
                    #[cfg(not(loom))] pub use hidden::A;";
        let api = api(root, "pub struct A;").unwrap();
        assert_eq!(api.items.into_keys().collect::<Vec<_>>(), ["A"]);
    }

    #[test]
    fn items_for_tests_and_benches_are_not_listed() {
        let root = "pub use hidden::A; #[cfg(feature = \"internals\")] pub use hidden::B;";
        let module = "pub struct A; impl A { #[cfg(feature = \"probes\")] pub fn probes() {} \
                      #[cfg(feature = \"internals\")] pub fn isolate() {} \
                      #[cfg(feature = \"std\")] pub fn new() {} } \
                      #[cfg(feature = \"internals\")] impl A { pub fn tables() {} } \
                      pub struct B; impl B { pub fn b() {} }";
        let api = api(root, module).unwrap();
        assert_eq!(api.items.into_keys().collect::<Vec<_>>(), ["A"]);
        assert_eq!(api.functions.into_iter().collect::<Vec<_>>(), ["A::new"]);
    }

    #[test]
    fn a_path_that_cannot_be_resolved_is_an_error() {
        assert!(api("pub use elsewhere::*;", "").is_err());
        assert!(api("pub mod missing;", "").is_err());
    }
}
