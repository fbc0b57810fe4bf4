//! The structure that Xen passes to a PV kernel at its start: `struct start_info` of `xen.h`.

/// The structure, up to the command line.
#[repr(C)]
pub(crate) struct StartInfo {
    magic: [u8; 32],
    pub(crate) nr_pages: u64,
    shared_info: u64,
    flags: u32,
    store_mfn: u64,
    store_evtchn: u32,
    console: [u64; 2],
    pub(crate) pt_base: u64,
    pub(crate) nr_pt_frames: u64,
    pub(crate) mfn_list: u64,
    mod_start: u64,
    mod_len: u64,
    cmd_line: [u8; 1024],
}

impl StartInfo {
    /// Returns the command line, or an empty line if it is not UTF-8.
    pub(crate) fn command_line(&self) -> &str {
        let len = self.cmd_line.iter().position(|&byte| byte == 0).unwrap_or(self.cmd_line.len());
        core::str::from_utf8(&self.cmd_line[..len]).unwrap_or_default()
    }

    /// Returns the number after `key=`, or `default`.
    pub(crate) fn number(&self, key: &str, default: u64) -> u64 {
        self.value(key).and_then(|value| value.parse().ok()).unwrap_or(default)
    }

    /// Returns the value after `key=`.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        let mut words = self.command_line().split_whitespace();
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}
