//! apt's package lists: those of the host, or separate ones below the build directory.
//!
//! For separate lists, apt reads a list of sources, and has a cache, below the build directory. The list
//! of sources is a copy of the host's list, to which backports may be added. So apt needs no root and
//! does not change the host. apt checks the signature of the archive.

use crate::{
    apt::{RETRIES, run_as_root, show},
    step::{output_of, succeeds},
};
use std::{collections::BTreeSet, fs, path::Path};

/// The package lists that a command of apt reads.
pub(super) struct Lists {
    /// The options of apt that name the lists.
    pub(super) options: String,
}

impl Lists {
    pub(super) fn of_host() -> Lists {
        Lists { options: String::new() }
    }

    /// Downloads lists of the host's sources and of its distribution's backports into a directory.
    pub(super) fn of_backports(dir: &Path) -> Option<Lists> {
        let suite = format!("{}-backports", codename()?);
        Lists::download(dir, Some(&suite), &[format!("APT::Default-Release={suite}")])
    }

    /// Downloads the lists of the host's sources for another architecture into a directory.
    pub(super) fn of_architecture(dir: &Path, name: &str) -> Option<Lists> {
        fs::create_dir_all(dir).ok()?;
        // apt reads from this file which packages of the architecture are installed. The file is empty,
        // because the host has none.
        fs::write(dir.join("status"), "").ok()?;
        let status = format!("Dir::State::status={}/status", dir.display());
        let names = ["", "s"].map(|s| format!("APT::Architecture{s}={name}"));
        Lists::download(dir, None, &[&names[..], &[status]].concat())
    }

    fn download(dir: &Path, backports: Option<&str>, options: &[String]) -> Option<Lists> {
        if !succeeds("apt-get --version") {
            return None;
        }
        if host_targets().is_empty() {
            run_as_root("update -q");
        }
        let sources = source_list(&host_targets(), &codename()?, backports)?;
        for part in ["lists", "cache"] {
            fs::create_dir_all(dir.join(part)).ok()?;
        }
        fs::write(dir.join("sources.list"), sources).ok()?;
        let dir = dir.display();
        let in_dir = [
            format!("Dir::Etc::sourcelist={dir}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            format!("Dir::State::lists={dir}/lists"),
            format!("Dir::Cache={dir}/cache"),
            // apt needs no lock, because it installs nothing.
            "Debug::NoLocking=1".into(),
            // apt's own user may have no permission to write below the build directory.
            "APT::Sandbox::User=root".into(),
        ];
        let options =
            in_dir.iter().chain(options).map(|option| format!("-o '{option}' ")).collect();
        let lists = Lists { options };
        show(&format!("apt-get {RETRIES} {} update -q", lists.options));
        Some(lists)
    }

    /// Returns these packages, and those of their dependencies that the host does not have in the needed
    /// version. Returns none if the lists do not have the packages in a newer version.
    pub(super) fn changed_and_needed(&self, packages: &[String]) -> Vec<String> {
        let (options, list) = (&self.options, packages.join(" "));
        let changes =
            output_of(&format!("apt-get {options} -s install --no-install-recommends {list}"));
        let needed =
            output_of(&format!("apt-cache {options} depends --recurse --important {list}"));
        let names = changed_and_needed(&changes, &needed);
        if packages.iter().all(|package| names.contains(package)) { names } else { Vec::new() }
    }
}

/// Returns the name of the host's distribution.
fn codename() -> Option<String> {
    let release = fs::read_to_string("/etc/os-release").ok()?;
    release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).map(str::to_owned)
}

/// Returns the host's package sources as apt prints them, one on each line.
fn host_targets() -> String {
    output_of(
        "apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(SIGNED_BY)' \
         'Created-By: Packages'",
    )
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
