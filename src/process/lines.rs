//! What a process writes, line by line and within bounds.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use crate::lock::lock;

/// How many lines of standard error are kept, and how much of each.
const KEPT_LINES: usize = 100;
const KEPT_LINE_BYTES: u64 = 4096;

/// The last lines that a process wrote, without its secret.
#[derive(Clone)]
pub(crate) struct LastLines {
    lines: Arc<Mutex<VecDeque<String>>>,
    secrets: Arc<[Arc<str>]>,
}

/// Reads lines until the end, whatever they contain; an endless line costs no memory.
pub(crate) async fn read_lines(pipe: impl AsyncRead + Unpin, mut take: impl FnMut(String)) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(KEPT_LINE_BYTES).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => take(String::from_utf8_lossy(&line).trim_end().to_owned()),
        }
    }
}

impl LastLines {
    /// None yet; wherever one of `secrets` stands in one, it is not kept.
    pub(crate) fn new(secrets: Vec<Arc<str>>) -> Self {
        Self { lines: Arc::default(), secrets: secrets.into() }
    }

    pub(crate) fn push(&self, line: &str) {
        let mut lines = lock(&self.lines);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        let mut line = line.to_owned();
        for secret in self.secrets.iter().filter(|secret| !secret.is_empty()) {
            if line.contains(&**secret) {
                line = line.replace(&**secret, "[password]");
            }
        }
        lines.push_back(line);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        lock(&self.lines).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn endless_and_broken_lines_are_cut_and_the_password_is_not_kept() {
        let lines = LastLines::new(vec!["geheim".into()]);
        let sink = lines.clone();
        let mut text = b"a\xffb\nthe password is geheim\n".to_vec();
        text.extend(vec![b'x'; 10_000]);
        read_lines(&*text, move |line| sink.push(&line)).await;
        let kept = lines.all();
        assert_eq!(kept[..2], ["a\u{fffd}b", "the password is [password]"]);
        assert_eq!(kept[2..].iter().map(String::len).collect::<Vec<_>>(), [4096, 4096, 1808]);
    }
}
