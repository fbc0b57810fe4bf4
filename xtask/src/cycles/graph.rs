//! The graph of the files of a crate. An edge leads from a file to each file that it uses.

use super::source::Source;
use crate::files::{module, rust_files};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// The module path of a file in the crate, such as `["memory", "pages"]` for `memory/pages.rs`.
type Module = Vec<String>;

/// The limit for the imports and re-exports that are followed for one path. Without a limit, a cycle
/// of them would be followed forever.
const MAX_IMPORTS: usize = 16;

/// The files of a crate, each with the files that it uses.
#[derive(Default)]
pub(super) struct Graph(BTreeMap<Module, BTreeSet<Module>>);

impl Graph {
    /// Makes the graph of the files below a crate's `src`.
    pub(super) fn of_crate(src: &Path) -> io::Result<Graph> {
        let file = |path: PathBuf| {
            let module = module(path.strip_prefix(src).unwrap_or(&path));
            let module = module.iter().map(|name| name.to_string_lossy().into_owned()).collect();
            Ok((module, fs::read_to_string(path)?))
        };
        let files: Vec<_> = rust_files(src).into_iter().map(file).collect::<io::Result<_>>()?;
        if files.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Graph::new(files) }
    }

    /// Makes the graph of the files with these modules and texts.
    pub(super) fn new(
        files: impl IntoIterator<Item = (Module, impl AsRef<str>)>,
    ) -> io::Result<Graph> {
        let mut sources: BTreeMap<Module, Source> = BTreeMap::new();
        for (module, text) in files {
            let source = Source::read(text.as_ref())?;
            sources.entry(module).or_default().extend(source);
        }
        let uses = |module: &Module, source: &Source| {
            let found = source.paths.iter().filter_map(|path| resolve(&sources, module, path, 0));
            found.filter(|used| used != module).collect()
        };
        let edges =
            sources.iter().map(|(module, source)| (module.clone(), uses(module, source))).collect();
        Ok(Graph(edges))
    }

    /// Returns the cycles. Files that use each other are in the same cycle.
    pub(super) fn cycles(&self) -> Vec<Vec<&Module>> {
        let mut remaining: BTreeSet<&Module> = self.0.keys().collect();
        let mut cycles = Vec::new();
        while let Some(&first) = remaining.first() {
            let reached = self.reachable(first);
            let cycle: Vec<&Module> = remaining
                .iter()
                .copied()
                .filter(|other| {
                    *other == first
                        || reached.contains(other) && self.reachable(other).contains(first)
                })
                .collect();
            remaining.retain(|module| !cycle.contains(module));
            if cycle.len() > 1 {
                cycles.push(cycle);
            }
        }
        cycles
    }

    /// Returns the graph of the parts of each directory. A part is a file, or a directory with all of
    /// its files. It uses another part of the same directory if one of its files uses a file of that
    /// part.
    pub(super) fn of_parts(&self) -> Graph {
        let mut parts = Graph::default();
        for (module, used) in &self.0 {
            for used in used {
                let shared = module.iter().zip(used).take_while(|(a, b)| a == b).count();
                // A directory's own file is no part of it.
                if let (Some(part), Some(used)) = (module.get(..=shared), used.get(..=shared)) {
                    parts.0.entry(part.to_vec()).or_default().insert(used.to_vec());
                    parts.0.entry(used.to_vec()).or_default();
                }
            }
        }
        parts
    }

    /// Returns the files that `module` uses.
    pub(super) fn files_used_by(&self, module: &Module) -> impl Iterator<Item = &Module> {
        self.0.get(module).into_iter().flatten()
    }

    /// Returns all files that `from` uses, directly or through others.
    fn reachable<'g>(&'g self, from: &'g Module) -> BTreeSet<&'g Module> {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(self.files_used_by(module).filter(|used| reached.insert(*used)));
        }
        reached
    }
}

/// Returns the file that defines the item that `path` names in the file `from`. Returns `None` if
/// another crate defines the item. `depth` is the number of imports that were followed before.
fn resolve(
    sources: &BTreeMap<Module, Source>,
    from: &Module,
    path: &[String],
    depth: usize,
) -> Option<Module> {
    let mut module = from.clone();
    let starts_with_keyword = ["crate", "super", "self"]
        .iter()
        .any(|word| path.first().is_some_and(|first| first == word));
    let is_child = |module: &Module, name: &String| {
        let child: Module = module.iter().chain([name]).cloned().collect();
        sources.contains_key(&child)
    };
    if !starts_with_keyword && !path.first().is_some_and(|first| is_child(from, first)) {
        // The path begins with a name that this file has imported, or with another crate.
        let (first, rest) = path.split_first()?;
        let imported =
            sources.get(from)?.names.get(first).filter(|_| depth < MAX_IMPORTS && !rest.is_empty());
        let full_path: Vec<String> = imported?.iter().chain(rest).cloned().collect();
        return if full_path == path {
            None
        } else {
            resolve(sources, from, &full_path, depth + 1)
        };
    }
    for segment in path {
        match segment.as_str() {
            "crate" => module.clear(),
            "super" => drop(module.pop()),
            "self" => {}
            _ if is_child(&module, segment) => module.push(segment.clone()),
            _ => {
                // The name is re-exported from another file, or defined in this file.
                let reexported = sources.get(&module).and_then(|source| source.names.get(segment));
                let Some(target) = reexported.filter(|_| depth < MAX_IMPORTS) else {
                    return Some(module);
                };
                let is_same_path = target.as_slice() == path && &module == from;
                return if is_same_path {
                    None
                } else {
                    resolve(sources, &module, target, depth + 1)
                };
            }
        }
    }
    Some(module)
}
