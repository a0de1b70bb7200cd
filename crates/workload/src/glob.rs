//! Patterns of file names, expanded as in a shell: by components, sorted by bytes; a leading dot is matched by a dot
//! only.
//!
//! Names are bytes. A pattern matches characters where a name is UTF-8, and single bytes where it is not.

use crate::quantities::Malformed;
use amalgam_core::vocabulary::byte_string::shown;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The paths that match. They are relative to `directory`, or absolute if the pattern is.
///
/// # Errors
/// The pattern is malformed, or a directory whose files may match cannot be read. Files and directories that disappear
/// meanwhile are no error.
pub(crate) fn expand(pattern: &[u8], directory: &Path) -> Result<Vec<Vec<u8>>, Malformed> {
    // As in a shell: if nothing matches, the pattern itself is taken as a file's name, including its brackets.
    let itself = || fs::symlink_metadata(directory.join(OsStr::from_bytes(pattern))).map(|_| vec![pattern.to_vec()]);
    let components = match parse(pattern) {
        Ok(components) => components,
        Err(problem) => {
            let problem = format!("`{}` is not a pattern: {problem}", shown(pattern));
            return itself().map_err(|_| Malformed::new(problem, "correct the pattern"));
        }
    };
    let mut search = Search { directory, found: Vec::new() };
    let start: &[u8] = if pattern.starts_with(b"/") { b"/" } else { b"" };
    search.walk(start, &components).map_err(|(path, error)| {
        let problem = format!("cannot read `{}`: {error}", directory.join(OsStr::from_bytes(&path)).display());
        Malformed::new(problem, "make it readable, or narrow the pattern")
    })?;
    let mut found = search.found;
    found.sort_unstable();
    found.dedup();
    Ok(if found.is_empty() { itself().unwrap_or_default() } else { found })
}

enum Component {
    /// No special characters.
    Literal(Vec<u8>),
    Pattern(Vec<Token>),
    /// `**`: any number of directories. Symbolic links to directories are not followed.
    Anywhere,
    /// The empty component after a trailing slash: the path must be a directory.
    Directory,
}

enum Token {
    /// This character.
    One(Unit),
    /// `?`
    Any,
    /// `*`
    Many,
    /// `[...]`
    Class { negated: bool, members: Vec<Member> },
}

enum Member {
    Range(Unit, Unit),
    /// A named class such as `[:alpha:]`.
    Named(fn(char) -> bool),
}

/// A character, or a byte that is not part of one. Such bytes have numbers above all characters.
type Unit = u32;

const BYTE: Unit = char::MAX as Unit + 1;

fn units(bytes: &[u8]) -> Vec<Unit> {
    let of = |chunk: std::str::Utf8Chunk<'_>| {
        let invalid = chunk.invalid().iter().map(|byte| BYTE + Unit::from(*byte));
        chunk.valid().chars().map(Unit::from).chain(invalid).collect::<Vec<_>>()
    };
    bytes.utf8_chunks().flat_map(of).collect()
}

const fn unit(character: char) -> Unit {
    character as Unit
}

fn parse(pattern: &[u8]) -> Result<Vec<Component>, &'static str> {
    let written = pattern.split(|byte| *byte == b'/').filter(|component| !component.is_empty());
    let mut components: Vec<Component> = written.map(parse_component).collect::<Result<_, _>>()?;
    if pattern.ends_with(b"/") && !components.is_empty() {
        components.push(Component::Directory);
    }
    Ok(components)
}

fn parse_component(component: &[u8]) -> Result<Component, &'static str> {
    if component == b"**" {
        return Ok(Component::Anywhere);
    }
    let units = units(component);
    let mut rest = &units[..];
    let mut tokens = Vec::new();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        tokens.push(match (char::from_u32(*first), after) {
            // As in a shell: a backslash makes the next character an ordinary one.
            (Some('\\'), [quoted, after @ ..]) => {
                rest = after;
                Token::One(*quoted)
            }
            (Some('*'), [next, ..]) if *next == unit('*') => return Err("`**` is allowed as a whole component only"),
            (Some('*'), _) => Token::Many,
            (Some('?'), _) => Token::Any,
            (Some('['), _) => parse_class(&mut rest)?,
            _ => Token::One(*first),
        });
    }
    let plain: Option<Vec<Unit>> =
        tokens.iter().map(|token| if let Token::One(unit) = token { Some(*unit) } else { None }).collect();
    Ok(plain.map_or(Component::Pattern(tokens), |plain| Component::Literal(bytes(&plain))))
}

