//! Which handles are alive.
//!
//! Every handle holds a lock on a file of its own beside the database. The operating system takes the lock away when the process
//! ends, however that happens, and only then. So a handle that gets the lock of another knows that the other is dead.

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

const SUFFIX: &str = "-runner-";

/// A living handle: this one.
#[derive(Debug)]
pub(crate) struct Owner {
    id: String,
    database: PathBuf,
    _lock: File,
}

impl Owner {
    /// Makes a handle's file and locks it. Must be called while the database is locked, or another process may take the file for a
    /// dead one's before it is locked.
    pub(crate) fn new(database: &Path) -> io::Result<Self> {
        let id = format!("{:032x}", fastrand::u128(..));
        let lock = File::create_new(lock_path(database, &id))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(Self { id, database: database.to_owned(), _lock: lock })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Whether a handle other than this one is alive. When in doubt it is.
    pub(crate) fn is_another(&self, id: &str) -> bool {
        id != self.id && is_locked(&lock_path(&self.database, id))
    }

    /// Removes the files of handles that are dead. Must be called while the database is locked.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        let (Some(directory), Some(name)) = (self.database.parent(), self.database.file_name()) else {
            return Ok(());
        };
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let mut prefix = name.to_owned();
        prefix.push(SUFFIX);
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let own = lock_path(&self.database, &self.id);
            let is_lock = name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes());
            if is_lock && Some(name.as_os_str()) != own.file_name() && !is_locked(&entry.path()) {
                // Another process may have been faster.
                drop(fs::remove_file(entry.path()));
            }
        }
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // A file that stays is swept by the next handle.
        drop(fs::remove_file(lock_path(&self.database, &self.id)));
    }
}

fn lock_path(database: &Path, id: &str) -> PathBuf {
    let mut path = OsString::from(database);
    path.push(SUFFIX);
    path.push(id);
    path.into()
}

fn is_locked(path: &Path) -> bool {
    match File::open(path) {
        // A shared lock, which is in nobody's way: a child that is forked meanwhile keeps it until it runs its program.
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
        },
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread};

    use super::*;

    #[test]
    fn nobody_is_taken_for_alive_because_a_program_is_being_started() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        File::create(&path).unwrap();
        thread::scope(|scope| {
            let starting = scope.spawn(|| (0..50).all(|_| Command::new("true").status().unwrap().success()));
            while !starting.is_finished() {
                assert!(!is_locked(&path));
            }
        });
    }
}
