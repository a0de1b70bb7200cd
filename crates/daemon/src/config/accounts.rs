//! `[[account]]`: users who have another name on the nodes.

use super::{Mistake, mistake};
use amalgam_workload::At;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountEntry {
    user: At<String>,
    name: At<String>,
}

/// The names of accounts by the names of users.
pub fn accounts(entries: Vec<AccountEntry>) -> Result<BTreeMap<String, String>, Mistake> {
    let mut accounts = BTreeMap::new();
    for AccountEntry { user, name } in entries {
        if !is_name(&name.value) {
            let problem = format!("`{}` cannot be the name of an account", name.value.escape_debug());
            return Err(mistake(
                name.at,
                problem,
                "write the name of an account on the nodes, such as `name = \"grace\"`",
            ));
        }
        if accounts.contains_key(&user.value) {
            let problem = format!("the user `{}` has two accounts", user.value.escape_debug());
            return Err(mistake(user.at, problem, "keep one `[[account]]` for each user"));
        }
        accounts.insert(user.value, name.value);
    }
    Ok(accounts)
}

/// Whether a user of Linux may have this name.
fn is_name(name: &str) -> bool {
    let is_separator = |c: char| c.is_whitespace() || c.is_control() || ":/,".contains(c);
    !name.is_empty() && !name.starts_with('-') && !name.contains(is_separator)
}
