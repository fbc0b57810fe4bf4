//! Follows documents in packages outside of this workspace, as a newcomer does: the commands of the first
//! block of the shell, and the first Rust program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

const REPOSITORY: &str = "--git https://github.com/hotmem/hotmem";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Returns the first block of code in this language.
fn block<'t>(document: &'t str, language: &str) -> &'t str {
    let (_, rest) = document.split_once(&format!("```{language}\n")).expect("a block of code");
    rest.split("```").next().unwrap()
}

/// Runs lines of the shell in a directory, and returns what they print. Cargo uses a build directory of
/// its own, and not the variables with which this test was built.
fn output_of(lines: &str, directory: &Path) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", lines]).current_dir(directory).stderr(Stdio::inherit());
    let build_variables = env::vars().map(|(name, _)| name).filter(|name| {
        name.starts_with("CARGO_PKG_") || ["CARGO_MANIFEST_DIR", "RUSTFLAGS"].contains(&&**name)
    });
    for name in build_variables {
        shell.env_remove(name);
    }
    shell.env("CARGO_TARGET_DIR", root().join("target/outside"));
    let output = shell.output().expect("the shell is installed");
    assert!(output.status.success(), "{}:\n{lines}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// An empty directory outside of the workspace, which is removed at the end.
struct Outside(PathBuf);

impl Outside {
    fn new(name: &str) -> Outside {
        let directory = env::temp_dir().join(format!("hotmem-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        Outside(directory)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // If it stays, it takes a few kilobytes.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Follows a document in a directory outside of the workspace: runs its first block of commands, which
/// makes the package `name` and adds crates, and then its first program. Returns what the program prints.
fn printed_by_the_program_of(document: &str, name: &str) -> String {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let outside = Outside::new(name);
    let commands = block(&text, "sh").lines().map(offline).collect::<Vec<_>>().join("\n");
    // The versions of other crates are those of this repository, so that nothing is downloaded.
    let lock = root().join("Cargo.lock");
    output_of(&format!("{commands}\ncp '{}' .", lock.display()), &outside.0);
    let package = outside.0.join(name);
    fs::write(package.join("src/main.rs"), block(&text, "rust")).unwrap();
    output_of("cargo run --quiet --offline", &package)
}

/// Returns a command of a document, with the crates of this tree instead of those of the public
/// repository, and without what depends on the host.
fn offline(command: &str) -> String {
    let Some(crates) =
        command.strip_prefix("cargo add ").and_then(|rest| rest.strip_suffix(REPOSITORY))
    else {
        return command.replace("cargo new", "cargo new --quiet --vcs none");
    };
    let add = |name| {
        let path = root().join("crates").join(name);
        format!("cargo add --quiet --offline --path '{}'\n", path.display())
    };
    crates.split_whitespace().map(add).collect()
}

#[test]
fn the_program_of_the_readme_runs_in_a_package_of_its_own() {
    assert_eq!(
        printed_by_the_program_of("README.md", "grow"),
        "2 MiB of it: 0x0000000002000000-0x00000000021fffff\n32 MiB are left\n"
    );
}

#[test]
fn the_program_of_the_page_on_frames_runs_in_a_package_of_its_own() {
    assert_eq!(
        printed_by_the_program_of("docs/frames.md", "frames"),
        "4 512 1\nbelow 16 MiB: true\n"
    );
}