fn bytes(units: &[Unit]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(units.len());
    for unit in units {
        match char::from_u32(*unit) {
            Some(character) => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            None => bytes.push((unit - BYTE) as u8),
        }
    }
    bytes
}

/// Parses a class. The opening bracket has been read.
fn parse_class(rest: &mut &[Unit]) -> Result<Token, &'static str> {
    const UNCLOSED: &str = "a `[` has no `]`; write `\\[` or `[[]` for the character itself";
    let negated = rest.first().is_some_and(|first| [unit('!'), unit('^')].contains(first));
    *rest = &rest[usize::from(negated)..];
    let mut members = Vec::new();
    loop {
        let (first, after) = rest.split_first().ok_or(UNCLOSED)?;
        *rest = after;
        let first = match (char::from_u32(*first), after) {
            (Some(']'), _) if !members.is_empty() => return Ok(Token::Class { negated, members }),
            (Some('['), [colon, named @ ..]) if *colon == unit(':') => {
                let end = named.windows(2).position(|pair| *pair == [unit(':'), unit(']')]).ok_or(UNCLOSED)?;
                members.push(Member::Named(named_class(&bytes(&named[..end]))?));
                *rest = &named[end + 2..];
                continue;
            }
            (Some('\\'), [quoted, after @ ..]) => {
                *rest = after;
                *quoted
            }
            _ => *first,
        };
        match **rest {
            [dash, last, ..] if dash == unit('-') && last != unit(']') => {
                if last < first {
                    return Err("the range in its brackets is not ascending");
                }
                members.push(Member::Range(first, last));
                *rest = &rest[2..];
            }
            _ => members.push(Member::Range(first, first)),
        }
    }
}

fn named_class(name: &[u8]) -> Result<fn(char) -> bool, &'static str> {
    Ok(match name {
        b"alpha" => char::is_alphabetic,
        b"digit" => |character| character.is_ascii_digit(),
        b"alnum" => char::is_alphanumeric,
        b"upper" => char::is_uppercase,
        b"lower" => char::is_lowercase,
        b"space" => char::is_whitespace,
        b"punct" => |character| character.is_ascii_punctuation(),
        b"xdigit" => |character| character.is_ascii_hexdigit(),
        _ => {
            return Err(
                "unknown class in its brackets; known: alpha, digit, alnum, upper, lower, space, punct, xdigit",
            );
        }
    })
}

impl Token {
    /// Whether the token matches this character. `*` matches any number of characters.
    fn takes(&self, unit: Unit) -> bool {
        match self {
            Token::One(only) => *only == unit,
            Token::Any | Token::Many => true,
            Token::Class { negated, members } => {
                let has = |member: &Member| match member {
                    Member::Range(first, last) => (*first..=*last).contains(&unit),
                    Member::Named(named) => char::from_u32(unit).is_some_and(named),
                };
                members.iter().any(has) != *negated
            }
        }
    }
}

fn matches(tokens: &[Token], name: &[u8]) -> bool {
    let says_dot = matches!(tokens.first(), Some(Token::One(first)) if *first == unit('.'));
    if name.starts_with(b".") && !says_dot {
        return false;
    }
    let name = units(name);
    let (mut token, mut at) = (0, 0);
    // Where to continue if the last `*` has to match one more character: the token after it, and the place in the name.
    let mut again: Option<(usize, usize)> = None;
    loop {
        match (tokens.get(token), name.get(at)) {
            (None, None) => return true,
            (Some(Token::Many), _) => {
                token += 1;
                again = Some((token, at));
                continue;
            }
            (Some(wanted), Some(unit)) if wanted.takes(*unit) => {
                (token, at) = (token + 1, at + 1);
                continue;
            }
            _ => {}
        }
        match again {
            Some((after_star, taken)) if taken < name.len() => {
                again = Some((after_star, taken + 1));
                (token, at) = (after_star, taken + 1);
            }
            _ => return false,
        }
    }
}

struct Search<'a> {
    directory: &'a Path,
    found: Vec<Vec<u8>>,
}

/// A directory that cannot be read, and why.
type Unreadable = (Vec<u8>, io::Error);

