use super::*;
use crate::bench::{parsed, record::Record};

const SIZE: Bytes = Bytes::mib(256);

fn results_of(subject: Subject, seed: u64, cpus: u16) -> RunResults {
    let requests = Requests::new(seed, cpus, in_use(SIZE.frames()));
    subject.measure(SIZE, requests, 100_000, &ProgressBar::hidden()).unwrap()
}

#[test]
fn results_depend_on_the_seed_alone() {
    for subject in Subject::ALL {
        let results = results_of(subject, 1, 16);
        assert_eq!(results, results_of(subject, 1, 16));
        assert_ne!(results.whole_shares, results_of(subject, 2, 16).whole_shares);
        let check_points: Vec<_> =
            results.whole_shares.iter().map(|&(check_point, _)| check_point).collect();
        assert_eq!(check_points, [10_000, 20_000, 50_000, 100_000]);
        assert!(results.whole_shares.iter().all(|(_, share)| (0.0..=100.0).contains(share)));
    }
    // An allocator that does not know CPUs gives the same results for any number of them.
    let shares = |cpus| results_of(Subject::Buddy, 1, cpus).whole_shares;
    assert_eq!(shares(1), shares(16));
}

#[test]
fn at_most_one_pageblock_of_each_cpu_has_no_frame_in_use_and_is_not_free() {
    for cpus in [1, 16] {
        let results = results_of(Subject::Hotmem, 1, cpus);
        assert!(results.unused_but_not_free.unwrap() <= u64::from(cpus), "{results:?}");
        assert_eq!(results.refused_shares[0], 0.0, "a frame was refused while 10 % are free");
    }
}

#[test]
fn packing_depends_on_the_seed_alone_and_all_runs_lie_in_the_measured_memory() {
    for lengths in Lengths::ALL {
        let packing = |seed| measure_packing(SIZE, lengths, 1, 100_000, seed).unwrap();
        assert_eq!(packing(1), packing(1));
        assert!(packing(1).whole_blocks < SIZE.frames() / PAGEBLOCK_FRAMES as u64 / 9);
    }
}

#[test]
fn no_metadata_lies_in_the_measured_memory() {
    let machine = machine(SIZE).unwrap();
    let allocate_one = || machine.frames().alloc(AllocRequest::frames(1).movable()).ok();
    assert_eq!(std::iter::from_fn(allocate_one).collect::<Vec<_>>().len() as u64, SIZE.frames());
}

#[test]
fn check_points_end_with_the_last_operation() {
    assert_eq!(check_points(30_000).collect::<Vec<_>>(), [10_000, 20_000, 30_000]);
    assert_eq!(check_points(50_000).collect::<Vec<_>>(), [10_000, 20_000, 50_000]);
    assert_eq!(check_points(7).collect::<Vec<_>>(), [7]);
}

#[test]
fn each_figure_that_the_report_shows_is_recorded() {
    let file = std::env::temp_dir().join(format!("hotmem-fragments-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let line = ["--size", "256M", "--operations", "20000", "--runs", "2", "--json", path];
    run(&parsed(&line)).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records: Vec<Record> = serde_json::from_str(&text).unwrap();
    for case in ["256M/1cpu", "256M/16cpus"] {
        for subject in Subject::ALL {
            let runs_of = |case: &str, metric| {
                let is_match = |record: &&Record| {
                    record.case == case
                        && record.has_metric(metric)
                        && record.subject == subject.name()
                };
                records.iter().find(is_match).map(|record| record.runs)
            };
            assert_eq!(
                runs_of(&format!("{case}/after-20000"), FREE_IN_WHOLE_PAGEBLOCKS),
                Some(2),
                "{case}"
            );
            assert_eq!(runs_of(case, FREE_IN_WHOLE_PAGEBLOCKS), Some(2), "{case}");
            assert!(REFUSED.iter().all(|&refused| runs_of(case, refused) == Some(2)), "{case}");
            let is_hotmem = subject == Subject::Hotmem;
            assert_eq!(runs_of(case, UNUSED_BUT_NOT_FREE).is_some(), is_hotmem);
            for lengths in Lengths::ALL {
                let case = format!("{case}/{}", lengths.name());
                for metric in [REFUSED_RUNS, WHOLE_PAGEBLOCKS] {
                    assert_eq!(runs_of(&case, metric), is_hotmem.then_some(2), "{case}");
                }
            }
        }
    }
}

#[test]
fn memory_that_is_too_small_or_not_whole_pageblocks_is_refused() {
    for size in ["32M", "65M"] {
        let error = run(&parsed(&["--size", size])).unwrap_err().to_string();
        assert!(error.contains("whole pageblocks"), "{size}: {error}");
    }
}
