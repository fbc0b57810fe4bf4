//! Items, signatures and attributes of a source, as the list of the interface needs them.

use syn::{
    Attribute, ImplItem, Item, Lit, MetaNameValue, Signature, UseTree, Visibility,
    parse::{ParseStream, Parser},
    spanned::Spanned,
};

/// An item that is public in its file.
#[derive(Clone)]
pub(super) enum Definition {
    /// An item of this kind.
    Item(&'static str),
    /// A function with this signature.
    Function(Box<Signature>),
}

impl Definition {
    /// Returns the name and the definition of an item that is public in its file.
    pub(super) fn of(item: &Item) -> Option<(String, Definition)> {
        let (visibility, name, kind) = match item {
            Item::Struct(item) => (&item.vis, &item.ident, "struct"),
            Item::Enum(item) => (&item.vis, &item.ident, "enum"),
            Item::Union(item) => (&item.vis, &item.ident, "union"),
            Item::Trait(item) => (&item.vis, &item.ident, "trait"),
            Item::Type(item) => (&item.vis, &item.ident, "type"),
            Item::Const(item) => (&item.vis, &item.ident, "const"),
            Item::Static(item) => (&item.vis, &item.ident, "static"),
            Item::Fn(item) => (&item.vis, &item.sig.ident, "fn"),
            _ => return None,
        };
        let definition = match item {
            Item::Fn(item) => Definition::Function(Box::new(item.sig.clone())),
            _ => Definition::Item(kind),
        };
        is_public(visibility).then(|| (name.to_string(), definition))
    }
}

pub(super) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Returns whether an item exists only in the build that counts cache line transfers, or only with the
/// feature `probes` or `internals`, for tests and benches of this repository.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    let mut conditions = conditions.filter_map(|cfg| cfg.parse_args::<MetaNameValue>().ok());
    conditions.any(|MetaNameValue { path, value, .. }| {
        let is_feature_of_tests = || {
            let syn::Expr::Lit(syn::ExprLit { lit: Lit::Str(feature), .. }) = value else {
                return false;
            };
            ["probes", "internals"].contains(&feature.value().as_str())
        };
        path.is_ident("hotmem_atomics") || path.is_ident("feature") && is_feature_of_tests()
    })
}

/// Returns a signature in one line, with the path of its function instead of the name.
pub(super) fn line_of(signature: &Signature, path: &str) -> String {
    let text = signature.span().source_text().unwrap_or_default();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.replace("( ", "(").replace(", )", ")").replace(" )", ")");
    // A caller does not see whether an argument can change.
    let line = line.replace("(mut ", "(").replace(", mut ", ", ");
    line.replacen(&format!("fn {}", signature.ident), &format!("fn {path}"), 1)
}

/// Returns the items of an `impl` block in the arguments of a macro. There are none if the arguments are
/// something else.
pub(super) fn impl_items(called: &syn::Macro) -> Vec<ImplItem> {
    let parse = |input: ParseStream<'_>| {
        let mut items = Vec::new();
        while !input.is_empty() {
            items.push(input.parse()?);
        }
        Ok(items)
    };
    parse.parse2(called.tokens.clone()).unwrap_or_default()
}

/// Collects the names that a `use` brings into scope.
pub(super) fn imported_names(tree: &UseTree, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => imported_names(&path.tree, names),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(rename) => names.push(rename.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| imported_names(tree, names)),
        UseTree::Glob(_) => names.push("*".to_owned()),
    }
}
