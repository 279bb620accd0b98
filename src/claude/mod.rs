//! Claude Code: what its command line says, and what it writes to disk.

pub mod wire;
