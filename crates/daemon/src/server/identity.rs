//! The identity of a server, by which job hosts know it.

use super::ServerError;
use crate::auth::new_nonce;
use crate::durable;
use crate::store::{IDENTITY, IDENTITY_BYTES, ServerId};
use std::fs;
use std::io;
use std::path::Path;

/// The id in this directory; a new one if there is none. An incomplete one is replaced, unless job hosts rely on it
/// (`has_hosts`).
pub(super) fn server_id(directory: &Path, has_hosts: bool) -> Result<ServerId, ServerError> {
    let path = directory.join(IDENTITY);
    let torn = match fs::read(&path) {
        Ok(bytes) => match <[u8; IDENTITY_BYTES]>::try_from(bytes) {
            Ok(id) => return Ok(ServerId(id)),
            Err(bytes) => Some(bytes.len()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(ServerError::io(format!("read {}", path.display()))(error)),
    };
    match torn {
        Some(bytes) if has_hosts => return Err(ServerError::NoIdentity { path, bytes }),
        Some(bytes) => {
            tracing::warn!(path = %path.display(), bytes, "this file is incomplete; creating it again")
        }
        None => {}
    }
    let nonce = new_nonce()?;
    let id: [u8; IDENTITY_BYTES] = std::array::from_fn(|byte| nonce[byte]);
    durable::replace(&path, &id).map_err(ServerError::io(format!("write {}", path.display())))?;
    Ok(ServerId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_identity_is_created_again_unless_job_hosts_rely_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(IDENTITY);
        let first = server_id(dir.path(), false).unwrap();
        assert_eq!(server_id(dir.path(), true).unwrap(), first);
        let whole = fs::read(&path).unwrap();
        for length in 0..IDENTITY_BYTES {
            fs::write(&path, &whole[..length]).unwrap();
            let refused = server_id(dir.path(), true).unwrap_err().to_string();
            assert!(refused.contains(&format!("identity has {length} bytes instead of 16")), "{refused}");
            let again = server_id(dir.path(), false).unwrap();
            assert!(again != first && server_id(dir.path(), true).unwrap() == again);
        }
    }
}
