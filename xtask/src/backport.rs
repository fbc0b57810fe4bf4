//! Provides a second, newer QEMU: Debian's backport, unpacked below the build directory and not
//! installed.
//!
//! apt uses lists and a cache below the build directory, and a copy of the host's sources to which
//! the backports are added. So no root is needed and the host is not changed. apt checks the
//! archive's signature as always.

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

/// The message if [`qemu`] fails.
pub(crate) const WANTED: &str = "machines under a second QEMU: Debian's backport of \
     qemu-system-x86, unpacked below target/qemu10 (Debian 12 on amd64)";

/// Returns the directory with the unpacked QEMU. Tests use it if the environment variable
/// `HOTMEM_QEMU` names this directory.
pub(crate) fn dir() -> PathBuf {
    root().join("target/qemu10")
}

/// Unpacks the newer QEMU, unless that is done. Returns whether it runs.
pub(crate) fn qemu() -> bool {
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

/// The source of packages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The backports and the host's own distribution.
    Backports,
    /// The host's distribution for another architecture.
    Architecture(&'static str),
}

/// Runs apt with package lists of its own.
pub(crate) struct Apt {
    dir: PathBuf,
    from: Source,
    /// The suite of the backports.
    suite: String,
}

impl Apt {
    /// Downloads the lists of the host's sources, and those of the backports if `from` asks for
    /// them.
    pub(crate) fn open(dir: &Path, from: Source) -> Option<Apt> {
        if !runs("apt-get", &["--version"]) {
            return None;
        }
        let release = fs::read_to_string("/etc/os-release").ok()?;
        let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
        let suite = format!("{codename}-backports");
        if targets().is_empty() {
            apt_as_root(&["update", "-q"]);
        }
        let backports = (from == Source::Backports).then_some(suite.as_str());
        let sources = sources(&targets(), codename, backports)?;
        fs::create_dir_all(dir.join("lists")).ok()?;
        fs::create_dir_all(dir.join("cache")).ok()?;
        fs::write(dir.join("sources.list"), sources).ok()?;
        // No package of another architecture is installed.
        fs::write(dir.join("status"), "").ok()?;
        let apt = Apt { dir: dir.into(), from, suite };
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
            // No lock is needed, since nothing is installed.
            "Debug::NoLocking=1".into(),
            // apt's own user may not write below the build directory.
            "APT::Sandbox::User=root".into(),
        ];
        match self.from {
            Source::Backports => options.push(format!("APT::Default-Release={}", self.suite)),
            Source::Architecture(name) => options.extend([
                format!("APT::Architecture={name}"),
                format!("APT::Architectures={name}"),
                format!("Dir::State::status={dir}/status"),
            ]),
        }
        options.into_iter().flat_map(|option| ["-o".into(), option]).collect()
    }

    /// Returns the backported QEMU package and those of its dependencies that the host does not
    /// have in the version needed. Returns `None` if there is no backport.
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
fn targets() -> String {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(SIGNED_BY)";
    let args = ["indextargets", "--format", format, "Created-By: Packages"];
    let output = Command::new("apt-get").args(args).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Returns the text of a sources list with these targets. If `backports` names a suite, the list
/// has it from the distribution's server. Returns `None` if no target is the distribution itself.
fn sources(targets: &str, codename: &str, backports: Option<&str>) -> Option<String> {
    let mut lines = BTreeSet::new();
    let mut found = false;
    for target in targets.lines() {
        let mut words = target.split_whitespace();
        let (Some(uri), Some(release), Some("main")) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        // If a target does not have this field, apt prints the field's name.
        let key = words.next().filter(|key| key.starts_with('/'));
        let key = key.map(|key| format!("[signed-by={key}] ")).unwrap_or_default();
        lines.insert(format!("deb {key}{uri} {release} main\n"));
        if release == codename {
            found = true;
            lines.extend(backports.map(|suite| format!("deb {key}{uri} {suite} main\n")));
        }
    }
    found.then(|| lines.into_iter().collect())
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
    fn backports_have_the_server_of_the_distribution() {
        let targets = "http://mirror/debian/ bookworm main $(SIGNED_BY)\n\
                       http://mirror/debian/ bookworm-updates main /usr/share/keyrings/key.gpg\n\
                       http://other/tools/ stable contrib $(SIGNED_BY)\n";
        let sources = sources(targets, "bookworm", Some("bookworm-backports")).unwrap();
        let expected = "deb [signed-by=/usr/share/keyrings/key.gpg] \
                        http://mirror/debian/ bookworm-updates main\n\
                        deb http://mirror/debian/ bookworm main\n\
                        deb http://mirror/debian/ bookworm-backports main\n";
        assert_eq!(sources, expected);
        assert_eq!(super::sources(targets, "trixie", None), None);
        assert_eq!(super::sources("", "bookworm", None), None);
        let without = expected.replace("deb http://mirror/debian/ bookworm-backports main\n", "");
        assert_eq!(super::sources(targets, "bookworm", None), Some(without));
    }

    #[test]
    fn upgraded_packages_that_are_not_needed_are_left_out() {
        let changes = "Reading package lists...\n\
                       Inst qemu-system-x86 [1:7.2] (1:10.0 Debian [amd64]) []\n\
                       Inst qemu-user [1:7.2] (1:10.0 Debian [amd64])\n\
                       Inst libfoo1 (2 Debian [amd64])\n\
                       Conf qemu-system-x86 (1:10.0 Debian [amd64])\n";
        let needed = "qemu-system-x86\n  Depends: libfoo1\nlibfoo1\nlibc6\n";
        assert_eq!(changed_and_needed(changes, needed), ["qemu-system-x86", "libfoo1"]);
    }
}
