//! The directory that a session works in.

use std::{fmt, path::Path, sync::Arc};

use crate::error::InvalidInput;

/// An absolute directory on the server's machine.
///
/// `OpenCode` keeps one instance, and one event stream, per directory; events of one are invisible to another. So a
/// directory has one spelling here: no trailing or doubled slashes, no `.` components. `..` and symbolic links are left
/// to the server, which resolves them. Nothing requires it to exist, as the server may be elsewhere.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

    /// The value of the `directory` query parameter, before the query's own encoding.
    ///
    /// The server decodes percent signs once more than a query asks for, so a literal one has to be encoded twice.
    /// All else is left alone, because servers that do not do so exist too.
    pub(crate) fn query_value(&self) -> String {
        self.0.replace('%', "%25")
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

    #[test]
    fn only_percent_signs_are_encoded_twice() {
        assert_eq!(Directory::new("/a b/100%/%20/\u{e9}").unwrap().query_value(), "/a b/100%25/%2520/\u{e9}");
    }
}
