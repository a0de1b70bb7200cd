//! The versions of each format that this program reads. It writes the newest (ADR 63).
//!
//! A format gets a new version when a message, a field or a variant is added. A program also reads the version before
//! its own, so that the daemons of a cluster can be replaced one after the other.

use std::fmt;

/// The version of this program. It is reported to people, and no decision depends on it.
pub const PROGRAM: &str = env!("CARGO_PKG_VERSION");
/// Messages between daemons, and between an agent and its executor.
pub const WIRE: Versions = Versions { oldest: 32, newest: amalgam_core::protocol::VERSION };
/// The log and its snapshots, in a state directory or in etcd.
pub const STORE: Versions = Versions { oldest: 24, newest: 25 };
/// Recordings for `amalgam sim replay`.
pub const JOURNAL: Versions = Versions { oldest: 30, newest: 31 };

/// A range of versions, including both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Versions {
    pub oldest: u32,
    pub newest: u32,
}

impl Versions {
    pub fn contains(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// The newest version that both sides know.
    pub fn common(self, other: Versions) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// The version in the first line of a file, such as `amalgam store 24`, if this program reads it.
    ///
    /// # Errors
    /// The whole line, if it names another format or version.
    pub fn of_line(self, name: &str, line: &[u8]) -> Result<u32, String> {
        let text = String::from_utf8_lossy(line);
        let version = text.strip_prefix("amalgam ").and_then(|rest| rest.strip_prefix(name)?.strip_prefix(' '));
        let version = version.and_then(|version| version.strip_suffix('\n')?.parse().ok());
        version.filter(|version| self.contains(*version)).ok_or_else(|| text.chars().take(80).collect())
    }

    /// The first line of a file with the newest version.
    pub fn line(self, name: &str) -> String {
        format!("amalgam {name} {}\n", self.newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Versions { oldest, newest } if oldest == newest => write!(f, "version {newest}"),
            Versions { oldest, newest } => write!(f, "versions {oldest} to {newest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_both_sides_is_chosen() {
        let versions = |oldest, newest| Versions { oldest, newest };
        assert_eq!(versions(3, 4).common(versions(4, 5)), Some(4));
        assert_eq!(versions(3, 4).common(versions(3, 4)), Some(4));
        assert_eq!(versions(5, 6).common(versions(3, 4)), None);
        assert_eq!(versions(3, 4).common(versions(5, 6)), None);
    }

    #[test]
    fn the_first_line_of_a_file_names_format_and_version() {
        let versions = Versions { oldest: 7, newest: 8 };
        assert_eq!(versions.of_line("store", versions.line("store").as_bytes()), Ok(8));
        assert_eq!(versions.of_line("store", b"amalgam store 7\n"), Ok(7));
        for wrong in [
            "amalgam store 6\n",
            "amalgam store 9\n",
            "amalgam journal 7\n",
            "amalgam store 7",
            "",
            "amalgam store x\n",
        ] {
            assert_eq!(versions.of_line("store", wrong.as_bytes()), Err(wrong.to_owned()));
        }
    }
}
