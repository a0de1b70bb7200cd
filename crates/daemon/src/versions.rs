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
        let version = text_of_line(name, line).and_then(|text| text.parse().ok());
        version.filter(|version| self.contains(*version)).ok_or_else(|| start_of(line))
    }

    /// The versions in the mark of a store, if this program reads all of them: `amalgam store 25`, or
    /// `amalgam store 24-25` while entries of the older version are not yet replaced by a snapshot.
    ///
    /// # Errors
    /// The whole mark, if it names another format or version.
    pub fn of_mark(self, name: &str, mark: &[u8]) -> Result<Versions, String> {
        let versions = text_of_line(name, mark).and_then(|text| {
            let (oldest, newest) = text.split_once('-').unwrap_or((&text, &text));
            Some(Versions { oldest: oldest.parse().ok()?, newest: newest.parse().ok()? })
        });
        let is_read = |of: &Versions| self.contains(of.oldest) && self.contains(of.newest) && of.oldest <= of.newest;
        versions.filter(is_read).ok_or_else(|| start_of(mark))
    }

    /// The mark of a store with entries of all these versions.
    pub fn mark(self, name: &str) -> String {
        let Versions { oldest, newest } = self;
        if oldest == newest { self.line(name) } else { format!("amalgam {name} {oldest}-{newest}\n") }
    }

    /// The first line of a file with the newest version.
    pub fn line(self, name: &str) -> String {
        format!("amalgam {name} {}\n", self.newest)
    }
}

fn text_of_line(name: &str, line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let text = text.strip_prefix("amalgam ")?.strip_prefix(name)?.strip_prefix(' ')?.strip_suffix('\n')?;
    Some(text.to_owned())
}

fn start_of(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(80).collect()
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

    #[test]
    fn a_mark_names_all_versions_of_the_entries() {
        let versions = |oldest, newest| Versions { oldest, newest };
        let ours = versions(7, 8);
        for both in [versions(7, 7), versions(7, 8), versions(8, 8)] {
            assert_eq!(ours.of_mark("store", both.mark("store").as_bytes()), Ok(both));
        }
        assert_eq!(versions(8, 8).mark("store"), ours.line("store"));
        assert_eq!(ours.mark("store"), "amalgam store 7-8\n");
        for wrong in ["amalgam store 6-7\n", "amalgam store 8-9\n", "amalgam store 8-7\n", "amalgam store 7-8"] {
            assert_eq!(ours.of_mark("store", wrong.as_bytes()), Err(wrong.to_owned()));
        }
        // A program that does not know both versions refuses the mark.
        for other in [versions(6, 7), versions(8, 9)] {
            assert!(other.of_mark("store", ours.mark("store").as_bytes()).is_err());
        }
        assert!(ours.of_line("store", ours.mark("store").as_bytes()).is_err());
    }
}
