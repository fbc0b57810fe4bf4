//! Tests of `hotmem` commands that start no virtual machine: errors of arguments, missing programs
//! and files, the output of benches, and reports.

use std::process::{Command, Output, Stdio};

fn hotmem(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmem"));
    // `PATH` is empty, so that neither QEMU nor cargo is found.
    command.args(args).env("PATH", "").output().unwrap()
}

fn error_message(args: &[&str]) -> String {
    let output = hotmem(args);
    assert!(!output.status.success(), "{args:?} succeeded");
    assert!(output.stdout.is_empty(), "{args:?} wrote to standard output");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_error_of_an_invalid_argument_names_the_argument_or_the_limit() {
    let cases: [(&[&str], &str); 51] = [
        (&["vm"], "--plug"),
        (&["vm", "--plug", "64X"], "unknown unit `X`"),
        (&["vm", "--plug", "0"], "--plug"),
        (&["vm", "--plug", "3M"], "whole blocks"),
        (&["vm", "--plug", "64G", "--block-size", "3M"], "power of two"),
        (&["vm", "--plug", "64G", "--boot-memory", "1M"], "--boot-memory"),
        (&["vm", "--plug", "32T"], "to plug 32TiB, for page tables and the engine's metadata"),
        // For 23 TiB, words and page tables alone would fit.
        (&["vm", "--plug", "23T"], "to plug 23TiB, for page tables and the engine's metadata"),
        (&["bench", "vm", "--sizes", "1G,32T"], "for page tables"),
        (&["vm", "--plug", "1G", "--touch", "2G"], "--touch"),
        (
            &["vm", "--plug", "1G", "--touch", "1M", "--balloon", "--svg", "/nowhere/plot"],
            "/nowhere/plot cannot be written",
        ),
        (&["bench", "frames", "--json", "/nowhere/file"], "/nowhere/file cannot be written"),
        (&["vm", "--plug", "1G", "--accel", "magic"], "tcg"),
        (&["vm", "--plug", "1G", "--policy", "sideways"], "online_movable"),
        (&["vm", "--plug", "1G", "--icount", "--accel", "kvm"], "--icount"),
        (
            &["vm", "--guest", "linux", "--plug", "64G", "--boot-memory", "1G"],
            "linux needs 1280MiB",
        ),
        (&["vm", "--guest", "linux", "--plug", "1000M"], "whole memory blocks of 128MiB"),
        (&["drmgr", "-c", "mem", "-a", "-q", "-5"], "a count is from 1"),
        (&["drmgr", "-c", "mem", "-a", "-q", "0"], "a count is from 1"),
        (&["drmgr", "-c", "mem", "-r", "-q", "4294967296"], "a count is from 1"),
        (&["drmgr", "-c", "mem", "-q", "5"], "-a|-r"),
        (&["drmgr", "-c", "mem", "-a", "-r", "-q", "5"], "-r"),
        (&["drmgr", "-c", "cpu", "-a", "-q", "5"], "mem"),
        (&["drmgr", "-c", "mem", "-a", "-s", "0x180000000"], "32 bits"),
        (&["drmgr", "-c", "mem", "-a", "-q", "1", "--lmb-size", "3M"], "power of two"),
        (&["drmgr", "-c", "mem", "-a", "-q", "1", "--nodes", "257"], "257 nodes"),
        (&["drmgr", "-c", "mem", "-a", "-q", "1", "--dtb", "/nowhere/tree"], "/nowhere/tree"),
        (&["vm", "--plug", "1G", "--cxl", "3"], "cannot be divided so"),
        (&["daxctl", "list", "--device", "300M"], "a device has whole 256M"),
        (
            &["daxctl", "reconfigure-device", "-m", "devdax", "-N", "all"],
            "--no-online is incompatible",
        ),
        (&["bench", "vm", "--runs", "0"], "--runs"),
        (&["bench", "vm", "--guests", "hotmem,windows"], "linux"),
        (&["bench", "nvdimm", "--guests", "hotmem-64B"], "--guests hotmem-64B"),
        (&["bench", "packing", "--boot-memory", "1G"], "--boot-memory"),
        (&["bench", "packing", "--guest", "20G"], "more than the host's"),
        (&["bench", "packing", "--icount"], "--icount"),
        (&["bench", "packing", "--guest", "1G", "--touch", "1G..2G"], "more than a guest's 1GiB"),
        (&["bench", "contiguity", "--sizes", "1G,0"], "whole blocks"),
        (&["bench", "contiguity", "--sizes", "64M"], "whole blocks"),
        (&["bench", "frames", "--accesses", "sideways"], "remote-free"),
        (&["bench", "fragmentation", "--size", "32M"], "at least 64MiB"),
        (&["bench", "fragmentation", "--thorough", "--operations", "5"], "--operations"),
        (&["bench", "tails", "--size", "1G"], "--size 1GiB"),
        (&["bench", "tails", "--budgets", "4096"], "2048"),
        (
            &["report", "--only", "everything"],
            "--only everything: no section or bench has this name; the names are contiguity",
        ),
        (&["report", "--compare", "/nowhere/records.json"], "/nowhere/records.json"),
        (&["report", "--from", env!("CARGO_BIN_EXE_hotmem")], "cannot be read"),
        (&["report", "--docs", "sideways"], "write"),
        (&["hosted", "--plug", "0"], "whole pageblocks"),
        (&["hosted", "--plug", "1G", "--touch", "2G"], "more than the 1GiB that are plugged"),
        (&["drmgr", "-c", "mem", "-a", "-q", "1", "--nodes", "0"], "there can be from 1 to 256"),
    ];
    for (args, part) in cases {
        let message = error_message(args);
        assert!(message.contains(part), "{args:?}: no `{part}` in\n{message}");
    }
}

#[test]
fn the_error_of_a_missing_qemu_says_how_to_install_it() {
    let image = env!("CARGO_BIN_EXE_hotmem");
    let message = error_message(&["vm", "--plug", "64G", "--guest-image", image]);
    assert!(message.contains("qemu-system-x86"), "{message}");
}

#[test]
fn the_error_of_a_missing_image_has_its_path() {
    let message = error_message(&["bench", "vm", "--guest-image", "/nowhere/guest"]);
    assert!(message.contains("/nowhere/guest"), "{message}");
}

/// LMBs that `hotmem drmgr` adds are online, and a request for too many LMBs fails.
#[test]
fn drmgr_adds_lmbs_and_fails_for_too_many() {
    let machine = ["--lmbs", "100", "--lmb-size", "16M", "--nodes", "2"];
    let drmgr = |args: &[&str]| hotmem(&[&["drmgr", "-c", "mem"], args, &machine].concat());
    let output = drmgr(&["-a", "-s", "0x80000020", "-q", "40", "--debug"]);
    assert!(output.status.success());
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout.matches("was hot-added").count(), 40, "{stdout}");
    // The LMBs are on two nodes, so they form two ranges.
    assert!(stdout.contains("40 LMBs, 640M, added and online in 2 ranges"), "{stdout}");
    assert!(stdout.contains("Movable"), "{stdout}");
    let output = drmgr(&["-r", "-q", "100"]);
    assert!(output.status.success());
    let output = drmgr(&["-a", "-q", "101"]);
    assert!(!output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "hotmem: 101 LMBs requested, 100 available\n");
    // The error is printed once, with and without `--debug`.
    let none = ["--assigned", "0", "--debug"];
    for args in [&none[..2], &none] {
        let output = drmgr(&[&["-r", "-q", "1"], args].concat());
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(text.concat(), "hotmem: 1 LMB requested, 0 available\n", "{args:?}");
    }
}

