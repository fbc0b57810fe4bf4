//! Runs apt-get and other commands that install packages. Each command shows one line of progress.

use crate::{
    progress,
    step::{root, shell, succeeds},
};
use std::path::Path;

/// Options with which apt-get repeats failed downloads and waits for another running apt-get.
pub(crate) const RETRIES: &str = "-o Acquire::Retries=3 -o DPkg::Lock::Timeout=300";

/// Runs apt-get as root. Does nothing if there is no apt-get or if the user may not become root.
pub(crate) fn run_as_root(args: &str) {
    if can_run() {
        let sudo = sudo();
        show(&format!("{sudo}env DEBIAN_FRONTEND=noninteractive apt-get {RETRIES} {args}"));
    }
}

/// Returns whether there is an apt-get that the user may run as root.
pub(crate) fn can_run() -> bool {
    succeeds(&format!("{}apt-get --version", sudo()))
}

/// Returns what makes a command run as root, if the user is someone else.
fn sudo() -> &'static str {
    if succeeds("test $(id -u) = 0") { "" } else { "sudo -n " }
}

/// Prints a line of the shell and runs it. Shows its output if it fails. The caller must check whether
/// the installation succeeded.
pub(crate) fn show(line: &str) {
    show_in(root(), line);
}

/// Does the same in a directory.
pub(crate) fn show_in(dir: &Path, line: &str) {
    let title = format!("installing: {}", without_options(line));
    let mut command = shell(line);
    command.current_dir(dir);
    progress::run(&title, command);
}

/// Returns the words of a line that are not options.
fn without_options(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_value =
        |index: usize| index.checked_sub(1).is_some_and(|previous| words[previous] == "-o");
    let shown = words
        .iter()
        .enumerate()
        .filter(|&(index, word)| !word.starts_with('-') && !is_value(index));
    shown.map(|(_, &word)| word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_command_has_no_options() {
        let line = format!("apt-get {RETRIES} install -q -y qemu-system-x86");
        assert_eq!(without_options(&line), "apt-get install qemu-system-x86");
    }
}
