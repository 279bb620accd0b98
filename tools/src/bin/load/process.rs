//! What the system says about a process, on Linux; nothing elsewhere.

use std::{fs, time::Duration};

/// Memory and CPU time of this process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) resident_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) cpu: Duration,
    pub(crate) sockets: usize,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default()
        };
        // Nanoseconds on a CPU, over all threads that are there; the runtime's live as long as the program.
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let nanos = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        let links = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let is_socket = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
        };
        Self {
            resident_bytes: kilobytes("VmRSS:") * 1024,
            peak_bytes: kilobytes("VmHWM:") * 1024,
            cpu: Duration::from_nanos(tasks.filter_map(nanos).sum()),
            sockets: links.filter(is_socket).count(),
        }
    }
}