/// The command describes the partition itself, so no address in the description is invalid.
#[test]
fn drmgr_has_partitions_of_large_lmbs_up_to_the_end_of_physical_addresses() {
    let drmgr = |args: &[&str]| hotmem(&[&["drmgr", "-c", "mem", "-a", "-q", "1"], args].concat());
    for (size, lmbs) in [("8G", "4"), ("2T", "4"), ("2T", "1000")] {
        let output = drmgr(&["--lmb-size", size, "--lmbs", lmbs]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{lmbs} of {size}: {stderr}");
    }
    for (size, lmbs) in [("2T", "126976"), ("1024T", "16000000"), ("1G", "8000000")] {
        let message = error_message(&[
            "drmgr",
            "-c",
            "mem",
            "-a",
            "-q",
            "1",
            "--lmb-size",
            size,
            "--lmbs",
            lmbs,
        ]);
        assert!(message.contains("end beyond the last physical address"), "{message}");
    }
}

/// 6 MiB of a memory block of 128 MiB are online, 6 MiB offline and 6 MiB device memory.
#[test]
fn the_totals_of_lsmem_count_the_parts_of_a_memory_block() {
    let parts = ["--online", "0", "--movable", "6M", "--offline", "6M", "--device", "6M"];
    let output = hotmem(&[&["lsmem"], &parts[..]].concat());
    let stdout = String::from_utf8(output.stdout).unwrap();
    for (kind, size) in [("online", "1030M"), ("offline", "6M"), ("device", "6M")] {
        let is_total = |line: &str| {
            line.strip_prefix(&format!("Total {kind} memory:")).is_some_and(|s| s.trim() == size)
        };
        assert!(stdout.lines().any(is_total), "{kind}: not {size} in\n{stdout}");
    }
}

/// Returns the names of all keys of a JSON value.
fn keys(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::Object(map) => {
            map.iter().flat_map(|(key, value)| [vec![key.clone()], keys(value)].concat()).collect()
        }
        serde_json::Value::Array(values) => values.iter().flat_map(keys).collect(),
        _ => Vec::new(),
    }
}

