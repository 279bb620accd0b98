//! Behaviour, one module each, in one binary so that it links once.

mod fixtures_parity;
