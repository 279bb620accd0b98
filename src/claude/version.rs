//! Versions of Claude Code.

use std::{fmt, str::FromStr};

/// A version such as `2.1.325`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl Version {
    /// The oldest that is known to have everything that is used here: 2.1.197 has neither `--forward-subagent-text` nor the times of
    /// streamed lines.
    pub(super) const OLDEST: Self = Self { major: 2, minor: 1, patch: 198 };

    /// The version at the start of what `claude --version` prints, such as `2.1.325 (Claude Code)`.
    pub(super) fn printed(text: &str) -> Option<Self> {
        text.split_whitespace().next()?.parse().ok()
    }
}

impl FromStr for Version {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.splitn(3, '.');
        let mut next = || numbers.next().unwrap_or_default().parse();
        Ok(Self { major: next()?, minor: next()?, patch: next()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared_by_number() {
        let version = |text| Version::printed(text);
        assert_eq!(
            version("2.1.325 (Claude Code)\n").map(|version| version.to_string()),
            Some("2.1.325".to_owned())
        );
        assert!(version("2.1.325") > version("2.1.99"));
        for nonsense in ["", "claude", "2.1", "2.1.x", "v2.1.3"] {
            assert_eq!(version(nonsense), None, "{nonsense}");
        }
    }
}
