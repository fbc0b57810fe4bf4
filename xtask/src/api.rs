//! `cargo xtask api`, which lists the public interface of the engine in docs/api.txt.
//!
//! The list has all items that users of the engine can name, the signatures of the inherent functions
//! of types among them, and those of the functions that traits among them have. So a commit that
//! changes an argument or a result changes the list. Other crates may define the items. The list has
//! no variants or fields, and nothing that only the benches' and tests' builds have.

use crate::{step::root, steps::Steps};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};
use syn::{
    Attribute, Expr, ExprLit, ImplItem, Item, ItemImpl, ItemTrait, ItemUse, Lit, Signature,
    TraitItem, Type, UseTree, Visibility, parse::ParseStream, parse::Parser as _,
    spanned::Spanned as _,
};

const LIST: &str = "docs/api.txt";
/// The crate whose root defines the interface.
const ENGINE: &str = "crates/hotmem/src";
/// The crates that define the items of the interface.
const DEFINING_CRATES: [&str; 3] =
    [ENGINE, "crates/hotmem-addr/src", "crates/hotmem-invariant/src"];
/// The largest allowed size of the interface.
const LIMITS: Counts = Counts { items: 75, functions: 106 };

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

/// The public interface of a crate: the kind of each item, and the signatures of functions, by path.
/// Paths start at the crate's root.
#[derive(Default, Debug, PartialEq, Eq)]
struct Api {
    items: BTreeMap<String, &'static str>,
    functions: BTreeMap<String, String>,
    /// The functions of traits, which a kernel implements.
    trait_functions: BTreeMap<String, String>,
}

/// An item that is public in its file.
#[derive(Clone)]
enum Definition {
    /// An item of this kind.
    Item(&'static str),
    /// A function with this signature.
    Function(Box<Signature>),
}

impl Api {
    fn of_engine() -> io::Result<Api> {
        let mut sources = Vec::new();
        for dir in DEFINING_CRATES {
            parse(&root().join(dir), &mut sources)?;
        }
        // If two builds define a function differently, the order of files chooses the signature.
        sources.sort_by(|(one, _), (other, _)| one.cmp(other));
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
        all_items.iter().filter_map(|item| definition(item)).for_each(|(name, definition)| {
            defined.insert(name, definition);
        });
        let mut api = Api::default();
        api.add_public_items(root, "", &module_items, &defined)?;
        for item in all_items {
            if let Item::Impl(block @ ItemImpl { trait_: None, attrs, .. }) = item
                && !needs_test_feature(attrs)
            {
                api.add_functions(block);
            }
            if let Item::Trait(item) = item {
                api.add_trait_functions(item);
            }
        }
        Ok(api)
    }

    fn add_public_items<'s>(
        &mut self,
        items: &'s [Item],
        path: &str,
        module_items: &impl Fn(&str) -> Option<&'s [Item]>,
        defined: &BTreeMap<String, Definition>,
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
                let found = defined.get(&name).ok_or(format!("{name} has no definition"))?;
                let path = format!("{path}{name}");
                match found {
                    Definition::Function(signature) => {
                        self.functions.insert(path.clone(), line_of(signature, &path));
                    }
                    Definition::Item(kind) => {
                        self.items.insert(path, kind);
                    }
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
        let Some(path) = self.path_of(&type_name) else { return };
        self.add_functions_of(&path, &block.items);
    }

    fn add_functions_of(&mut self, path: &str, items: &[ImplItem]) {
        for item in items {
            match item {
                ImplItem::Fn(function) => {
                    let is_public = matches!(function.vis, Visibility::Public(_));
                    if is_public && !needs_test_feature(&function.attrs) {
                        let path = format!("{path}::{}", function.sig.ident);
                        self.functions.insert(path.clone(), line_of(&function.sig, &path));
                    }
                }
                // The macro expands to functions with the same signatures.
                ImplItem::Macro(called) => {
                    let inner = impl_items.parse2(called.mac.tokens.clone());
                    self.add_functions_of(path, &inner.unwrap_or_default());
                }
                _ => {}
            }
        }
    }

