//! `[[oidc]]`: issuers whose tokens (JWT) identify users.

use super::federation::is_loopback;
use super::{Mistake, mistake};
use amalgam_workload::At;
use serde::Deserialize;
use std::path::PathBuf;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcEntry {
    issuer: At<String>,
    audience: At<String>,
    jwks: At<String>,
    claim: Option<At<String>>,
    groups_claim: Option<At<String>>,
    #[serde(default)]
    operators: Vec<String>,
    #[serde(default)]
    admins: Vec<String>,
}

/// An issuer, and what its tokens must have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OidcConfig {
    pub issuer: String,
    pub audience: String,
    pub jwks: Jwks,
    /// The claim with the user's name.
    pub claim: String,
    /// The claim with the user's groups, which give more scopes.
    pub groups_claim: String,
    pub operators: Vec<String>,
    pub admins: Vec<String>,
}

/// Where the issuer's keys are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Jwks {
    File(PathBuf),
    Url(String),
}

pub fn oidc(entries: Vec<OidcEntry>) -> Result<Vec<OidcConfig>, Mistake> {
    let mut issuers: Vec<OidcConfig> = Vec::new();
    for entry in entries {
        let example = "write for instance `issuer = \"https://id.example.org\"`";
        let issuer = text("issuer", entry.issuer.clone(), example)?;
        if issuers.iter().any(|other| other.issuer == issuer) {
            let problem = format!("the issuer `{}` has two entries", issuer.escape_debug());
            return Err(mistake(entry.issuer.at, problem, "keep one `[[oidc]]` for each issuer"));
        }
        let claim = |key: &str, claim: Option<At<String>>, default: &str| match claim {
            Some(claim) => text(key, claim, "write the name of a claim, such as `email`, or leave it out"),
            None => Ok(default.to_owned()),
        };
        issuers.push(OidcConfig {
            issuer,
            audience: text("audience", entry.audience, "write the name under which the issuer knows the cluster")?,
            jwks: jwks(entry.jwks)?,
            claim: claim("claim", entry.claim, "sub")?,
            groups_claim: claim("groups_claim", entry.groups_claim, "groups")?,
            operators: entry.operators,
            admins: entry.admins,
        });
    }
    Ok(issuers)
}

fn text(key: &str, text: At<String>, remedy: &str) -> Result<String, Mistake> {
    if text.value.trim().is_empty() || text.value.chars().any(char::is_control) {
        return Err(mistake(text.at, format!("`{key}` of `[[oidc]]` is empty or has control characters"), remedy));
    }
    Ok(text.value)
}

/// Keys that somebody on the network could replace would let that person be any user.
fn jwks(jwks: At<String>) -> Result<Jwks, Mistake> {
    let url = jwks.value.as_str();
    let host = |url: &str| url.split(['/', '?']).next().is_some_and(is_loopback);
    if url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty())
        || url.strip_prefix("http://").is_some_and(|rest| host(rest) && !rest.contains('@'))
    {
        return Ok(Jwks::Url(jwks.value));
    }
    let path = PathBuf::from(url);
    if path.is_absolute() {
        return Ok(Jwks::File(path));
    }
    let problem = format!("`{}` is neither an https URL nor an absolute path", url.escape_debug());
    let remedy = "write for instance `jwks = \"https://id.example.org/keys\"` or `jwks = \"/etc/amalgam/keys.json\"`";
    Err(mistake(jwks.at, problem, remedy))
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    const WHOLE: &str = "[[oidc]]\nissuer = 'https://id.example.org'\naudience = 'amalgam'\njwks = '/etc/keys.json'\n";

    #[test]
    fn an_issuer_needs_three_keys_and_the_others_have_defaults() {
        let usual = parse(WHOLE).unwrap().oidc;
        let expected = OidcConfig {
            issuer: "https://id.example.org".to_owned(),
            audience: "amalgam".to_owned(),
            jwks: Jwks::File("/etc/keys.json".into()),
            claim: "sub".to_owned(),
            groups_claim: "groups".to_owned(),
            operators: Vec::new(),
            admins: Vec::new(),
        };
        assert_eq!(usual, [expected]);
        let all = format!("{WHOLE}claim = 'email'\ngroups_claim = 'roles'\noperators = ['o']\nadmins = ['a', 'b']\n");
        let all = parse(&all).unwrap().oidc.remove(0);
        assert_eq!((all.claim.as_str(), all.groups_claim.as_str()), ("email", "roles"));
        assert_eq!((all.operators.len(), all.admins.len()), (1, 2));
        for key in ["issuer", "audience", "jwks"] {
            let without: String =
                WHOLE.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
            assert!(parse(&without).unwrap_err().contains(key), "{key}");
        }
    }

    #[test]
    fn keys_come_over_https_or_loopback_or_from_a_file() {
        let with =
            |jwks: &str| parse(&WHOLE.replace("/etc/keys.json", jwks)).map(|mut config| config.oidc.remove(0).jwks);
        for url in ["https://id.example.org/keys", "http://127.0.0.1:8080/keys", "http://[::1]:1/"] {
            assert_eq!(with(url), Ok(Jwks::Url(url.to_owned())));
        }
        for wrong in [
            "http://id.example.org/keys",
            "http://127.0.0.1.example.org/",
            "http://localhost:1@id.example.org/",
            "https://",
            "keys.json",
            "",
            "ftp://x",
        ] {
            assert!(with(wrong).unwrap_err().contains("neither an https URL nor an absolute path"), "{wrong}");
        }
        assert!(parse(&format!("{WHOLE}{WHOLE}")).unwrap_err().contains("has two entries"));
        assert!(parse(&WHOLE.replace("'amalgam'", "' '")).unwrap_err().contains("`audience` of `[[oidc]]` is empty"));
    }
}
