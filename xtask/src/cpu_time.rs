//! Reads the CPU time of a process.

use std::fs;

/// Returns the CPU time that a process and those of its children that have ended have used, in
/// seconds. It differs little between an idle and a busy host. Returns `None` if the process was waited
/// for, or if the host is not Linux.
pub(crate) fn cpu_seconds(process: u32) -> Option<f64> {
    cpu_ticks(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
        .map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// The unit of the times in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;

/// Adds up the four times in the text of `/proc/PID/stat`: user and system time of the process and of
/// its children, which are the fields 14 to 17. Field 2, the name, is in parentheses and may contain
/// spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let times = after_name.split(' ').skip(11).take(4);
    let times: Vec<u64> = times.map(str::parse).collect::<Result<_, _>>().ok()?;
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_and_its_children_is_read() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0 9";
        assert_eq!(cpu_ticks(stat), Some(3520));
        assert_eq!(cpu_ticks("7 (sh) S 1 7 7 0 -1 4194560 1 2 3 4 100 20"), None);
        assert_eq!(cpu_ticks(""), None);
        assert_eq!(cpu_seconds(std::process::id()).is_some(), cfg!(target_os = "linux"));
    }
}
