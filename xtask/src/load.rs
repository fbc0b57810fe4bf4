//! Load of the host: processes that use all CPUs.

use std::{
    num::NonZero,
    process::{Child, Command},
    thread,
};

/// Processes that compute without end, one for each CPU. Dropping this value ends them.
pub(crate) struct Load(Vec<Child>);

impl Load {
    /// Starts the processes.
    pub(crate) fn start() -> Load {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        // The kernel ends the processes if this program is killed.
        let mut compute = Command::new("setpriv");
        compute.args(["--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"]);
        Load((0..cpus).filter_map(|_| compute.spawn().ok()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // Both calls fail only if the process has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::can_limit_time;

    #[test]
    fn a_process_runs_on_each_cpu_until_the_load_is_dropped() {
        let load = Load::start();
        // Without util-linux there is no load.
        let cpus = thread::available_parallelism().unwrap().get();
        assert_eq!(load.0.len(), if can_limit_time() { cpus } else { 0 });
        let running: Vec<_> =
            load.0.iter().map(|process| format!("/proc/{}", process.id())).collect();
        assert!(running.iter().all(|path| std::path::Path::new(path).exists()));
        drop(load);
        assert!(running.iter().all(|path| !std::path::Path::new(path).exists()));
    }
}
