//! The examples in the help of each command.

use clap::Command;

/// Examples of the command itself.
const FIRST_EXAMPLES: &[&str] = &["vm --plug 64G", "hosted --plug 512G --touch 4G", "lsmem --all"];
/// Each command below it, with lines that are examples of it.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "vm",
        &[
            "vm --plug 64G",
            "vm --guest linux --plug 16G",
            "vm --cxl 2 --plug 1G --touch 16M --unplug",
            "vm --vmm microsandbox --plug 1G --unplug",
        ],
    ),
    ("hosted", &["hosted --plug 512G --touch 4G", "hosted --plug 64G --json"]),
    ("lsmem", &["lsmem --movable 64G --all", "lsmem --json"]),
    ("xen", &["xen --batch 32 --size 16M", "xen --xpti off --json"]),
    ("drmgr", &["drmgr -c mem -a -q 1000", "drmgr -c mem -r -s 0x80000010 --json"]),
    ("daxctl", &["daxctl list --device 1G"]),
    ("daxctl list", &["daxctl list --device 1G --device 512M --human"]),
    (
        "daxctl reconfigure-device",
        &[
            "daxctl reconfigure-device --mode=system-ram dax0.0",
            "daxctl reconfigure-device --mode=devdax --force all --system-ram --touch 8M",
            "daxctl reconfigure-device --mode=system-ram dax0.0 --nvdimm 1G",
        ],
    ),
    ("bench", &["bench vm --sizes 4G --runs 3", "bench frames --sizes 16G --runs 3"]),
    ("bench vm", &["bench vm --sizes 4G,64G --runs 3"]),
    ("bench contiguity", &["bench contiguity --sizes 64G,512G --only-sizes --runs 1"]),
    ("bench memmap", &["bench memmap --size 100G --rebinds 5"]),
    ("bench nvdimm", &["bench nvdimm --guests hotmem,linux --measures time"]),
    ("bench cxl", &["bench cxl --guests hotmem,linux --devices 2 --measures time"]),
    ("bench dimms", &["bench dimms --guests hotmem,linux --cases 1x1G --measures time"]),
    ("bench dlpar", &["bench dlpar --cases 126000 --runs 3"]),
    ("bench frames", &["bench frames --sizes 16G --accesses pair,random --runs 3"]),
    ("bench fragmentation", &["bench fragmentation --size 4G --runs 3"]),
    ("bench tails", &["bench tails --size 16G --runs 3"]),
    ("bench heap", &["bench heap --sizes 64,1024 --runs 5"]),
    ("bench teardown", &["bench teardown --cases native"]),
    ("bench reporting", &["bench reporting --cases give_back --give-back 1G,4G"]),
    ("bench zeroing", &["bench zeroing --cases touch,load --runs 3"]),
    ("bench packing", &["bench packing --guests linux,hotmem --host 1900M --guest 1G"]),
    ("bench ports", &["bench ports --kernels arceos,c-kernel --sizes 4G"]),
    ("report", &["report --quick", "report --only frames --out /tmp/report"]),
    ("completions", &["completions bash > ~/.local/share/bash-completion/completions/hotmem"]),
    ("man", &["man ~/.local/share/man/man1"]),
];

/// Adds the examples to the help of the commands.
pub(super) fn added_to(command: Command) -> Command {
    added_below(command, "").after_help(section(FIRST_EXAMPLES))
}

/// Adds the examples to the commands below `command`, whose name with those of the commands above it, and a
/// space after each, is `path`.
fn added_below(command: Command, path: &str) -> Command {
    command.mut_subcommands(|command| {
        let name = format!("{path}{}", command.get_name());
        let command = match EXAMPLES.iter().find(|(of, _)| *of == name) {
            Some((_, lines)) => command.after_help(section(lines)),
            None => command,
        };
        added_below(command, &format!("{name} "))
    })
}

/// Returns the section of a help that has these examples.
fn section(lines: &[&str]) -> String {
    let lines: String = lines.iter().map(|line| format!("\n  hotmem {line}")).collect();
    format!("Examples:{lines}")
}

#[cfg(test)]
mod tests {
    use super::{super::command, *};

    /// Returns the names of the commands below a command, except hidden ones.
    fn names(command: &Command, path: &str) -> Vec<String> {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let and_below = |command: &Command| {
            let name = format!("{path}{}", command.get_name());
            let below = names(command, &format!("{name} "));
            [vec![name], below].concat()
        };
        shown.flat_map(and_below).collect()
    }

    #[test]
    fn each_command_has_examples_in_its_help() {
        for name in [vec![String::new()], names(&command(), "")].concat() {
            let line = format!("hotmem {name} --help");
            let error = command().try_get_matches_from(line.split_whitespace()).unwrap_err();
            assert!(error.to_string().contains("Examples:\n  hotmem "), "{name}");
        }
    }

    #[test]
    fn the_examples_are_valid_command_lines() {
        let below = EXAMPLES.iter().flat_map(|(name, lines)| {
            assert!(lines.iter().all(|line| line.starts_with(name)), "{name}: {lines:?}");
            *lines
        });
        for line in below.chain(FIRST_EXAMPLES) {
            let words = line.split('>').next().unwrap().split_whitespace();
            let matches = command().try_get_matches_from(["hotmem"].into_iter().chain(words));
            matches.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
