//! Finds the parts of the Linux guest in Debian's packages.

use super::{distribution::Distribution, drivers::Drivers, error::Error};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Suffixes of module files. BusyBox decompresses the second.
const SUFFIXES: [&str; 2] = ["ko", "ko.xz"];

/// A kernel, and the files for its initramfs.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Packages {
    pub(super) kernel: PathBuf,
    pub(super) busybox: PathBuf,
    /// The modules in the order of loading, without those that the kernel contains.
    pub(super) modules: Vec<PathBuf>,
    /// The programs besides BusyBox, and their libraries.
    pub(super) programs: Vec<PathBuf>,
}

impl Packages {
    /// Returns the packages that are unpacked or installed below `root`, or `None` if there is no
    /// kernel of the distribution or no BusyBox.
    pub(super) fn below(
        root: &Path,
        distribution: &Distribution,
        drivers: Drivers,
    ) -> Result<Option<Packages>, Error> {
        let kernel = newest_kernel(&root.join("boot"), distribution.flavour);
        let Some((kernel, release)) = kernel else { return Ok(None) };
        let find = |path: &str| {
            // Some distributions have merged `/bin` and `/lib` into `/usr`.
            let paths = [root.join(path), root.join("usr").join(path)];
            paths.into_iter().find(|path| path.exists())
        };
        let Some(busybox) = find("bin/busybox") else { return Ok(None) };
        let modules = format!("lib/modules/{release}");
        let modules = find(&modules).ok_or_else(|| Error::Missing(root.join(modules)))?;
        let built_in = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
        let mut found = Vec::new();
        for module in drivers.modules() {
            let file = |suffix| modules.join(format!("kernel/drivers/{module}.{suffix}"));
            let files = SUFFIXES.map(file);
            match files.iter().find(|file| file.exists()) {
                Some(file) => found.push(file.clone()),
                None if built_in.lines().any(|line| line.ends_with(&format!("/{module}.ko"))) => {}
                None => return Err(Error::Missing(files[0].clone())),
            }
        }
        let program = |path: &&str| find(path).ok_or_else(|| Error::Missing(root.join(path)));
        let programs = drivers.programs().iter().map(program).collect::<Result<_, _>>()?;
        Ok(Some(Packages { kernel, busybox, modules: found, programs }))
    }
}

/// Returns the kernel of a flavour with the highest name, and its release as `uname -r` prints it.
fn newest_kernel(boot: &Path, flavour: &str) -> Option<(PathBuf, String)> {
    let names =
        fs::read_dir(boot).ok()?.flatten().filter_map(|file| file.file_name().into_string().ok());
    let releases = names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned));
    let release = releases.filter(|release| release.ends_with(flavour)).max()?;
    Some((boot.join(format!("vmlinuz-{release}")), release))
}

#[cfg(test)]
mod tests {
    use super::{
        super::distribution::{AMD64, ARM64},
        *,
    };

    const RELEASE: &str = "6.1.0-56-cloud-amd64";

    /// A directory with empty files. It is removed when this is dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[&str]) -> Tree {
            let tree =
                Tree(std::env::temp_dir().join(format!("hotmem-{name}-{}", std::process::id())));
            // A killed run may have left the directory.
            let _ = fs::remove_dir_all(&tree.0);
            for file in files {
                let path = tree.0.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            tree
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn files(drivers: Drivers, suffix: &str) -> Vec<String> {
        let path = |module| format!("usr/lib/modules/{RELEASE}/kernel/drivers/{module}.{suffix}");
        drivers.modules().iter().map(path).collect()
    }

    fn tree(name: &str, drivers: &[String]) -> Tree {
        let kernel = format!("boot/vmlinuz-{RELEASE}");
        let other_files = ["boot/vmlinuz-6.1.0-9-amd64", "boot/config-9", "bin/busybox", &kernel];
        let files: Vec<&str> =
            other_files.into_iter().chain(drivers.iter().map(String::as_str)).collect();
        Tree::new(name, &files)
    }

    #[test]
    fn all_parts_are_found_and_modules_are_in_order() {
        for drivers in [Drivers::Virtio, Drivers::Nvdimm] {
            let files = files(drivers, "ko.xz");
            let tree = tree("linux-all", &files);
            let found = Packages::below(&tree.0, &AMD64, drivers).unwrap().unwrap();
            assert_eq!(found.kernel, tree.0.join("boot").join(format!("vmlinuz-{RELEASE}")));
            assert_eq!(found.busybox, tree.0.join("bin/busybox"));
            let expected: Vec<_> = files.iter().map(|path| tree.0.join(path)).collect();
            assert_eq!(found.modules, expected);
        }
    }

    #[test]
    fn a_missing_module_is_named_unless_the_kernel_has_it() {
        let mut files = files(Drivers::Virtio, "ko");
        files.remove(0);
        let tree = tree("linux-module", &files);
        let error = Packages::below(&tree.0, &AMD64, Drivers::Virtio).unwrap_err();
        assert!(error.to_string().contains("virtio_ring.ko"), "{error}");
        let list = tree.0.join(format!("usr/lib/modules/{RELEASE}/modules.builtin"));
        fs::write(list, "kernel/drivers/virtio/virtio_ring.ko\n").unwrap();
        let found = Packages::below(&tree.0, &AMD64, Drivers::Virtio).unwrap().unwrap();
        assert_eq!(found.modules.len(), files.len());
    }

    #[test]
    fn a_root_without_packages_is_no_error() {
        assert_eq!(Packages::below(Path::new("/nowhere"), &AMD64, Drivers::Virtio).unwrap(), None);
        let other = Tree::new("linux-other", &["boot/vmlinuz-6.1.0-9-amd64", "bin/busybox"]);
        assert_eq!(Packages::below(&other.0, &AMD64, Drivers::Virtio).unwrap(), None);
        let x86 = tree("linux-x86", &files(Drivers::Virtio, "ko"));
        assert_eq!(Packages::below(&x86.0, &ARM64, Drivers::Virtio).unwrap(), None);
    }
}
