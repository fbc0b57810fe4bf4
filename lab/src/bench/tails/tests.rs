use super::*;
use crate::bench::{parsed, record::Record};

#[test]
fn each_figure_that_the_report_shows_is_recorded() {
    let file = std::env::temp_dir().join(format!("hotmem-tails-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let line = ["--size", "4G", "--operations", "20000", "--budgets", "64,512", "--runs", "1"];
    run(&parsed(&[&line[..], &["--json", path]].concat())).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records: Vec<Record> = serde_json::from_str(&text).unwrap();
    let assert_recorded = |case: String, subject: &str, metric: Metric| {
        let is_match = |r: &&Record| r.case == case && r.subject == subject && r.has_metric(metric);
        let found = records.iter().find(is_match);
        assert!(found.is_some_and(|record| record.median > 0.0), "{case}, {subject}: {found:?}");
    };
    for background in Background::ALL {
        for metric in [MEDIAN, P99_9, LONGEST] {
            for call in ["alloc", "free"] {
                for subject in
                    Subject::ALL.into_iter().filter(|subject| subject.supports(background))
                {
                    assert_recorded(format!("4G/{background}/{call}"), subject.name(), metric);
                }
                assert_recorded(format!("4G/{background}/{call}"), "limit", metric);
            }
        }
        let calls = [
            (Background::Resize, &["add", "online", "unplug", "remove"][..]),
            (Background::Isolation, &["isolate", "release"]),
        ];
        for (part, calls) in calls {
            for call in calls.iter().filter(|_| background.includes(part)) {
                for budget in [64, 512] {
                    let case = format!("4G/{background}/{call}/{budget}-pageblocks");
                    assert_recorded(case, "hotmem", LONGEST_CALL);
                }
            }
        }
        for call in
            ["report", "reported"].iter().filter(|_| background.includes(Background::Reports))
        {
            assert_recorded(format!("4G/{background}/{call}"), "hotmem", LONGEST_CALL);
        }
    }
}

#[test]
fn machines_that_are_too_small_or_too_large_are_refused() {
    for size in ["1G", "128G", "4100M"] {
        let error = run(&parsed(&["--size", size])).unwrap_err().to_string();
        assert!(error.contains("--size"), "{size}: {error}");
    }
}
