//! Lists the files of directories.

use std::path::{Path, PathBuf};

/// Returns the files below a directory in the order of their paths, without hidden files and build
/// output. A missing directory counts as empty.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let is_hidden = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with('.') || name == "target"
    };
    let mut entries: Vec<PathBuf> = entries.filter(|path| !is_hidden(path)).collect();
    entries.sort_unstable();
    let files = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.into_iter().flat_map(files).collect()
}

/// Returns the Rust sources below a directory.
pub(crate) fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = files(dir);
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    files
}

/// Returns the path of a file's module, relative to the directory of its crate's root or of another
/// module. A file `mod.rs`, `lib.rs` or `main.rs` is the module of its directory.
pub(crate) fn module(file: &Path) -> PathBuf {
    let module = file.with_extension("");
    let is_of_directory = ["mod", "lib", "main"].iter().any(|name| module.ends_with(name));
    if is_of_directory { module.parent().map(Path::to_owned).unwrap_or_default() } else { module }
}