const JSON_COMMANDS: [&[&str]; 3] = [
    &["lsmem", "--json"],
    &["hosted", "--plug", "1G", "--touch", "16M", "--json"],
    &["drmgr", "-c", "mem", "-a", "-q", "5", "--lmbs", "10", "--lmb-size", "16M", "--json"],
];

#[test]
fn the_document_names_each_key_of_the_json() {
    let document = include_str!("../../docs/command.md");
    for args in JSON_COMMANDS {
        let output = hotmem(args);
        let value = serde_json::from_slice(&output.stdout).unwrap();
        for key in keys(&value) {
            let is_named =
                [format!("`{key}`"), format!("[].{key}`")].map(|n| document.contains(&n));
            assert!(is_named.contains(&true), "{args:?}: {key}");
        }
    }
}

#[test]
fn the_json_of_lsmem_has_the_sizes_of_its_table() {
    let output = hotmem(&["lsmem", "--movable", "2G", "--offline", "0", "--online", "0", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["online"], 3_u64 << 30);
    let movable = &value["memory"][1];
    assert_eq!((&movable["size"], &movable["zones"]), (&(2_u64 << 30).into(), &"Movable".into()));
    assert_eq!(movable["removable"], true);
}

#[test]
fn tables_fit_into_80_columns() {
    for args in PRINTING_COMMANDS {
        let stdout = String::from_utf8(hotmem(args).stdout).unwrap();
        for line in stdout.lines() {
            assert!(line.chars().count() <= 80, "{args:?}: {line}");
        }
    }
}

/// Random traffic needs 4 GiB.
#[test]
fn bench_frames_leaves_out_cases_that_need_a_larger_machine() {
    let case = ["--subjects", "hotmem", "--threads", "1", "--lengths", "order0", "--runs", "1"];
    let bench = |accesses| {
        let size = ["bench", "frames", "--tables", "basic", "--sizes", "1G", "--no-instructions"];
        let output = hotmem(&[&size[..], &["--accesses", accesses], &case[..]].concat());
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.success(), text)
    };
    let left_out = "1G/order0/1thread/random, hotmem: left out, because it needs 4G\n";
    let (succeeded, [stdout, stderr]) = bench("random,pair");
    assert!(succeeded && stdout.contains("1G/order0/1thread/pair"), "{stdout}{stderr}");
    assert_eq!(stderr, left_out);
    let (succeeded, [stdout, stderr]) = bench("random");
    assert!(!succeeded && stdout.is_empty() && stderr.starts_with(left_out), "{stdout}{stderr}");
}