impl Search<'_> {
    /// Finds the paths below the directory `path` that match the components. `path` is empty or ends with a slash.
    fn walk(&mut self, path: &[u8], components: &[Component]) -> Result<(), Unreadable> {
        let Some((first, rest)) = components.split_first() else { return Ok(()) };
        match first {
            Component::Literal(name) => {
                let path = [path, name].concat();
                match fs::symlink_metadata(self.full(&path)) {
                    Ok(found) => self.step(path, found.is_dir() || found.is_symlink(), rest),
                    Err(error) if is_absence(&error) => Ok(()),
                    Err(error) => Err((path, error)),
                }
            }
            Component::Directory => {
                if fs::metadata(self.full(path)).is_ok_and(|found| found.is_dir()) {
                    self.found.push(path.to_vec());
                }
                Ok(())
            }
            Component::Pattern(tokens) => {
                for entry in self.entries(path)?.into_iter().filter(|entry| matches(tokens, &entry.name)) {
                    self.step([path, &entry.name].concat(), entry.is_directory || entry.is_link, rest)?;
                }
                Ok(())
            }
            Component::Anywhere => {
                self.walk(path, rest)?;
                for entry in self.entries(path)?.into_iter().filter(|entry| !entry.name.starts_with(b".")) {
                    let path = [path, &entry.name].concat();
                    if rest.is_empty() {
                        self.found.push(path.clone());
                    }
                    if entry.is_directory {
                        self.walk(&[&path[..], b"/"].concat(), components)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Continues with an existing `path` that matches the components so far.
    fn step(&mut self, mut path: Vec<u8>, may_hold_others: bool, rest: &[Component]) -> Result<(), Unreadable> {
        if rest.is_empty() {
            self.found.push(path);
        } else if may_hold_others {
            path.push(b'/');
            self.walk(&path, rest)?;
        }
        Ok(())
    }

    fn full(&self, path: &[u8]) -> std::path::PathBuf {
        self.directory.join(OsStr::from_bytes(path))
    }

    fn entries(&self, path: &[u8]) -> Result<Vec<Entry>, Unreadable> {
        let read = fs::read_dir(self.full(path)).and_then(|entries| entries.map(|entry| Entry::of(&entry?)).collect());
        match read {
            Err(error) if is_absence(&error) => Ok(Vec::new()),
            other => other.map_err(|error| (path.to_vec(), error)),
        }
    }
}

struct Entry {
    name: Vec<u8>,
    is_directory: bool,
    is_link: bool,
}

impl Entry {
    fn of(entry: &fs::DirEntry) -> io::Result<Entry> {
        let kind = entry.file_type()?;
        let name = entry.file_name().as_bytes().to_vec();
        Ok(Entry { name, is_directory: kind.is_dir(), is_link: kind.is_symlink() })
    }
}

/// Whether the error means that the path does not exist, so that no match is missed.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Creates a directory with these files.
    fn place(files: &[&[u8]]) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for file in files {
            let path = place.path().join(OsStr::from_bytes(file));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        place
    }

    fn found(place: &tempfile::TempDir, pattern: &[u8]) -> Vec<String> {
        expand(pattern, place.path()).unwrap().iter().map(|path| shown(path)).collect()
    }

    #[test]
    fn names_that_are_not_utf_8_are_matched() {
        let place = place(&[b"d/caf\xe9.txt", "d/caf\u{fffd}.txt".as_bytes(), "d/café.txt".as_bytes(), b"d\xff/x.txt"]);
        assert_eq!(found(&place, b"d/*.txt"), ["d/café.txt", "d/caf\\xe9.txt", "d/caf\u{fffd}.txt"]);
        assert_eq!(found(&place, b"d/caf?.txt").len(), 3, "each is one character or byte");
        assert_eq!(found(&place, b"d/caf\xe9*"), ["d/caf\\xe9.txt"], "a pattern may contain any bytes");
        assert_eq!(found(&place, b"*/x.txt"), ["d\\xff/x.txt"]);
        assert_eq!(found(&place, b"**/x.txt"), ["d\\xff/x.txt"]);
    }

    #[test]
    fn a_leading_dot_is_matched_by_a_dot_only() {
        let place = place(&[b"a.txt", b".hidden.txt", b".git/x.txt", b"d/.e/x.txt", b"d/f.txt"]);
        assert_eq!(found(&place, b"*.txt"), ["a.txt"]);
        assert_eq!(found(&place, b"?hidden.txt"), [""; 0]);
        assert_eq!(found(&place, b"[.]hidden.txt"), [""; 0]);
        assert_eq!(found(&place, b".*.txt"), [".hidden.txt"]);
        assert_eq!(found(&place, b"\\.h*"), [".hidden.txt"]);
        assert_eq!(found(&place, b"**/*.txt"), ["a.txt", "d/f.txt"]);
        assert_eq!(found(&place, b"**"), ["a.txt", "d", "d/f.txt"]);
        assert_eq!(found(&place, b"*/x.txt"), [""; 0]);
        assert_eq!(found(&place, b".*/x.txt"), [".git/x.txt"]);
        assert_eq!(found(&place, b".git/*"), [".git/x.txt"]);
        assert_eq!(found(&place, b"d/.e/**"), ["d/.e/x.txt"]);
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        let place = place(&[b"a1", b"a2", b"ab", b"b1", b"a[1]", b"*", b"x y", b"d/e/f", b"a\\"]);
        for (pattern, expected) in [
            ("a?", &["a1", "a2", "a\\", "ab"][..]),
            ("a[0-9]", &["a1", "a2"]),
            ("a[!0-9]", &["a\\", "ab"]),
            ("a[^0-9]", &["a\\", "ab"]),
            ("a[[:digit:]]", &["a1", "a2"]),
            ("[]ab]1", &["a1", "b1"]),
            ("a\\[1\\]", &["a[1]"]),
            ("a[[]1]", &["a[1]"]),
            ("\\*", &["*"]),
            ("a*[1b]*", &["a1", "a[1]", "ab"]),
            ("x*y", &["x y"]),
            ("d//e/*", &["d/e/f"]),
            ("d/*/", &["d/e/"]),
            ("d/../d/e/f", &["d/../d/e/f"]),
            ("d/**/f", &["d/e/f"]),
            ("d/**/**", &["d/e", "d/e/f"]),
            ("a1/*", &[]),
            ("none/*", &[]),
        ] {
            assert_eq!(found(&place, pattern.as_bytes()), expected, "{pattern}");
        }
        let here = place.path().as_os_str().as_bytes();
        assert_eq!(expand(&[here, b"/a[12]"].concat(), Path::new("/")).unwrap().len(), 2, "an absolute pattern");
        for (pattern, why) in [("a[1", "`]`"), ("b**", "`**`"), ("[z-a]", "not ascending"), ("[[:name:]]", "class")] {
            let wrong = expand(pattern.as_bytes(), place.path()).unwrap_err();
            assert!(wrong.problem.contains(why), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_without_matches_is_taken_as_a_files_name() {
        let place = place(&[b"set[2].txt", b"open[", b"q?"]);
        assert_eq!(found(&place, b"set[2].txt"), ["set[2].txt"]);
        assert_eq!(found(&place, b"open["), ["open["]);
    }

    #[test]
    fn links_match_and_are_followed_by_components_other_than_two_stars() {
        let place = place(&[b"d/x"]);
        symlink("nowhere", place.path().join("broken")).unwrap();
        symlink("loop", place.path().join("loop")).unwrap();
        symlink(".", place.path().join("here")).unwrap();
        assert_eq!(found(&place, b"b*"), ["broken"]);
        assert_eq!(found(&place, b"*/x"), ["d/x"]);
        assert_eq!(found(&place, b"here/*/x"), ["here/d/x"]);
        assert_eq!(found(&place, b"**/x"), ["d/x"]);
        assert_eq!(found(&place, b"*/"), ["d/", "here/"]);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_named_in_the_error() {
        let place = place(&[b"open/x"]);
        // Root can read every directory, but no path can be longer than the kernel allows.
        let (name, half) = ("y".repeat(200), place.path().join("half"));
        let deep = |top: &str| (0..11).fold(place.path().join(top), |path, _| path.join(&name));
        fs::create_dir_all(deep("deep")).unwrap();
        fs::create_dir_all(deep("half")).unwrap();
        fs::rename(half, deep("deep").join("half")).unwrap();
        for pattern in [&b"**/x"[..], b"**"] {
            let wrong = expand(pattern, place.path()).unwrap_err();
            assert!(wrong.problem.contains("deep/yyy"), "{wrong}");
        }
        assert_eq!(found(&place, b"o*/x"), ["open/x"]);
        let shut = place.path().join("open");
        fs::set_permissions(&shut, fs::Permissions::from_mode(0o0)).unwrap();
        match fs::read_dir(&shut) {
            Err(_) => assert!(expand(b"*/x", place.path()).unwrap_err().problem.contains("open")),
            Ok(_) => assert_eq!(found(&place, b"*/x"), ["open/x"], "root can read it"),
        }
    }
}
