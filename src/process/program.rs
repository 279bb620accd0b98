//! Where the program of a child process is.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The program to start: the one that was chosen, else the one that the environment variable names, else `name`.
pub(crate) fn find_program(chosen: Option<&Path>, variable: &str, name: &str) -> PathBuf {
    let named = || env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = chosen.map(Path::to_owned).or_else(named).unwrap_or_else(|| PathBuf::from(name));
    // A bare name is looked up on the path; a path with a directory is meant from here, not from where the child starts.
    let is_bare = found.parent() == Some(Path::new(""));
    if is_bare { found } else { std::path::absolute(&found).unwrap_or(found) }
}