/// Runs a bench and returns a function that finds the median of a case, subject and metric in its
/// JSON output.
fn medians(bench: &str, args: &[&str]) -> impl Fn(&str, &str, &str) -> Option<f64> {
    let file = std::env::temp_dir().join(format!("hotmem-{bench}-{}.json", std::process::id()));
    let output = hotmem(&[&["bench", bench, "--json", file.to_str().unwrap()], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    move |case, subject, metric| {
        let keys = [("case", case), ("subject", subject), ("metric", metric)];
        let record = records.iter().find(|r| keys.iter().all(|&(key, value)| r[key] == value))?;
        record["median"].as_f64()
    }
}

/// Checks the JSON output: cases, subjects, metrics, and the growth with the size.
#[test]
fn bench_contiguity_measures_all_machines_and_their_growth() {
    let sizes = ["--sizes", "1G,2G,4G", "--before-up-to", "2G", "--runs", "1"];
    let median = medians("contiguity", &sizes);
    for policy in ["offline", "online", "online_movable"] {
        for step in ["plug", "unplug"] {
            for shape in ["1G", "2G", "4G", "pc-256G", "devices-2x128G", "devices-4x128G"] {
                let case = format!("{shape}/{policy}/{step}");
                assert!(median(&case, "hotmem", "time").unwrap() > 0.0, "{case}");
                let has_before = median(&case, "before", "time").is_some();
                assert_eq!(has_before, matches!(shape, "1G" | "2G"), "{case}");
            }
            let (case, has_queries) = (format!("{policy}/{step}"), policy != "offline");
            let growth = |subject| median(&case, subject, "probes_growth_exponent");
            assert!(median(&case, "hotmem", "growth_exponent").unwrap().is_finite(), "{case}");
            // The range is wide, because with these small sizes a search that crosses a boundary of
            // 8 GiB, to the words of the next chunk, changes the exponent.
            let linear = 0.5..=1.05;
            assert_eq!(
                growth("hotmem").is_some_and(|n| linear.contains(&n)),
                has_queries,
                "{case}"
            );
            assert_eq!(growth("before").is_some_and(|n| n > 1.8), has_queries, "{case}");
            let probes = median(&format!("2G/{case}"), "hotmem", "probes");
            // There are 16 blocks, and a query for a block reads 1 to 11 words.
            let words = if has_queries { 16.0..=176.0 } else { 0.0..=0.0 };
            assert!(probes.is_some_and(|n| words.contains(&n)), "{case}: {probes:?}");
        }
    }
}

#[test]
fn bench_memmap_measures_hotmem_the_baseline_and_the_limit() {
    let median = medians("memmap", &["--size", "1G", "--rebinds", "2", "--first-binds", "1"]);
    let cases =
        ["fsdax/first", "fsdax/rebind", "devdax-2M/first", "devdax-2M/rebind", "devdax-1G/rebind"];
    for case in cases {
        for subject in ["before", "template", "movnti", "hotmem", "limit"] {
            assert!(median(case, subject, "time").unwrap() > 0.0, "{case}: {subject}");
        }
        assert_eq!(median(case, "limit", "of_limit"), Some(1.0), "{case}");
        assert_eq!(median(case, "before", "speedup"), Some(1.0), "{case}");
        assert_eq!(median(case, "hotmem", "written"), Some(16.0), "{case}");
    }
    assert_eq!(median("devdax-2M-shared/rebind", "hotmem", "written"), Some(2.0));
}

/// Commands that write to standard output by different functions.
const PRINTING_COMMANDS: [&[&str]; 4] = [
    &["hosted", "--plug", "1G", "--touch", "16M"],
    &["lsmem"],
    &["drmgr", "-c", "mem", "-a", "-q", "5", "--debug", "--lmbs", "10", "--lmb-size", "16M"],
    &["bench", "contiguity", "--sizes", "1G,2G", "--before-up-to", "1G", "--runs", "1"],
];

/// Runs a command whose standard output is `stdout`. Returns its exit code and its standard error.
fn run_with_stdout(args: &[&str], stdout: impl Into<Stdio>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmem"));
    let output = command.args(args).env("PATH", "").stdout(stdout).stderr(Stdio::piped());
    let output = output.spawn().unwrap().wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_command_with_a_closed_pipe_ends_without_a_message() {
    for args in PRINTING_COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        // A shell shows 141 for a program that SIGPIPE ended.
        assert_eq!(run_with_stdout(args, writer), (Some(141), String::new()), "{args:?}");
    }
}

#[test]
fn a_command_with_a_full_disk_reports_an_error() {
    for args in PRINTING_COMMANDS {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, stderr) = run_with_stdout(args, full);
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        assert!(
            stderr.starts_with("hotmem: ") && stderr.contains("No space left"),
            "{args:?}: {stderr}"
        );
    }
}

#[test]
fn the_tables_in_docs_match_the_records() {
    let output = hotmem(&["report", "--docs", "check"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_report_is_written_and_an_interrupted_report_is_continued() {
    let out = std::env::temp_dir().join(format!("hotmem-report-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&out);
    let dir = out.to_str().unwrap();
    let report = |options: &[&str]| {
        let output = hotmem(&[&["report", "--out", dir][..], options].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{options:?}: {stderr}");
        (String::from_utf8(output.stdout).unwrap(), stderr)
    };
    let short_set = ["--quick", "--only", "teardown-native"];
    let (path, stderr) = report(&short_set);
    assert!(path.ends_with("report.html\n"), "{path}");
    assert!(stderr.contains("[1/1] teardown-native; about"), "{stderr}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("cycles an entry"), "{page}");

    let (records, part) = (out.join("records.json"), out.join("records.part.json"));
    std::fs::rename(&records, &part).unwrap();
    let first = std::fs::read(&part).unwrap();
    let (_, stderr) = report(&short_set);
    assert!(stderr.contains("continuing after 1 steps") && !stderr.contains("[1/1]"), "{stderr}");
    assert_eq!(std::fs::read(&records).unwrap(), first, "records were measured again");
    assert!(!part.exists());

    let (compared, _) = report(&["--compare", records.to_str().unwrap()]);
    assert!(compared.contains("0 figures changed beyond the spread"), "{compared}");

    // A damaged file of records is not used, and all steps are measured again.
    std::fs::write(&part, "{").unwrap();
    let (_, stderr) = report(&short_set);
    assert!(stderr.contains("records.part.json: damaged") && stderr.contains("[1/1]"), "{stderr}");
    std::fs::remove_dir_all(&out).unwrap();
}
