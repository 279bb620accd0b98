//! The directory that a session works in.

use std::{fmt, path::Path, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::error::InvalidInput;

/// An absolute directory on the agent's machine.
///
/// `OpenCode` keeps one instance, and one event stream, per directory; events of one are invisible to another. So a
/// directory has one spelling here: no trailing or doubled slashes, no `.` components. `..` and symbolic links are left
/// to the agent, which resolves them. Nothing requires it to exist, as the agent may be elsewhere.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Directory(Arc<str>);

impl Directory {
    /// Checks and normalises a path.
    ///
    /// # Errors
    /// If it is empty, relative, not UTF-8, or contains a NUL.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, InvalidInput> {
        let path = path.as_ref();
        let invalid = |rule| Err(InvalidInput::new("directory", rule));
        if path.as_os_str().is_empty() {
            return invalid("must not be empty");
        }
        if !path.is_absolute() {
            return invalid("must be an absolute path");
        }
        let normal: std::path::PathBuf = path.components().collect();
        match normal.to_str() {
            None => invalid("must be UTF-8"),
            Some(text) if text.contains('\0') => invalid("must not contain NUL"),
            Some(text) => Ok(Self(text.into())),
        }
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        Path::new(&*self.0)
    }
}

impl<'de> Deserialize<'de> for Directory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<Path> for Directory {
    fn as_ref(&self) -> &Path {
        self.as_path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_spelling() {
        for path in ["/a/b", "/a/b/", "/a//b", "/a/./b/.", "//a/b//"] {
            assert_eq!(Directory::new(path).unwrap().as_str(), "/a/b", "{path}");
        }
        assert_eq!(Directory::new("/").unwrap().as_str(), "/");
        assert_eq!(Directory::new("/a/../b c/\u{e9}").unwrap().as_str(), "/a/../b c/\u{e9}");
    }

    #[test]
    fn a_bad_directory_is_refused_by_name() {
        for (path, message) in [
            ("", "directory must not be empty"),
            ("a/b", "directory must be an absolute path"),
            ("./", "directory must be an absolute path"),
            ("/a\0b", "directory must not contain NUL"),
        ] {
            assert_eq!(Directory::new(path).unwrap_err().to_string(), message, "{path:?}");
        }
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let path = std::ffi::OsStr::from_bytes(b"/a\xff");
            assert_eq!(Directory::new(path).unwrap_err().to_string(), "directory must be UTF-8");
        }
    }
}
