//! Unpacks a second, newer QEMU below the build directory: Debian's backport.
//!
//! apt reads package lists, a cache and a list of sources below the build directory. The list of
//! sources is a copy of the host's list, to which the backports are added. So apt needs no root and
//! does not change the host. apt checks the signature of the archive.

use crate::{
    apt::{APT_RETRIES, apt_as_root, download, show},
    step::{root, runs},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const PACKAGE: &str = "qemu-system-x86";

/// The message if [`install_qemu`] fails.
pub(crate) const NEWER_QEMU_WANTED: &str = "machines under a newer QEMU: Debian's backport of \
     qemu-system-x86 could not be downloaded to target/qemu10, or does not run; use Debian 12 on \
     amd64 with access to the archive's backports, and run `cargo xtask setup` again";

/// Returns the directory with the unpacked QEMU. Tests use it if the environment variable
/// `HOTMEM_QEMU` names this directory.
pub(crate) fn dir() -> PathBuf {
    root().join("target/qemu10")
}

/// Downloads and unpacks the newer QEMU, unless this was done before. Returns whether it runs.
pub(crate) fn install_qemu() -> bool {
    let dir = dir();
    let libraries = format!("LD_LIBRARY_PATH={}/usr/lib/x86_64-linux-gnu", dir.display());
    let program = format!("{}/usr/bin/qemu-system-x86_64", dir.display());
    let is_installed = || runs("env", &[&libraries, &program, "--version"]);
    if !is_installed()
        && let Some(apt) = Apt::open(&dir.join("apt"), Source::Backports)
        && let Some(names) = apt.packages_to_install()
    {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        download(&dir, &apt.options(), &names);
    }
    is_installed()
}

/// The source of the packages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The backports and the host's own distribution.
    Backports,
    /// The host's distribution for another architecture.
    Architecture(&'static str),
}

/// An apt with separate package lists.
pub(crate) struct Apt {
    dir: PathBuf,
    source: Source,
    /// The name of the backports' suite.
    suite: String,
}

impl Apt {
    /// Downloads the package lists of the host's sources, and of the backports if `source` is
    /// [`Source::Backports`].
    pub(crate) fn open(dir: &Path, source: Source) -> Option<Apt> {
        if !runs("apt-get", &["--version"]) {
            return None;
        }
        let release = fs::read_to_string("/etc/os-release").ok()?;
        let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
        let suite = format!("{codename}-backports");
        if host_targets().is_empty() {
            apt_as_root(&["update", "-q"]);
        }
        let backports = (source == Source::Backports).then_some(suite.as_str());
        let sources = source_list(&host_targets(), codename, backports)?;
        fs::create_dir_all(dir.join("lists")).ok()?;
        fs::create_dir_all(dir.join("cache")).ok()?;
        fs::write(dir.join("sources.list"), sources).ok()?;
        // apt reads from this file which packages of another architecture are installed. The file
        // is empty, because the host has none.
        fs::write(dir.join("status"), "").ok()?;
        let apt = Apt { dir: dir.into(), source, suite };
        let options = apt.options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        show("apt-get", &[&APT_RETRIES[..], &options, &["update", "-q"]].concat());
        Some(apt)
    }

    pub(crate) fn options(&self) -> Vec<String> {
        let dir = self.dir.display();
        let mut options = vec![
            format!("Dir::Etc::sourcelist={dir}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            format!("Dir::State::lists={dir}/lists"),
            format!("Dir::Cache={dir}/cache"),
            // apt needs no lock, because it installs nothing.
            "Debug::NoLocking=1".into(),
            // apt's own user may have no permission to write below the build directory.
            "APT::Sandbox::User=root".into(),
        ];
        match self.source {
            Source::Backports => options.push(format!("APT::Default-Release={}", self.suite)),
            Source::Architecture(name) => options.extend([
                format!("APT::Architecture={name}"),
                format!("APT::Architectures={name}"),
                format!("Dir::State::status={dir}/status"),
            ]),
        }
        options.into_iter().flat_map(|option| ["-o".into(), option]).collect()
    }

    /// Returns the package of the backported QEMU, and its dependencies that the host does not have
    /// in the needed version. Returns `None` if there is no backport.
    fn packages_to_install(&self) -> Option<Vec<String>> {
        let options = self.options();
        let run = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            let output = command.args(&options).args(args).env("LC_ALL", "C").output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let changes = run("apt-get", &["-s", "install", "--no-install-recommends", PACKAGE])?;
        let needed = run("apt-cache", &["depends", "--recurse", "--important", PACKAGE])?;
        let names = changed_and_needed(&changes, &needed);
        names.iter().any(|name| name == PACKAGE).then_some(names)
    }
}

/// Returns the host's package sources as apt prints them, one on each line.
fn host_targets() -> String {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(SIGNED_BY)";
    let args = ["indextargets", "--format", format, "Created-By: Packages"];
    let output = Command::new("apt-get").args(args).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Returns the text of a list of sources with these targets. If `backports` names a suite, the list
/// also has that suite on the distribution's server. Returns `None` if no target is the
/// distribution itself.
fn source_list(targets: &str, codename: &str, backports: Option<&str>) -> Option<String> {
    let mut lines = BTreeSet::new();
    let mut has_distribution = false;
    for target in targets.lines() {
        let mut words = target.split_whitespace();
        let (Some(uri), Some(release), Some("main")) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        // If a target has no key, apt prints the name of the field instead.
        let key = words.next().filter(|key| key.starts_with('/'));
        let key = key.map(|key| format!("[signed-by={key}] ")).unwrap_or_default();
        lines.insert(format!("deb {key}{uri} {release} main\n"));
        if release == codename {
            has_distribution = true;
            lines.extend(backports.map(|suite| format!("deb {key}{uri} {suite} main\n")));
        }
    }
    has_distribution.then(|| lines.into_iter().collect())
}

/// Returns the packages of `needed` that a simulated installation would install or upgrade.
fn changed_and_needed(changes: &str, needed: &str) -> Vec<String> {
    let needed: BTreeSet<&str> = needed.lines().collect();
    let changed = changes.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    changed.filter(|name| needed.contains(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backports_are_on_the_server_of_the_distribution() {
        let targets = "http://mirror/debian/ bookworm main $(SIGNED_BY)\n\
                       http://mirror/debian/ bookworm-updates main /usr/share/keyrings/key.gpg\n\
                       http://other/tools/ stable contrib $(SIGNED_BY)\n";
        let sources = source_list(targets, "bookworm", Some("bookworm-backports")).unwrap();
        let expected = "deb [signed-by=/usr/share/keyrings/key.gpg] \
                        http://mirror/debian/ bookworm-updates main\n\
                        deb http://mirror/debian/ bookworm main\n\
                        deb http://mirror/debian/ bookworm-backports main\n";
        assert_eq!(sources, expected);
        assert_eq!(source_list(targets, "trixie", None), None);
        assert_eq!(source_list("", "bookworm", None), None);
        let without_backports =
            expected.replace("deb http://mirror/debian/ bookworm-backports main\n", "");
        assert_eq!(source_list(targets, "bookworm", None), Some(without_backports));
    }

    #[test]
    fn only_needed_packages_are_installed() {
        let changes = "Reading package lists...\n\
                       Inst qemu-system-x86 [1:7.2] (1:10.0 Debian [amd64]) []\n\
                       Inst qemu-user [1:7.2] (1:10.0 Debian [amd64])\n\
                       Inst libfoo1 (2 Debian [amd64])\n\
                       Conf qemu-system-x86 (1:10.0 Debian [amd64])\n";
        let needed = "qemu-system-x86\n  Depends: libfoo1\nlibfoo1\nlibc6\n";
        assert_eq!(changed_and_needed(changes, needed), ["qemu-system-x86", "libfoo1"]);
    }
}
