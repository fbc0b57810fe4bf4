//! Makes a memory cgroup. The cgroup limits the memory of all guests together, so it represents a
//! host of that size.

use anyhow::{Context, Result};
use hotmem::Bytes;
use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A cgroup below the cgroup of this process. Dropping the value removes the cgroup, which must be
/// empty by then.
pub(super) struct Cgroup {
    directory: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

impl Cgroup {
    /// Makes a cgroup that may use `limit`. Returns `None` if this process may not make a cgroup.
    pub(super) fn new(limit: Bytes) -> Option<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("hotmem-packing-{}", std::process::id());
        parent_directories(&mounts, &cgroups).into_iter().find_map(|(version, parent)| {
            let cgroup = Cgroup { directory: parent.join(&name), version };
            fs::create_dir(&cgroup.directory).ok()?;
            // If the limit cannot be set, `?` drops the cgroup, so it is removed.
            cgroup.set_limit(limit).ok()?;
            Some(cgroup)
        })
    }

    fn set_limit(&self, limit: Bytes) -> Result<()> {
        let write = |file: &str, value: String| {
            let path = self.directory.join(file);
            fs::write(&path, value).with_context(|| format!("writing {}", path.display()))
        };
        match self.version {
            Version::One => {
                write("memory.limit_in_bytes", limit.0.to_string())?;
                // This file is the limit of memory and swap together. It exists only if the kernel
                // counts swap, so an error is ignored.
                let _ = write("memory.memsw.limit_in_bytes", limit.0.to_string());
            }
            Version::Two => {
                write("memory.max", limit.0.to_string())?;
                let _ = write("memory.swap.max", "0".into());
            }
        }
        Ok(())
    }

    /// Returns the file to which a process writes its id to join the cgroup.
    pub(super) fn procs_file(&self) -> Result<Arc<File>> {
        let path = self.directory.join("cgroup.procs");
        let file = OpenOptions::new().write(true).open(&path);
        Ok(Arc::new(file.with_context(|| format!("opening {}", path.display()))?))
    }

    /// Returns the memory that the processes of the cgroup use.
    pub(super) fn used(&self) -> Option<Bytes> {
        let file = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        let text = fs::read_to_string(self.directory.join(file)).ok()?;
        text.trim().parse().ok().map(Bytes)
    }

    /// Returns how many processes of the cgroup were killed because of the limit.
    pub(super) fn killed(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.directory.join(file)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Killed processes leave the cgroup a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Returns the directories in which this process may make memory cgroups. Those of version 2 come
/// last, because on a host with both versions the memory controller belongs to version 1.
fn parent_directories(mounts: &str, cgroups: &str) -> Vec<(Version, PathBuf)> {
    // Finds where a file system of a type is mounted with an option.
    let mount_point = |fs_type: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut after = after.split_whitespace();
            let matches = after.next() == Some(fs_type)
                && after.nth(1).is_some_and(|options| options.split(',').any(|o| o == option));
            matches.then(|| before.split_whitespace().nth(4)).flatten()
        })
    };
    // Finds the path of this process's cgroup that has a controller.
    let path = |controller: &str| {
        cgroups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            controllers.split(',').any(|c| c == controller).then(|| parts.next()).flatten()
        })
    };
    let mut parent_directories = Vec::new();
    if let (Some(mount), Some(path)) = (mount_point("cgroup", "memory"), path("memory")) {
        parent_directories.push((Version::One, directory_of(mount, path)));
    }
    if let (Some(mount), Some(path)) = (mount_point("cgroup2", "rw"), path("")) {
        parent_directories.push((Version::Two, directory_of(mount, path)));
        // In version 2 a cgroup that contains processes may have no children with controllers.
        parent_directories.push((Version::Two, PathBuf::from(mount)));
    }
    parent_directories
}

/// Returns the directory of the cgroup `path` of the hierarchy that is mounted at `mount`.
fn directory_of(mount: &str, path: &str) -> PathBuf {
    Path::new(mount).join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_both_versions_are_found() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let cgroups = "4:memory:/a/b\n0::/c\n";
        let expected = [
            (Version::One, "/sys/fs/cgroup/memory/a/b"),
            (Version::Two, "/sys/fs/cgroup/unified/c"),
            (Version::Two, "/sys/fs/cgroup/unified"),
        ];
        let expected = expected.map(|(version, path)| (version, PathBuf::from(path)));
        assert_eq!(parent_directories(mounts, cgroups), expected);
        assert_eq!(parent_directories("", cgroups), []);
        assert_eq!(parent_directories(mounts, "").len(), 0);
    }

    #[test]
    fn a_cgroup_is_made_and_removed() {
        let Some(cgroup) = Cgroup::new(Bytes::mib(64)) else { return };
        assert_eq!(cgroup.killed(), 0);
        assert!(cgroup.used().is_some());
        let directory = cgroup.directory.clone();
        drop(cgroup);
        assert!(!directory.exists());
    }
}
