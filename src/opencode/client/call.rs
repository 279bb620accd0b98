//! A request in the making.

use std::borrow::Cow;

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Directory;
use crate::error::InvalidInput;

/// A route of the server that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation {
    /// Completes the sentence "cannot …".
    pub(crate) name: &'static str,
    pub(crate) method: Method,
    /// As in the server's `OpenAPI` document, with `{names}` for ids.
    pub(crate) path: &'static str,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// Reads.
    Get,
    /// Acts or creates.
    Post,
    /// Replaces.
    Put,
    /// Changes.
    Patch,
    /// Removes.
    Delete,
}

/// A request in the making. Input is checked as it is added; the first error is returned instead of sending.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) operation: &'static str,
    pub(super) method: Method,
    pub(super) path: Result<String, InvalidInput>,
    pub(super) query: Vec<(Cow<'static, str>, String)>,
    pub(super) body: Option<Bytes>,
}

/// Everything that could end a path segment or be taken for an escape.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl Operation {
    pub(crate) fn call(self) -> Call {
        Call {
            operation: self.name,
            method: self.method,
            path: Ok(self.path.to_owned()),
            query: Vec::new(),
            body: None,
        }
    }
}

impl From<Method> for reqwest::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Post => Self::POST,
            Method::Put => Self::PUT,
            Method::Patch => Self::PATCH,
            Method::Delete => Self::DELETE,
        }
    }
}

impl Call {
    /// A request to any route.
    pub(crate) fn raw(operation: &'static str, method: Method, path: &str) -> Self {
        let path = if path.starts_with('/') && !path.contains(['?', '#']) {
            Ok(path.to_owned())
        } else {
            Err(InvalidInput::new("path", "must start with a slash and have no query"))
        };
        Self { operation, method, path, query: Vec::new(), body: None }
    }

    /// Replaces `{name}` in the path by an id.
    pub(crate) fn id(mut self, name: &'static str, id: &str) -> Self {
        let rule = if id.is_empty() {
            Some("must not be empty")
        } else if id.chars().any(char::is_control) {
            Some("must not contain control characters")
        } else if matches!(id, "." | "..") {
            Some("must not be a relative path")
        } else if name == "sessionID" && !id.starts_with("ses") {
            // The server takes this for a failure of its own and answers 500.
            Some("must start with `ses`")
        } else {
            None
        };
        self.path = match (self.path, rule) {
            (Ok(path), None) => {
                let segment = utf8_percent_encode(id, SEGMENT).to_string();
                Ok(path.replace(&format!("{{{name}}}"), &segment))
            }
            (Ok(_), Some(rule)) => Err(InvalidInput::new(name, rule)),
            (Err(earlier), _) => Err(earlier),
        };
        self
    }

    pub(crate) fn directory(self, directory: Option<&Directory>) -> Self {
        match directory {
            Some(directory) => self.query("directory", directory_value(directory)),
            None => self,
        }
    }

    pub(crate) fn query(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// Sends bytes that are JSON already.
    pub(crate) fn body(mut self, json: Bytes) -> Self {
        self.body = Some(json);
        self
    }

    pub(crate) fn json(mut self, body: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(bytes) => self.body = Some(bytes.into()),
            Err(_) => self.path = Err(InvalidInput::new("body", "must be representable as JSON")),
        }
        self
    }

    /// Fails the request with `error` instead of sending it.
    pub(crate) fn check(mut self, result: Result<(), InvalidInput>) -> Self {
        if let (Ok(_), Err(error)) = (&self.path, result) {
            self.path = Err(error);
        }
        self
    }
}

/// The value of the `directory` query parameter, before the query's own encoding.
///
/// The server decodes percent signs once more than a query asks for, so a literal one has to be encoded twice. All else is left
/// alone, because servers that do not do so exist too.
pub(super) fn directory_value(directory: &Directory) -> String {
    directory.as_str().replace('%', "%25")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_percent_signs_are_encoded_twice() {
        let directory = Directory::new("/a b/100%/%20/\u{e9}").unwrap();
        assert_eq!(directory_value(&directory), "/a b/100%25/%2520/\u{e9}");
    }
}
