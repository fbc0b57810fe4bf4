//! `cargo xtask ports`, which builds and boots the ports: other kernels with Hotmem as their frame
//! allocator.

mod arceos;
mod c_kernel;
mod ostd;
mod port;

pub(crate) use c_kernel::LIBRARY as C_LIBRARY;

use crate::steps::Steps;
use port::Port;
use std::process::ExitCode;

const PORTS: [Port; 3] = [arceos::PORT, ostd::PORT, c_kernel::PORT];

/// Installs the toolchains that build the ports.
pub(crate) fn prepare(steps: &mut Steps) {
    for port in &PORTS {
        port.prepare(steps);
    }
}

/// Builds the kernels of the port with this name and runs their tests, or builds those of all ports
/// if the name is `build`.
pub(crate) fn run(name: &str) -> ExitCode {
    let Some(port) = PORTS.iter().find(|port| port.name == name) else { return build() };
    let mut steps = Steps::default();
    port.check(&mut steps, port.images, port.all_tests);
    steps.conclude_tests()
}

/// Builds all kernels of all ports.
pub(crate) fn build() -> ExitCode {
    let mut steps = Steps::default();
    for port in &PORTS {
        if port.prepare(&mut steps) {
            port.build(&mut steps, port.images);
        }
    }
    steps.conclude()
}

/// Builds the first kernel of each port and runs its tests.
pub(crate) fn check(steps: &mut Steps) {
    PORTS.iter().for_each(|port| port.check(steps, &port.images[..1], port.smoke_tests));
}

/// Builds all kernels of all ports and runs all their tests.
pub(crate) fn check_all(steps: &mut Steps) {
    PORTS.iter().for_each(|port| port.check(steps, port.images, port.all_tests));
}

/// Checks the formatting of Hotmem's own code in the ports, and runs clippy on it.
pub(crate) fn lint(steps: &mut Steps) {
    for port in &PORTS {
        if port.prepare(steps) {
            (port.lint)(steps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PORTS;
    use crate::step::root;
    use std::fs;

    /// If a filter matched no test, the step would run no test and succeed.
    #[test]
    fn the_smoke_tests_of_each_port_exist() {
        let tests = root().join("lab/tests/ports");
        for port in &PORTS {
            let filter = port.smoke_tests.trim_start_matches("--nocapture ");
            let (module, name) = filter.split_once("::").unwrap();
            let file = tests.join(format!("{module}.rs"));
            let file = if file.exists() { file } else { tests.join("main.rs") };
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains(&format!("fn {name}")), "{filter}");
        }
    }
}
