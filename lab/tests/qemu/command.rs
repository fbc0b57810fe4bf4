//! Tests of the `hotmem` commands that start virtual machines.

use crate::support::wait_for;
use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
};

fn hotmem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmem"));
    command.args(args);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn vm_prints_only_its_table_to_a_pipe() {
    let args = ["vm", "--plug", "4G", "--touch", "64M", "--unplug", "--replug"];
    hotmem_lab::qemu::image::find(None).unwrap();
    let output = hotmem(&args).output().unwrap();
    let (stdout, stderr) = (stdout(&output), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "");
    for part in ["plug", "touch", "unplug", "plug again", "4G", "64M", "PASS"] {
        assert!(stdout.contains(part), "no `{part}` in\n{stdout}");
    }
    assert!(!stdout.contains('\x1b'), "escape sequences in a pipe:\n{stdout}");
    for line in stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn vm_prints_json_with_the_keys_of_the_document() {
    hotmem_lab::qemu::image::find(None).unwrap();
    let args = ["vm", "--plug", "1G", "--touch", "64M", "--balloon", "--unplug", "--json"];
    let output = hotmem(&args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = run["steps"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["plug", "touch", "give back", "unplug"]);
    assert_eq!(steps[0]["size"], 1_u64 << 30);
    assert!(steps[0]["recognised"].as_f64() >= steps[0]["device_done"].as_f64());
    let samples = run["resident"].as_array().unwrap();
    let document = include_str!("../../../docs/command.md");
    let objects = [&run, &steps[0], &steps[0]["contiguous"], &samples[0]];
    for key in objects.iter().flat_map(|object| object.as_object().unwrap().keys()) {
        let is_named = [format!("`{key}`"), format!("[].{key}`"), format!(".{key}`")];
        assert!(is_named.iter().any(|name| document.contains(name)), "{key}");
    }
    assert_eq!((&run["checked"], &run["instructions"]), (&true.into(), &false.into()));
}

#[test]
fn vm_inserts_dimms() {
    hotmem_lab::qemu::image::find(None).unwrap();
    let args = ["vm", "--plug", "1G", "--dimms", "4", "--touch", "64M", "--replug"];
    let output = hotmem(&args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = stdout(&output);
    for part in ["insert", "touch", "remove", "insert again", "1G", "PASS"] {
        assert!(stdout.contains(part), "no `{part}` in\n{stdout}");
    }
    for (plug, dimms) in [("1G", "3"), ("1M", "1"), ("1G", "32"), ("1G", "0")] {
        let refused = hotmem(&["vm", "--plug", plug, "--dimms", dimms]).output().unwrap();
        assert!(!refused.status.success(), "{dimms} DIMMs of {plug} were accepted");
    }
}

#[test]
fn vm_plots_the_guests_resident_memory() {
    hotmem_lab::qemu::image::find(None).unwrap();
    let file = std::env::temp_dir().join(format!("hotmem-vm-{}.svg", std::process::id()));
    let mut vm = hotmem(&["vm", "--plug", "1G", "--touch", "128M", "--balloon", "--unplug"]);
    let output = vm.arg("--svg").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(svg.starts_with("<svg"));
    let stdout = stdout(&output);
    for part in ["give back", "128M", "GiB", "PASS"] {
        assert!(stdout.contains(part), "no `{part}` in\n{stdout}");
    }
    let refused = hotmem(&["vm", "--plug", "1G", "--balloon"]).output().unwrap();
    assert!(!refused.status.success(), "--balloon without --touch succeeded");
}

#[test]
fn bench_reporting_counts_reported_and_refaulted_memory() {
    // How long a CPU rests between two bursts, in milliseconds. The guest must have reported its free
    // memory before the next burst. The first rest suffices on most hosts.
    let has_reported = ["2000", "10000", "60000"].into_iter().any(reports_within);
    assert!(has_reported, "the guest has not reported the memory that three CPUs have freed");
}

/// Runs the bench with this rest. Returns whether the guest has reported, and used again, more memory
/// than three threads use in a burst. Checks all other results.
fn reports_within(rest: &str) -> bool {
    let file = std::env::temp_dir().join(format!("hotmem-faults-{}.json", std::process::id()));
    let mut bench = hotmem(&["bench", "reporting", "--cases", "page_fault", "--no-instructions"]);
    let bench = bench.args(["--machines", "guest", "--boots", "1", "--threads", "3"]);
    let bench = bench.args(["--rounds", "1", "--bursts", "2", "--rest", rest]);
    let output = bench.arg("--json").arg(&file).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && stderr.contains("during the run, which is less than") {
        return false;
    }
    assert!(output.status.success(), "{stderr}");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let median = |subject: &str, metric: &str| {
        let found = records.iter().find(|r| r["subject"] == subject && r["metric"] == metric);
        found.unwrap_or_else(|| panic!("no {metric} of {subject}"))["median"].as_f64().unwrap()
    };
    assert_eq!(median("hotmem-no-reports", "reported"), 0.0);
    assert!(median("hotmem", "rate") > 0.0 && median("hotmem-no-reports", "rate") > 0.0);
    // Three threads use 128 MiB each, which is 384 MiB.
    median("hotmem", "refaulted") > 384.0 && median("hotmem", "reported") > 384.0
}

#[test]
fn bench_packing_measures_the_resident_memory_of_guests() {
    // The time limits, in seconds, for a guest to report its memory. The first suffices on most
    // hosts.
    let has_returned = ["2", "10", "60", "60"].into_iter().any(|limit| {
        let residual = residuals(limit);
        assert!(residual("hotmem-no-reports") > 128.0);
        residual("hotmem") < 100.0
    });
    assert!(has_returned, "the host still has memory that a guest has freed");
}

/// Runs the bench with a time limit. Returns a function from a subject to the resident memory of
/// its guests in MiB, after it has stopped shrinking or at the limit.
fn residuals(limit: &str) -> impl Fn(&str) -> f64 {
    let file = std::env::temp_dir().join(format!("hotmem-packing-{}.json", std::process::id()));
    let sizes = ["--host", "800M", "--guest", "384M", "--touch", "128M..160M"];
    let mut bench = hotmem(&["bench", "packing", "--guests", "hotmem", "--max-guests", "3"]);
    let bench = bench.args(["--limit", limit]).args(sizes);
    let output = bench.arg("--json").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    move |subject| {
        let is_match =
            |r: &&serde_json::Value| r["subject"] == subject && r["metric"] == "residual";
        records.iter().find(is_match).unwrap()["median"].as_f64().unwrap()
    }
}

#[test]
fn bench_vm_writes_its_records() {
    let file = std::env::temp_dir().join(format!("hotmem-bench-{}.json", std::process::id()));
    let mut bench = hotmem(&["bench", "vm", "--sizes", "1G,2G", "--runs", "1", "--touch", "16M"]);
    let output = bench.arg("--json").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let median = |case: &str, metric: &str| {
        let found = records.iter().find(|r| r["case"] == case && r["metric"] == metric);
        found.unwrap_or_else(|| panic!("no {metric} of {case}"))["median"].as_f64().unwrap()
    };
    assert_eq!(median("1G/online_movable/unplug-16M-checked", "checked"), 16.0);
    assert!(median("1G/online_movable/unplug-16M-dropped", "time") > 0.0);
    assert!(median("2G/online_movable/unplug-16M-migrated", "moved") >= 16.0);
    for case in ["1G/online_movable/plug", "2G/online_movable/unplug-16M-checked"] {
        let record = |metric| {
            records.iter().find(|record| record["case"] == case && record["metric"] == metric)
        };
        assert_eq!(record("time").unwrap()["unit"], "s");
        assert_eq!(record("time").unwrap()["runs"], 1);
        assert!(record("requests").unwrap()["median"].as_f64().unwrap() >= 1.0);
    }
}

#[test]
fn no_qemu_outlives_the_command() {
    hotmem_lab::qemu::image::find(None).unwrap();
    // The command runs long enough that the test finds its QEMU.
    let mut command = hotmem(&["vm", "--plug", "8G", "--touch", "4G"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let qemu = wait_for("QEMU", || qemu_of(&command));
    command.kill().unwrap();
    command.wait().unwrap();
    wait_for("end of QEMU", || (!is_running(qemu)).then_some(()));
}

#[test]
fn bench_nvdimm_counts_instructions_and_times() {
    hotmem_lab::qemu::image::find(None).unwrap();
    let file = std::env::temp_dir().join(format!("hotmem-nvdimm-{}.json", std::process::id()));
    let sizes = ["--size", "1G", "--rebinds", "1", "--counted-rebinds", "1"];
    let mut bench = hotmem(&["bench", "nvdimm"]);
    let output = bench.args(sizes).arg("--json").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let median = |case: &str, metric: &str| {
        let is_match = |r: &&serde_json::Value| r["case"] == case && r["metric"] == metric;
        records.iter().find(is_match).unwrap()["median"].as_f64().unwrap()
    };
    for (case, max, written) in [
        ("fsdax/rebind", 18.0, 64.0),
        ("devdax-2M/rebind", 20.0, 64.0),
        ("devdax-2M-shared/rebind", 4.0, 8.0),
    ] {
        assert!(median(case, "time") > 0.0);
        let instructions = median(case, "instructions_per_frame");
        assert!(instructions > 0.5 && instructions <= max, "{case}: {instructions}");
        assert_eq!(median(case, "written_per_frame"), written, "{case}");
    }
}

/// Returns the process of QEMU that the command has started.
fn qemu_of(command: &Child) -> Option<u32> {
    let pid = command.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let child = children.split_whitespace().next()?.parse().ok()?;
    let name = std::fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
    name.starts_with("qemu").then_some(child)
}

/// Returns whether a process exists and is not a zombie.
fn is_running(pid: u32) -> bool {
    let path = format!("/proc/{pid}/stat");
    Path::new(&path).exists()
        && std::fs::read_to_string(path).is_ok_and(|stat| !stat.contains(") Z"))
}
