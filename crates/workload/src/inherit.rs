//! Variables and the umask that a job may take over from the process that submits it.

use crate::quantities::{Malformed, check_variable};
use amalgam_core::vocabulary::ByteString;
use amalgam_core::vocabulary::byte_string::shown;

/// Variables that shells and Amalgam set, and that are valid for one process only.
const NEVER: [&[u8]; 4] = [b"PWD", b"OLDPWD", b"SHLVL", b"_"];

/// The process that submits a job. A job can take over only the values that are known.
#[derive(Clone, Default, Debug)]
pub struct Submitter {
    pub environment: Option<Vec<(ByteString, ByteString)>>,
    pub umask: Option<u16>,
    /// The variables to export, instead of those of the job file.
    pub export: Option<Export>,
    /// Whether it is on another machine, whose files cannot be read here.
    pub is_elsewhere: bool,
}

impl Submitter {
    /// A submitter on another machine, of which only the job file is known.
    pub fn elsewhere() -> Submitter {
        Submitter { is_elsewhere: true, ..Submitter::default() }
    }
}

/// Which of the submitter's variables tasks get.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Export {
    #[default]
    None,
    All,
    /// These variables. One without a value has the submitter's value.
    These(Vec<(ByteString, Option<ByteString>)>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Umask {
    These(u16),
    OfSubmitter,
}

impl Export {
    /// Reads `all`, `none` or `A,B=value`.
    ///
    /// # Errors
    /// The problem and the remedy.
    pub fn parse(text: &[u8]) -> Result<Export, Malformed> {
        match text {
            b"all" => Ok(Export::All),
            b"none" => Ok(Export::None),
            b"" => Err(Malformed::new(
                "the list of variables to export is empty",
                "write `all`, `none` or names, such as `A,B=value`",
            )),
            names => names.split(|byte| *byte == b',').map(parse_entry).collect::<Result<_, _>>().map(Export::These),
        }
    }

    /// The variables with their values.
    ///
    /// # Errors
    /// A variable without a value is not set, or the environment of the submitter is not known.
    pub fn resolve(&self, submitter: &Submitter) -> Result<Vec<(ByteString, ByteString)>, Malformed> {
        let environment = || {
            submitter.environment.as_ref().ok_or_else(|| {
                let problem = "the environment of the submitter is not known here";
                Malformed::new(problem, "give each variable its value, such as `A=value`")
            })
        };
        match self {
            Export::None => Ok(Vec::new()),
            Export::All => {
                Ok(environment()?.iter().filter(|(name, _)| is_exported(name.as_bytes())).cloned().collect())
            }
            Export::These(entries) => entries
                .iter()
                .map(|(name, value)| {
                    let value = match value {
                        Some(value) => value.clone(),
                        None => value_of(name, environment()?)?,
                    };
                    Ok((name.clone(), value))
                })
                .collect(),
        }
    }
}

fn parse_entry(entry: &[u8]) -> Result<(ByteString, Option<ByteString>), Malformed> {
    let (name, value) = match entry.iter().position(|byte| *byte == b'=') {
        Some(end) => (&entry[..end], Some(&entry[end + 1..])),
        None => (entry, None),
    };
    check_variable(name, value.unwrap_or_default())?;
    Ok((name.into(), value.map(ByteString::from)))
}

/// The value of a variable in an environment.
///
/// # Errors
/// The variable is not set.
pub fn value_of(name: &ByteString, environment: &[(ByteString, ByteString)]) -> Result<ByteString, Malformed> {
    environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).ok_or_else(|| {
        let name = shown(name.as_bytes());
        Malformed::new(format!("the variable `{name}` is not set here"), format!("set it, or write `{name}=VALUE`"))
    })
}

fn is_exported(name: &[u8]) -> bool {
    !NEVER.contains(&name) && check_variable(name, b"").is_ok()
}

impl Umask {
    /// Reads octal digits such as `027`, or `submitter`.
    ///
    /// # Errors
    /// The problem and the remedy.
    pub fn parse(text: &str) -> Result<Umask, Malformed> {
        if text == "submitter" {
            return Ok(Umask::OfSubmitter);
        }
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let is_octal = (1..=4).contains(&digits.len()) && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let mask = u16::from_str_radix(digits, 8).ok().filter(|mask| is_octal && *mask <= 0o777);
        mask.map(Umask::These).ok_or_else(|| {
            Malformed::new(format!("`{text}` is not a umask"), "write octal digits such as `027`, or `submitter`")
        })
    }

    /// The mask itself.
    ///
    /// # Errors
    /// The umask of the submitter is requested and not known.
    pub fn resolve(self, submitter: &Submitter) -> Result<u16, Malformed> {
        let unknown = || Malformed::new("the umask of the submitter is not known here", "write it, such as `027`");
        match self {
            Umask::These(mask) => Ok(mask),
            Umask::OfSubmitter => submitter.umask.ok_or_else(unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitter() -> Submitter {
        let set = [("A", "1"), ("PWD", "/x"), ("SHLVL", "2"), ("_", "x"), ("AMALGAM_TOKEN", "secret"), ("B", "2,3")];
        let environment = set.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        Submitter { environment: Some(environment), umask: Some(0o22), ..Submitter::default() }
    }

    fn exported(text: &str) -> Result<Vec<String>, String> {
        let export = Export::parse(text.as_bytes()).map_err(|wrong| wrong.to_string())?;
        let variables = export.resolve(&submitter()).map_err(|wrong| wrong.to_string())?;
        Ok(variables.iter().map(|(name, value)| format!("{name}={value}")).collect())
    }

    #[test]
    fn only_requested_variables_are_exported() {
        assert_eq!(exported("none"), Ok(vec![]));
        assert_eq!(exported("all"), Ok(vec!["A=1".to_owned(), "B=2,3".to_owned()]));
        assert_eq!(exported("B,C=4=5"), Ok(vec!["B=2,3".to_owned(), "C=4=5".to_owned()]));
        assert!(exported("A,NO").unwrap_err().contains("`NO` is not set"));
        assert!(exported("AMALGAM_TOKEN").unwrap_err().contains("AMALGAM_"));
        assert!(exported("").is_err() && exported("A,,B").is_err());
        assert!(Export::All.resolve(&Submitter::default()).is_err());
        let given = Export::parse(b"A=1").unwrap();
        assert_eq!(given.resolve(&Submitter::default()).map(|all| all.len()), Ok(1));
    }

    #[test]
    fn a_umask_is_octal() {
        for (text, mask) in [("027", 0o27), ("0o77", 0o77), ("0", 0), ("0022", 0o22), ("submitter", 0o22)] {
            assert_eq!(Umask::parse(text).unwrap().resolve(&submitter()), Ok(mask), "{text}");
        }
        for text in ["", "8", "1000", "u=rwx", "-1", "00000"] {
            assert!(Umask::parse(text).is_err(), "{text}");
        }
    }
}
