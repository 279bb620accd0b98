//! Claude Code as an agent: faults, bad input, and what the fake and the real executable have in common.

mod anthropic;
mod detached;
mod errors;
mod faults;
mod left_behind;
mod real;
mod real_errors;
mod requests;
mod resume;
mod stage;
mod unread;
