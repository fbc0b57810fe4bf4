use super::oracle::Counts;
use super::*;
use crate::bench::parsed;
use goals::{ANSWERED, BACKED_AGAIN, WHOLE_PAGEBLOCKS};
use hotmem::Bytes;

#[test]
fn each_subject_touches_zero_memory_and_has_all_figures() {
    for pages in [HostPages::Small, HostPages::Huge] {
        for subject in Subject::ALL {
            let mut sample = Sample::new(NAME);
            let size = Bytes::mib(16);
            let costs = touch::measure(subject, size, pages).unwrap();
            costs.record(&case("touch", size, pages), &subject.to_string(), &mut sample);
            let records = sample.records();
            let metrics: Vec<_> = records.iter().map(|r| (&*r.metric, r.median > 0.0)).collect();
            let expected =
                ["cpu_time", "freeing", "first_frame", "other_frame"].map(|name| (name, true));
            assert_eq!(metrics, expected, "{subject}");
        }
    }
}

const LOAD: Load =
    Load { sizes: Sizes::Mixed, size: Bytes::mib(256), cpus: 2, requests: 20_000, seed: 1 };

/// Time is simulated, so the results do not depend on the host's load.
#[test]
fn marks_change_neither_the_host_s_work_nor_fragmentation() {
    for sizes in Sizes::ALL {
        let load = Load { sizes, ..LOAD };
        let [with, without] =
            [Subject::Hotmem, Subject::NoMarks].map(|s| load::measure(s, load).unwrap());
        let Counts { zero, answered, backed, .. } = with.counts;
        assert!(zero > 0 && answered * 100 >= zero * 95, "{with:?}");
        assert!(without.counts.zero > 0 && without.counts.answered == 0, "{without:?}");
        assert!(backed.abs_diff(without.counts.backed) * 20 <= backed, "{with:?} {without:?}");
        let whole_pageblocks = with.whole_pageblocks - without.whole_pageblocks;
        assert!(whole_pageblocks.abs() <= without.whole_pageblocks / 20.0, "{without:?}");
        assert!(with.zero_at_end > 0.0 && with.has_marks && with.refused == 0, "{with:?}");
    }
}

#[test]
fn the_results_of_a_load_depend_on_the_seed_alone() {
    let measure = |load| load::measure(Subject::Hotmem, load).unwrap();
    assert_eq!(measure(LOAD), measure(LOAD));
    assert_ne!(measure(LOAD), measure(Load { seed: 2, ..LOAD }));
}

#[test]
fn the_oracle_and_the_reporter_count_the_same_pageblocks() {
    let results = load::measure(Subject::Hotmem, LOAD).unwrap();
    assert_eq!(results.counts.backed, results.refaulted);
}

#[test]
fn each_figure_that_the_report_shows_is_recorded() {
    let file = std::env::temp_dir().join(format!("hotmem-zeroing-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let line = "--cases touch,load --size 16M --runs 1 --load-size 256M --requests 2000 --cpus 1 \
                --load-runs 1 --json";
    run(&parsed(&line.split(' ').chain([path]).collect::<Vec<_>>())).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records: Vec<Record> = serde_json::from_str(&text).unwrap();
    let has = |case: &str, subject: &str, metric| {
        records.iter().any(|r| r.case == case && r.subject == subject && r.has_metric(metric))
    };
    for case in ["touch/16M/4k", "touch/16M/thp"] {
        for subject in Subject::ALL {
            assert!(has(case, &subject.to_string(), TIME), "{case} {subject}");
        }
    }
    assert!(has("load/mixed/256M/1cpu", "hotmem", ANSWERED));
    for subject in ["hotmem", "hotmem-no-marks"] {
        assert!(has("load/mixed/256M/1cpu", subject, BACKED_AGAIN), "{subject}");
        assert!(has("load/mixed/256M/1cpu", subject, WHOLE_PAGEBLOCKS), "{subject}");
    }
    assert!(has("published/256M/thp", "linux-published", TIME));
}
