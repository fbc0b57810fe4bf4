//! `cargo xtask api`, which lists the public interface of the engine in docs/api.txt.
//!
//! The list has all items that users of the engine can name, the signatures of the inherent functions
//! of types among them, and those of the functions that traits among them have. So a commit that
//! changes an argument or a result changes the list. A function that each implementation of a trait must
//! have ends with `;`. Other crates may define the items. The list has no variants or fields, and nothing
//! that only the benches' and tests' builds have.

mod definition;

use crate::{files::rust_files, step::root};
use definition::{Definition, impl_items, imported_names, is_for_tests, is_public, line_of};
use std::{collections::BTreeMap, fs, io, path::PathBuf};
use syn::{ImplItem, Item, Type};

pub(crate) const LIST: &str = "docs/api.txt";
/// The crate whose root defines the interface.
const ENGINE: &str = "crates/hotmem/src";
/// The crates that define the items of the interface.
const DEFINING_CRATES: [&str; 3] =
    [ENGINE, "crates/hotmem-addr/src", "crates/hotmem-invariant/src"];
/// The largest allowed size of the interface.
const MAX_ITEMS: usize = 75;
const MAX_FUNCTIONS: usize = 115;

/// Returns a problem if the list in docs/ differs from the sources, or is too long.
pub(crate) fn problems() -> io::Result<Vec<String>> {
    let api = Api::of_engine()?;
    let (items, functions) = (api.items.len(), api.functions.len());
    let is_listed = fs::read_to_string(root().join(LIST)).unwrap_or_default() == api.list();
    Ok(if !is_listed {
        vec![format!("{LIST} differs from the engine's interface: run cargo xtask api")]
    } else if items > MAX_ITEMS || functions > MAX_FUNCTIONS {
        vec![format!(
            "the engine has {items} public items and {functions} functions, but at most {MAX_ITEMS} \
             and {MAX_FUNCTIONS} are allowed"
        )]
    } else {
        Vec::new()
    })
}

/// Writes the list.
pub(crate) fn write() -> io::Result<()> {
    let api = Api::of_engine()?;
    fs::write(root().join(LIST), api.list())?;
    println!("{LIST}: {} items, {} functions", api.items.len(), api.functions.len());
    Ok(())
}

/// The public interface of a crate: a line for each item, by path. Paths start at the crate's root.
#[derive(Default, Debug, PartialEq, Eq)]
struct Api {
    items: BTreeMap<String, String>,
    functions: BTreeMap<String, String>,
    /// The functions of traits, which a kernel implements.
    trait_functions: BTreeMap<String, String>,
}

impl Api {
    fn of_engine() -> io::Result<Api> {
        let files = DEFINING_CRATES.iter().flat_map(|dir| rust_files(&root().join(dir)));
        // If two builds define a function differently, the order of files chooses the signature.
        let files: BTreeMap<PathBuf, Vec<Item>> = files
            .filter(|file| !file.iter().any(|name| name == "loom_tests"))
            .map(|file| {
                let parsed = syn::parse_file(&fs::read_to_string(&file)?)
                    .map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
                let items = if is_for_tests(&parsed.attrs) { Vec::new() } else { parsed.items };
                Ok((file, items))
            })
            .collect::<io::Result<_>>()?;
        let module_items = |module: &str| {
            let mut paths = [format!("{module}.rs"), format!("{module}/mod.rs")].into_iter();
            paths.find_map(|path| files.get(&root().join(ENGINE).join(path))).map(Vec::as_slice)
        };
        let all_items: Vec<&Item> = files.values().flatten().collect();
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
        let defined = all_items.iter().filter_map(|item| Definition::of(item)).collect();
        let mut api = Api::default();
        api.add_public_items(root, "", &module_items, &defined)?;
        all_items.iter().for_each(|item| api.add_functions(item));
        Ok(api)
    }

    fn add_public_items<'s>(
        &mut self,
        items: &'s [Item],
        path: &str,
        module_items: &impl Fn(&str) -> Option<&'s [Item]>,
        defined: &BTreeMap<String, Definition>,
    ) -> Result<(), String> {
        for item in items {
            let mut names = Vec::new();
            match item {
                Item::Use(item) if is_public(&item.vis) && !is_for_tests(&item.attrs) => {
                    imported_names(&item.tree, &mut names);
                }
                Item::Mod(item) if is_public(&item.vis) => {
                    let name = item.ident.to_string();
                    let path = format!("{path}{name}");
                    self.items.insert(path.clone(), format!("mod {path}"));
                    let inner = module_items(&name).ok_or(format!("no file for {name}"))?;
                    self.add_public_items(inner, &format!("{path}::"), module_items, defined)?;
                }
                other => names.extend(Definition::of(other).map(|(name, _)| name)),
            }
            for name in names {
                let found = defined.get(&name).ok_or(format!("{name} has no definition"))?;
                let path = format!("{path}{name}");
                match found {
                    Definition::Function(signature) => {
                        self.functions.insert(path.clone(), line_of(signature, &path))
                    }
                    Definition::Item(kind) => {
                        self.items.insert(path.clone(), format!("{kind} {path}"))
                    }
                };
            }
        }
        Ok(())
    }

    /// Adds the functions of an `impl` block of a listed type, or of a listed trait.
    fn add_functions(&mut self, item: &Item) {
        match item {
            Item::Impl(block) if block.trait_.is_none() && !is_for_tests(&block.attrs) => {
                let Type::Path(path) = &*block.self_ty else { return };
                let Some(name) = path.path.segments.last() else { return };
                if let Some(path) = self.path_of(&name.ident.to_string()) {
                    self.add_inherent_functions(&path, &block.items);
                }
            }
            Item::Trait(item) => {
                let Some(path) = self.path_of(&item.ident.to_string()) else { return };
                for item in &item.items {
                    if let syn::TraitItem::Fn(function) = item
                        && !is_for_tests(&function.attrs)
                    {
                        let path = format!("{path}::{}", function.sig.ident);
                        let end = if function.default.is_none() { ";" } else { "" };
                        let line = line_of(&function.sig, &path) + end;
                        self.trait_functions.insert(path, line);
                    }
                }
            }
            _ => {}
        }
    }

    fn add_inherent_functions(&mut self, path: &str, items: &[ImplItem]) {
        for item in items {
            match item {
                ImplItem::Fn(function)
                    if is_public(&function.vis) && !is_for_tests(&function.attrs) =>
                {
                    let path = format!("{path}::{}", function.sig.ident);
                    self.functions.insert(path.clone(), line_of(&function.sig, &path));
                }
                // The macro expands to functions with the same signatures.
                ImplItem::Macro(called) => {
                    self.add_inherent_functions(path, &impl_items(&called.mac));
                }
                _ => {}
            }
        }
    }

    /// Returns the path of the item with this name.
    fn path_of(&self, name: &str) -> Option<String> {
        self.items.keys().find(|path| path.rsplit("::").next() == Some(name)).cloned()
    }

    fn list(&self) -> String {
        let part = |what: &str, lines: &BTreeMap<String, String>| {
            let text: String = lines.values().map(|line| format!("{line}\n")).collect();
            format!("{} {what}\n{text}", lines.len())
        };
        part("items", &self.items)
            + &part("functions", &self.functions)
            + &part("functions of traits", &self.trait_functions)
    }
}

#[cfg(test)]
mod tests;
