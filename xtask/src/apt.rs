//! Runs apt-get and other commands that install packages. Each command shows one line of progress.

use crate::{
    progress,
    step::{root, runs},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Downloads packages by apt with additional `options`, and unpacks them into a directory.
pub(crate) fn download(dir: &Path, options: &[String], names: &[&str]) {
    let packages = dir.join("packages");
    if fs::create_dir_all(&packages).is_err() {
        return;
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let args = [&APT_RETRIES[..], &options, &["download", "-q"], names].concat();
    show_in(&packages, "apt-get", &args);
    for (package, _) in files(&packages) {
        show_in(dir, "dpkg-deb", &["--extract", &package.display().to_string(), "."]);
    }
}

/// Returns the entries of a directory and their names. A missing directory counts as empty.
pub(crate) fn files(dir: &Path) -> impl Iterator<Item = (PathBuf, String)> {
    let files = dir.read_dir().into_iter().flatten().flatten();
    files.map(|file| (file.path(), file.file_name().to_string_lossy().into_owned()))
}

/// Options with which apt-get repeats failed downloads and waits for another running apt-get.
pub(crate) const APT_RETRIES: [&str; 4] =
    ["-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"];

/// Runs apt-get as root. Does nothing if there is no apt-get or if the user may not become root.
pub(crate) fn apt_as_root(args: &[&str]) {
    if !runs("apt-get", &["--version"]) {
        return;
    }
    let sudo: &[&str] = if is_root() {
        &[]
    } else if runs("sudo", &["-n", "true"]) {
        &["sudo", "-n"]
    } else {
        return;
    };
    let apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
    let words = [sudo, &apt, &APT_RETRIES, args].concat();
    show(words[0], &words[1..]);
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Prints a command and runs it. Shows the command's output if it fails. The caller must check
/// whether the installation succeeded.
pub(crate) fn show(program: &str, args: &[&str]) {
    show_in(root(), program, args);
}

fn show_in(dir: &Path, program: &str, args: &[&str]) {
    let title = format!("installing: {program} {}", without_options(args));
    progress::run(&title, Command::new(program).args(args).current_dir(dir));
}

/// Returns the arguments that are not options.
fn without_options(args: &[&str]) -> String {
    let is_value =
        |index: usize| index.checked_sub(1).is_some_and(|previous| args[previous] == "-o");
    let words =
        args.iter().enumerate().filter(|&(index, arg)| !arg.starts_with('-') && !is_value(index));
    words.map(|(_, &arg)| arg).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_command_has_no_options() {
        let args = [&APT_RETRIES[..], &["install", "-q", "-y", "qemu-system-x86"]].concat();
        assert_eq!(without_options(&args), "install qemu-system-x86");
    }
}
