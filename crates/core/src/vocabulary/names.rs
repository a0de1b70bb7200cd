//! The rules for names that people give, from any source: the command line, configuration, job files, the HTTP interface, or
//! another daemon, which is not trusted.

use super::files::MAX_PART;
use std::fmt;

/// A kind of object that has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    Node,
    User,
    /// One part of a queue's full name, in which the names of the queues above it come first, separated by dots.
    Queue,
    /// A kind of resource.
    Resource,
    /// An attribute of a node.
    Attribute,
    /// A title, which may contain spaces.
    Job,
    /// Like a job's, but also a part of paths.
    Stage,
}

/// The most bytes of any name, which is the limit of file names.
pub const MOST_BYTES: usize = MAX_PART;
/// The most bytes of names that people type as one word.
const MOST_OF_WORD: usize = 64;

/// Why a text is not a valid name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadName {
    pub problem: String,
    pub remedy: &'static str,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem, self.remedy)
    }
}

impl Named {
    /// Whether a text is a valid name of this kind.
    ///
    /// # Errors
    /// The problem and a remedy. Characters that cannot be printed are escaped.
    pub fn check(self, name: &str) -> Result<(), BadName> {
        let wrong = |problem, remedy| Err(BadName { problem, remedy });
        if name.trim().is_empty() {
            let remedy = match self {
                Named::Job | Named::Stage => "write a name, or leave it out",
                _ => "write a name",
            };
            return wrong(format!("the {self} has an empty name"), remedy);
        }
        if name.len() > self.most_bytes() {
            let (bytes, most) = (name.len(), self.most_bytes());
            return wrong(
                format!("the name of the {self} has {bytes} bytes; at most {most} are allowed"),
                "use a shorter one",
            );
        }
        if name.chars().any(is_invisible) {
            let shown = name.escape_debug();
            return wrong(format!("the name `{shown}` of the {self} contains a control character"), "remove it");
        }
        let is_well_formed = match self {
            Named::Job => true,
            Named::Stage => !name.contains('/') && !name.starts_with('.'),
            Named::Resource => {
                name.starts_with(|c: char| c.is_ascii_lowercase())
                    && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            }
            Named::Node | Named::User | Named::Queue | Named::Attribute => {
                let in_word = |c: char| c.is_alphanumeric() || self.signs().contains(c);
                name.chars().all(in_word) && !name.starts_with(['.', '-'])
            }
        };
        if is_well_formed {
            return Ok(());
        }
        wrong(format!("`{name}` is not a valid {self} name"), self.alphabet())
    }

    fn most_bytes(self) -> usize {
        match self {
            Named::Job | Named::Stage => MOST_BYTES,
            _ => MOST_OF_WORD,
        }
    }

    /// The characters besides letters and digits that may be in it.
    fn signs(self) -> &'static str {
        match self {
            // A dot separates its name from that of the queue above it.
            Named::Queue => "-_@+",
            _ => ".-_@+",
        }
    }

    fn alphabet(self) -> &'static str {
        match self {
            Named::Resource => "use lower-case letters, digits and dashes",
            Named::Stage => "remove slashes, and a dot at the beginning",
            Named::Queue => "use letters, digits, dashes and underscores, and no dash at the beginning",
            _ => "use letters, digits, dots, dashes and underscores, and no dot or dash at the beginning",
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Named::Node => "node",
            Named::User => "user",
            Named::Queue => "queue",
            Named::Resource => "resource",
            Named::Attribute => "attribute",
            Named::Job => "job",
            Named::Stage => "stage",
        })
    }
}

/// Control characters, and characters that are invisible, break lines or change the direction of the text after them.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Named; 7] =
        [Named::Node, Named::User, Named::Queue, Named::Resource, Named::Attribute, Named::Job, Named::Stage];

    #[test]
    fn invisible_empty_and_long_names_are_refused() {
        let long = "x".repeat(MOST_BYTES + 1);
        let names =
            ["", " ", "\n", "a\nb", "a\tb", "a\r", "a\0b", "\u{1b}[31m", "a\u{7}", "a\u{202e}b", "a\u{2028}b", &long];
        for named in ALL {
            for name in names {
                let refused = named.check(name).unwrap_err();
                assert!(!refused.to_string().contains(char::is_control), "{named}: {refused}");
            }
            named.check("gpu-2").unwrap();
        }
    }

    #[test]
    fn names_in_paths_and_on_command_lines_are_words() {
        for named in [Named::Node, Named::User, Named::Queue, Named::Attribute, Named::Resource] {
            for name in [
                ".", "..", "../x", "a/b", "/", "-x", "--name", ".hidden", "a b", " a", "a ", "a,b", "a=b", "a:b", "a*",
                "`a`",
            ] {
                named.check(name).unwrap_err();
            }
            named.check(&"x".repeat(64)).unwrap();
            named.check(&"x".repeat(65)).unwrap_err();
        }
        for name in ["rack1-node3", "vm.example.org", "ada@example.org", "Jürgen", "7", "_x"] {
            Named::Node.check(name).unwrap();
            Named::User.check(name).unwrap();
        }
        Named::Queue.check("a.b").unwrap_err();
        Named::Resource.check("FPGA").unwrap_err();
    }

    #[test]
    fn jobs_have_titles_and_stages_are_parts_of_paths() {
        for name in ["nightly run (2)", "a/b", "--x", "ärger"] {
            Named::Job.check(name).unwrap();
        }
        for name in ["..", ".", "../x", "a/b", ".x"] {
            Named::Stage.check(name).unwrap_err();
        }
        Named::Stage.check("map 1").unwrap();
    }
}
