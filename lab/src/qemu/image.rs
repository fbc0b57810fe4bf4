//! Finds a guest's image at a path, or builds the image from this workspace.

use super::{Architecture, Error};
use serde::Deserialize;
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PACKAGE: &str = "hotmem-guest";
const XEN_PACKAGE: &str = "hotmem-guest-xen";
const TARGET: &str = "x86_64-unknown-none";
const AARCH64_TARGET: &str = "aarch64-unknown-none-softfloat";
const RISCV64_TARGET: &str = "riscv64imac-unknown-none-elf";
const PSERIES_PACKAGE: &str = "hotmem-guest-pseries";
const PSERIES_TARGET: &str = "powerpc64le-unknown-linux-gnu";

/// Returns the reference guest's image for a PC: `path`, or if that is `None`, the image that cargo
/// builds from this workspace.
///
/// # Errors
/// [`Error::NoImage`] or [`Error::Build`].
pub fn find(path: Option<&Path>) -> Result<PathBuf, Error> {
    find_for(Architecture::X86_64, path)
}

/// Returns the reference guest's image for an architecture, as [`find`] does.
///
/// # Errors
/// As for [`find`].
pub fn find_for(architecture: Architecture, path: Option<&Path>) -> Result<PathBuf, Error> {
    let target = match architecture {
        Architecture::X86_64 => TARGET,
        Architecture::Aarch64 => AARCH64_TARGET,
        Architecture::Riscv64 => RISCV64_TARGET,
    };
    find_package(PACKAGE, target, path)
}

/// Returns the reference guest's image for riscv64 with page tables of four levels (Sv48), which cargo
/// builds from this workspace.
///
/// # Errors
/// As for [`find`].
pub fn find_riscv64_sv48() -> Result<PathBuf, Error> {
    let features = ["--features", "sv48", "--target-dir", "target/sv48"];
    build(PACKAGE, RISCV64_TARGET, &features, Path::new(WORKSPACE))
}

/// Returns the image of the guest that Xen starts, as [`find`] does.
///
/// # Errors
/// As for [`find`].
pub fn find_xen(path: Option<&Path>) -> Result<PathBuf, Error> {
    find_package(XEN_PACKAGE, TARGET, path)
}

/// Returns the image of the guest of QEMU's pseries machine, as [`find`] does.
///
/// # Errors
/// As for [`find`].
pub fn find_pseries(path: Option<&Path>) -> Result<PathBuf, Error> {
    find_package(PSERIES_PACKAGE, PSERIES_TARGET, path)
}

fn find_package(package: &str, target: &str, path: Option<&Path>) -> Result<PathBuf, Error> {
    match path {
        Some(path) if path.is_file() => Ok(path.to_owned()),
        Some(path) => Err(Error::NoImage(path.to_owned())),
        None => build(package, target, &[], Path::new(WORKSPACE)),
    }
}

/// A message of cargo, with the fields that `executable` reads.
#[derive(Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    executable: Option<PathBuf>,
    /// Whether the artifact was up to date before this build.
    #[serde(default, rename = "fresh")]
    is_fresh: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Calls cargo with these arguments as well, which builds the image if it is out of date, and returns the
/// image's path.
fn build(
    package: &str,
    target: &str,
    arguments: &[&str],
    workspace: &Path,
) -> Result<PathBuf, Error> {
    let output = Command::new("cargo")
        .args(["build", "--quiet", "--release", "--package", package, "--target", target])
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::Build(format!("cargo could not be started: {error}")))?;
    if !output.status.success() {
        return Err(Error::Build(format!(
            "cargo ended with {} (`cargo xtask setup` installs the missing programs and targets)",
            output.status
        )));
    }
    let image = executable(package, &String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| Error::Build("cargo's messages name no executable".into()))?;
    if !image.is_fresh {
        crate::out::remark(format_args!("built the guest image {}", image.path.display()));
    }
    Ok(image.path)
}

struct Executable {
    path: PathBuf,
    is_fresh: bool,
}

fn executable(package: &str, messages: &str) -> Option<Executable> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.reason == "compiler-artifact")
        .filter(|message| message.target.as_ref().is_some_and(|target| target.name == package))
        .find_map(|message| {
            Some(Executable { path: message.executable?, is_fresh: message.is_fresh })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_of_the_guests_package_is_returned() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"hotmem"},"executable":null,"fresh":true}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"hotmem-guest"},"executable":"/t/guest","fresh":false}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let image = executable(PACKAGE, messages).unwrap();
        assert_eq!((image.path, image.is_fresh), (PathBuf::from("/t/guest"), false));
        assert!(executable(PACKAGE, r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn the_error_of_a_missing_image_has_its_path() {
        let error = find(Some(Path::new("/nowhere/guest"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/guest"));
    }
}
