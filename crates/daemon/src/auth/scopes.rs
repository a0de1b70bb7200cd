//! What an access token may be used for.

use std::fmt;
use std::str::FromStr;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// To list jobs and nodes, and to read the user's own jobs.
    Read,
    /// To submit jobs, and to act on the user's own.
    Submit,
    /// To act on the jobs of others and on nodes.
    Operate,
    /// Everything, and to authenticate daemons.
    Admin,
}

/// All scopes with their names.
const NAMES: [(Scope, &str); 4] =
    [(Scope::Read, "read"), (Scope::Submit, "submit"), (Scope::Operate, "operate"), (Scope::Admin, "admin")];

/// A set of scopes that is not empty. `admin` contains all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scopes(u8);

impl Scopes {
    pub const ADMIN: Scopes = Scopes(1 << Scope::Admin as u8);
    /// Those of a user who is no administrator, if the token names none.
    pub const USUAL: Scopes = Scopes(1 << Scope::Read as u8 | 1 << Scope::Submit as u8);

    /// `None` for no scopes.
    pub fn of(scopes: impl IntoIterator<Item = Scope>) -> Option<Scopes> {
        let bits = scopes.into_iter().fold(0, |bits, scope| bits | 1 << scope as u8);
        (bits != 0).then_some(Scopes(bits))
    }

    pub fn has(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8 | Scopes::ADMIN.0) != 0
    }

    /// The named scopes.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().filter(move |(scope, _)| self.0 & (1 << *scope as u8) != 0).map(|(_, name)| name)
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Scope, String> {
        let known = NAMES.into_iter().find(|(_, name)| *name == text).map(|(scope, _)| scope);
        known.ok_or_else(|| "scopes are read, submit, operate and admin".to_owned())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES[*self as usize].1)
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_contains_all_scopes_and_others_only_themselves() {
        for (scope, name) in NAMES {
            assert_eq!((name.parse(), scope.to_string().as_str()), (Ok(scope), name));
            assert!(Scopes::ADMIN.has(scope));
            let only = Scopes::of([scope]).unwrap();
            let has: Vec<Scope> = NAMES.into_iter().map(|(other, _)| other).filter(|other| only.has(*other)).collect();
            assert!(has == [scope] || scope == Scope::Admin, "{has:?}");
        }
        assert_eq!(Scopes::USUAL.to_string(), "read,submit");
        assert_eq!(Scopes::of([]), None);
        assert!("write".parse::<Scope>().is_err());
    }
}
