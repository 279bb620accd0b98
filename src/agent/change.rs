//! What a turn did to files.

use serde::{Deserialize, Serialize};

/// What a turn did to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FileChange {
    /// The file, relative to the directory that the session works in.
    pub path: String,
    /// Whether it is new, gone, or another than before.
    pub kind: ChangeKind,
    /// The change as a unified diff; empty if the agent does not say.
    #[serde(default)]
    pub patch: String,
    /// Lines that were added.
    #[serde(default)]
    pub additions: u64,
    /// Lines that were deleted.
    #[serde(default)]
    pub deletions: u64,
}

/// In which way a file changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It has other content.
    Modified,
    /// It is gone.
    Deleted,
    /// Something that this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl FileChange {
    /// A file that changed in this way, by this diff, whose lines are counted.
    pub fn new(file: impl Into<String>, kind: ChangeKind, patch: impl Into<String>) -> Self {
        let patch = patch.into();
        let count = |sign: &str| {
            let lines = patch.lines().skip_while(|line| !line.starts_with("@@"));
            lines.filter(|line| line.starts_with(sign)).count() as u64
        };
        let (additions, deletions) = (count("+"), count("-"));
        Self { path: file.into(), kind, patch, additions, deletions }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_counts_its_lines_and_is_written_as_documented() {
        let patch = "--- a.txt\n+++ a.txt\n@@ -1,2 +1,3 @@\n one\n-two\n+2\n+3\n";
        let change = FileChange::new("a.txt", ChangeKind::Modified, patch);
        let json =
            json!({"path": "a.txt", "kind": "modified", "patch": patch, "additions": 2, "deletions": 1});
        assert_eq!(serde_json::to_value(&change).unwrap(), json);
        assert_eq!(serde_json::from_value::<FileChange>(json).unwrap(), change);
        let odd: FileChange = serde_json::from_value(json!({"path": "a", "kind": "renamed"})).unwrap();
        assert_eq!(odd.kind, ChangeKind::Other("renamed".to_owned()));
    }
}
