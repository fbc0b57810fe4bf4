//! Tests of the ports' steps and sizes.

use super::PORTS;
use crate::{step::root, table};
use std::fs;

#[test]
fn every_port_has_a_first_kernel_and_tests_of_it() {
    for port in PORTS {
        for part in ["first", "smoke", "tests"] {
            assert!(table::has_steps(&format!("{port}-{part}")), "{port}: {part}");
        }
    }
}

/// If a filter matched no test, the step would run no test and succeed.
#[test]
fn the_smoke_tests_of_each_port_exist() {
    let tests = root().join("lab/tests/ports");
    for port in PORTS {
        let step = &table::steps(&format!("{port}-smoke"), &[])[0];
        let filter = step.run.rsplit(' ').next().unwrap();
        let (module, name) = filter.split_once("::").unwrap();
        let file = tests.join(format!("{module}.rs"));
        let file = if file.exists() { file } else { tests.join("main.rs") };
        let text = fs::read_to_string(file).unwrap();
        assert!(text.contains(&format!("fn {name}")), "{filter}");
    }
}

/// Returns the number of lines of code in these files, without comments and blank lines.
fn lines_of_rust(files: &[&str]) -> usize {
    let text = |file: &&str| fs::read_to_string(root().join("ports/arceos").join(file)).unwrap();
    let texts: Vec<_> = files.iter().map(text).collect();
    let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[test]
fn the_port_has_at_most_the_allowed_lines_of_code() {
    for (files, max) in [
        (&["axalloc/src/lib.rs", "axalloc/src/engine.rs"][..], 150),
        (&["src/virtio_mem.rs", "src/pci.rs"], 60),
        (&["src/reporting.rs"], 60),
    ] {
        let lines = lines_of_rust(files);
        assert!(lines > 20 && lines <= max, "{files:?}: {lines} lines");
    }
}

/// Returns the number of lines of code in a C source, without comments and blank lines.
fn lines_of_c(text: &str) -> usize {
    let (mut code, mut rest) = (String::new(), text);
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    code += rest;
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

#[test]
fn comments_and_blank_lines_are_not_counted() {
    assert_eq!(lines_of_c("/* a\n b */\n\nint c; /* d */\n  \n}\n"), 2);
}

#[test]
fn the_kernel_has_at_most_680_lines_and_every_file_is_compiled() {
    let steps = table::steps("c-kernel-first", &[]);
    let compiler = &steps.iter().find(|step| step.name == "kernel in C").unwrap().run;
    let files = root().join("ports/c-kernel").read_dir().unwrap().flatten();
    let mut lines = 0;
    for file in files.map(|file| file.path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".c") || name.ends_with(".h") {
            lines += lines_of_c(&fs::read_to_string(&file).unwrap());
        }
        if file.is_dir() {
            continue;
        }
        let is_compiled = compiler.contains(&format!("ports/c-kernel/{name}"));
        assert!(is_compiled || name.ends_with(".h"), "{name}");
    }
    assert!(lines > 100 && lines <= 680, "{lines} lines");
}