    fn add_trait_functions(&mut self, item: &ItemTrait) {
        let Some(path) = self.path_of(&item.ident.to_string()) else { return };
        for item in &item.items {
            if let TraitItem::Fn(function) = item
                && !needs_test_feature(&function.attrs)
            {
                let path = format!("{path}::{}", function.sig.ident);
                self.trait_functions.insert(path.clone(), line_of(&function.sig, &path));
            }
        }
    }

    /// Returns the path of the item with this name.
    fn path_of(&self, name: &str) -> Option<String> {
        self.items.keys().find(|path| path.rsplit("::").next() == Some(name)).cloned()
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
        for signature in self.functions.values() {
            let _ = writeln!(list, "{signature}");
        }
        let _ = writeln!(list, "{} functions of traits", self.trait_functions.len());
        for signature in self.trait_functions.values() {
            let _ = writeln!(list, "{signature}");
        }
        list
    }
}

/// Parses all source files below a directory, except models, tests and files that exist only for
/// tests.
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
            if !needs_test_feature(&parsed.attrs) {
                files.push((path, parsed));
            }
        }
    }
    Ok(())
}

/// Returns a signature in one line, with the path of its function instead of the name.
fn line_of(signature: &Signature, path: &str) -> String {
    let text = signature.span().source_text().unwrap_or_default();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.replace("( ", "(").replace(", )", ")").replace(" )", ")");
    // A caller does not see whether an argument can change.
    let line = line.replace("(mut ", "(").replace(", mut ", ", ");
    line.replacen(&format!("fn {}", signature.ident), &format!("fn {path}"), 1)
}

/// Parses the items of an `impl` block.
fn impl_items(input: ParseStream<'_>) -> syn::Result<Vec<ImplItem>> {
    let mut items = Vec::new();
    while !input.is_empty() {
        items.push(input.parse()?);
    }
    Ok(items)
}

/// Returns the name and the definition of an item that is public in its file.
fn definition(item: &Item) -> Option<(String, Definition)> {
    let (name, kind) = match item {
        Item::Struct(item) => (&item.ident, "struct"),
        Item::Enum(item) => (&item.ident, "enum"),
        Item::Union(item) => (&item.ident, "union"),
        Item::Trait(item) => (&item.ident, "trait"),
        Item::Type(item) => (&item.ident, "type"),
        Item::Const(item) => (&item.ident, "const"),
        Item::Static(item) => (&item.ident, "static"),
        Item::Fn(function) => {
            let definition = Definition::Function(Box::new(function.sig.clone()));
            return is_public(item).then(|| (function.sig.ident.to_string(), definition));
        }
        _ => return None,
    };
    is_public(item).then(|| (name.to_string(), Definition::Item(kind)))
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
        let functions: Vec<_> = api.functions.keys().map(String::as_str).collect();
        assert_eq!(functions, ["A::a", "A::new", "b", "inner::b"]);
    }

    #[test]
    fn a_signature_is_one_line_with_the_path_of_the_function() {
        let module = "pub struct A; pub trait T { fn t(&self, _: u8) -> u8 { 0 } } \
                      impl A { pub const unsafe fn a<T: Copy>(\n    &self,\n    one: T,\n) -> T \
                      where T: Clone { one } made! { pub fn new(a: u8) -> A { A } } }";
        let list = api("pub use hidden::{A, T};", module).unwrap().list();
        let lines: Vec<_> = list.lines().collect();
        let functions = [
            "2 functions",
            "const unsafe fn A::a<T: Copy>(&self, one: T) -> T where T: Clone",
            "fn A::new(a: u8) -> A",
            "1 functions of traits",
            "fn T::t(&self, _: u8) -> u8",
        ];
        assert_eq!(lines[3..], functions);
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
        assert_eq!(api.functions.into_keys().collect::<Vec<_>>(), ["A::new"]);
    }

    #[test]
    fn a_path_that_cannot_be_resolved_is_an_error() {
        assert!(api("pub use elsewhere::*;", "").is_err());
        assert!(api("pub mod missing;", "").is_err());
    }
}
