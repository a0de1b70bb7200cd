use super::*;
use crate::auth::{DaemonRole, Holder, TokenEntry, Tokens, key_digest};
use crate::identity::{Identity, NewKey};
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

fn agent(name: &str) -> Subject {
    Subject { role: DaemonRole::Agent, name: name.to_owned(), number: Some(7) }
}

fn chain(certified: &Certified) -> Vec<CertificateDer<'static>> {
    std::iter::once(&certified.certificate).chain(&certified.between).cloned().map(CertificateDer::from).collect()
}

fn trusted(certified: &Certified) -> Vec<CertificateDer<'static>> {
    certified.authorities.iter().cloned().map(CertificateDer::from).collect()
}

#[test]
fn the_first_start_creates_a_private_key_and_later_ones_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = Authority::open(dir.path()).unwrap().signers().trusted.clone();
    let mode = fs::metadata(dir.path().join(Authority::KEY_FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(Authority::open(dir.path()).unwrap().signers().trusted, first);
    // A crash between the two files: the key is used again.
    fs::remove_file(dir.path().join(Authority::FILE)).unwrap();
    Authority::open(dir.path()).unwrap();
}

#[test]
fn files_that_are_missing_damaged_or_of_another_authority_are_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let opened = || Authority::open(dir.path()).map(drop).unwrap_err();
    Authority::open(dir.path()).unwrap();
    Authority::open(other.path()).unwrap();
    let (certificate, key) = (dir.path().join(Authority::FILE), dir.path().join(Authority::KEY_FILE));
    fs::copy(other.path().join(Authority::FILE), &certificate).unwrap();
    assert!(matches!(opened(), AuthorityError::OtherKey { .. }));
    fs::write(&certificate, "no certificate").unwrap();
    assert!(matches!(opened(), AuthorityError::Malformed { path, .. } if path == certificate));
    fs::copy(other.path().join(Authority::FILE), &certificate).unwrap();
    fs::write(&key, "no key").unwrap();
    assert!(matches!(opened(), AuthorityError::Malformed { path, .. } if path == key));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(opened(), AuthorityError::Key(AuthError::Exposed { .. })));
    fs::remove_file(&key).unwrap();
    assert!(matches!(opened(), AuthorityError::NoKey { path } if path == key));
}

#[test]
fn the_certificate_of_the_server_is_replaced_after_half_of_its_time_and_with_the_authority() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::open(dir.path()).unwrap());
    let renewed = Renewed::new(Arc::clone(&authority), vec!["localhost".to_owned()]).unwrap();
    let now = SystemTime::now();
    let first = renewed.at(now);
    let half = DAY * issue::SERVER_DAYS / 2;
    assert!(Arc::ptr_eq(&renewed.at(now + half - DAY), &first));
    let second = renewed.at(now + half + DAY);
    assert!(!Arc::ptr_eq(&second, &first));
    assert!(Arc::ptr_eq(&renewed.at(now + half + DAY + DAY), &second));
    let before = authority.signers();
    start(dir.path()).unwrap();
    finish(dir.path(), false).unwrap();
    let third = renewed.at(now);
    assert_eq!(verify(&third.cert, &authority.signers().trusted, Use::Listening), Ok(()));
    assert_eq!(verify(&third.cert, &before.trusted, Use::Listening), Err(Untrusted::OtherAuthority));
}

#[test]
fn a_certificate_authenticates_the_daemon_that_it_names_until_it_ends() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let authority = Authority::open(dir.path()).unwrap();
    let key = NewKey::generate().unwrap();
    let certified = authority.certify(&agent("vm 1"), &key.public()).unwrap();
    let (presented, roots) = (chain(&certified), trusted(&certified));
    assert_eq!(verify(&presented, &roots, Use::Joining), Ok(()));
    assert_eq!(Subject::of(&presented[0]).unwrap(), agent("vm 1"));
    assert_eq!(key_of(&presented[0]).unwrap(), key.public());
    // An agent cannot be the server or a job host, whatever its name is.
    assert!(verify(&presented, &roots, Use::Listening).is_err());
    let posing = authority.certify(&agent("Amalgam server"), &key.public()).unwrap();
    assert!(Expected::Server.check(&chain(&posing)[0]).is_err());
    let host = Subject { role: DaemonRole::JobHost, name: "2".to_owned(), number: None };
    let host = chain(&authority.certify(&host, &key.public()).unwrap());
    assert_eq!(verify(&host, &roots, Use::Listening), Ok(()));
    assert_eq!(Expected::JobHost(2).check(&host[0]), Ok(()));
    for expected in [Expected::JobHost(3), Expected::Server] {
        assert!(matches!(expected.check(&host[0]), Err(Untrusted::Other { .. })), "{expected}");
    }
    let strangers = Authority::open(other.path()).unwrap();
    assert_eq!(verify(&presented, &strangers.signers().trusted, Use::Joining), Err(Untrusted::OtherAuthority));
    let ended = authority.certify_until(&agent("vm 1"), &key.public(), SystemTime::now() - Duration::from_secs(60));
    assert_eq!(verify(&chain(&ended.unwrap()), &roots, Use::Joining), Err(Untrusted::Expired));
    assert_eq!(
        verify(&[], &roots, Use::Joining).unwrap_err().to_string(),
        "its certificate is not valid: it is missing"
    );
    let garbage = [CertificateDer::from(vec![1, 2, 3])];
    assert!(matches!(verify(&garbage, &roots, Use::Joining), Err(Untrusted::Invalid(_))));
    assert!(authority.certify(&agent("vm 1"), b"no key").is_err());
}

#[test]
fn during_a_rotation_both_authorities_are_trusted_and_at_its_end_only_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::open(dir.path()).unwrap());
    let tokens = Tokens::open(dir.path(), "ada").unwrap();
    let key = NewKey::generate().unwrap();
    auth::add(tokens.path(), TokenEntry::with_key(Holder::agent("vm-1"), &key.public()), false).unwrap();
    let before = authority.certify(&agent("vm-1"), &key.public()).unwrap();
    assert!(finish(dir.path(), false).unwrap_err().to_string().contains("no rotation"));
    start(dir.path()).unwrap();
    assert!(start(dir.path()).unwrap_err().to_string().contains("under way"));
    let between = authority.certify(&agent("vm-1"), &key.public()).unwrap();
    assert_eq!((before.authorities.len(), between.authorities.len()), (1, 2));
    for certified in [&before, &between] {
        assert_eq!(verify(&chain(certified), &trusted(&between), Use::Joining), Ok(()));
    }
    // A daemon that does not know the next authority yet still trusts the server.
    let server = Renewed::new(Arc::clone(&authority), vec!["localhost".to_owned()]).unwrap().at(SystemTime::now());
    assert_eq!(verify(&server.cert, &trusted(&before), Use::Listening), Ok(()));
    // The daemon has not received its certificate: the end is refused, until the server has noted that it has.
    let progress = Progress::of(dir.path()).unwrap();
    assert_eq!((progress.is_rotating, progress.missing), (true, vec![Holder::agent("vm-1")]));
    assert!(finish(dir.path(), false).unwrap_err().to_string().starts_with("agent vm-1 have not received"));
    let mut notes = Notes::new(Arc::clone(&authority));
    // Of a certificate of the first authority nothing is noted.
    let [first, next] = [&before, &between].map(|certified| fingerprint(&certified.between[0].clone().into()));
    notes.add(&key_digest(&key.public()), &first);
    notes.write();
    assert_eq!(Progress::of(dir.path()).unwrap().missing, [Holder::agent("vm-1")]);
    notes.add(&key_digest(&key.public()), &next);
    notes.write();
    assert_eq!(Progress::of(dir.path()).unwrap().missing, []);
    assert!(cancel(dir.path(), false).unwrap_err().to_string().starts_with("1 daemons have certificates"));
    finish(dir.path(), false).unwrap();
    let after = authority.certify(&agent("vm-1"), &key.public()).unwrap();
    assert_eq!(after.authorities.len(), 1);
    assert_eq!(verify(&chain(&between), &trusted(&after), Use::Joining), Ok(()));
    assert_eq!(verify(&chain(&before), &trusted(&after), Use::Joining), Err(Untrusted::OtherAuthority));
    let left: Vec<_> =
        [Authority::NEXT_KEY_FILE, rotation::NEXT_FILE].map(|file| dir.path().join(file).exists()).into();
    assert_eq!(left, [false, false]);
}

#[test]
fn a_rotation_can_be_taken_back_and_continues_after_a_crash_at_each_file() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(dir.path()).unwrap();
    let first = fs::read_to_string(dir.path().join(Authority::FILE)).unwrap();
    // A crash after the next key was written: another begin starts anew.
    fs::write(dir.path().join(Authority::NEXT_KEY_FILE), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    fs::set_permissions(dir.path().join(Authority::NEXT_KEY_FILE), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!Progress::of(dir.path()).unwrap().is_rotating);
    start(dir.path()).unwrap();
    cancel(dir.path(), false).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join(Authority::FILE)).unwrap().trim(), first.trim());
    assert_eq!(authority.signers().trusted.len(), 1);
    // A crash at the end, after the key was replaced.
    start(dir.path()).unwrap();
    let next = fs::read(dir.path().join(Authority::NEXT_KEY_FILE)).unwrap();
    fs::write(dir.path().join(Authority::KEY_FILE), next).unwrap();
    assert_eq!(Authority::open(dir.path()).unwrap().signers().trusted.len(), 2);
    finish(dir.path(), false).unwrap();
    assert_eq!(Authority::open(dir.path()).unwrap().signers().trusted.len(), 1);
}

#[test]
fn the_authority_of_an_organisation_signs_from_its_import_on() {
    let (dir, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (certificate, key_path) = (theirs.path().join("their.pem"), theirs.path().join("their.key"));
    let write = |root: &KeyPair, own: &KeyPair| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "Their root");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let signed = params.clone().self_signed(root).unwrap();
        let issuer = rcgen::Issuer::new(params, root);
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "Their cluster");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
        let between = params.signed_by(own, &issuer).unwrap();
        fs::write(&certificate, format!("{}{}", between.pem(), signed.pem())).unwrap();
        fs::write(&key_path, own.serialize_pem()).unwrap();
        fs::set_permissions(&key_path, fs::Permissions::from_mode(0o600)).unwrap();
        signed.der().clone()
    };
    let (root, own) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let root_certificate = write(&root, &own);
    import(dir.path(), &certificate, &key_path).unwrap();
    let authority = Arc::new(Authority::open(dir.path()).unwrap());
    let certified = authority.certify(&agent("vm-1"), &NewKey::generate().unwrap().public()).unwrap();
    // Those that trust the organisation's root trust the daemons and the server.
    let roots = [root_certificate];
    assert_eq!(verify(&chain(&certified), &roots, Use::Joining), Ok(()));
    let server = Renewed::new(authority, vec!["localhost".to_owned()]).unwrap().at(SystemTime::now());
    assert_eq!(verify(&server.cert, &roots, Use::Listening), Ok(()));
    assert_eq!(Progress::of(dir.path()).unwrap().authorities[0].name, "Their cluster");
    // Daemons accept what this authority has signed, and nothing else of the organisation.
    assert_eq!(trusted(&certified), [certified.between[0].clone().into()]);
    // A second one is added as in a rotation.
    write(&root, &KeyPair::generate().unwrap());
    import(dir.path(), &certificate, &key_path).unwrap();
    assert!(Progress::of(dir.path()).unwrap().is_rotating);
    // Files that do not belong together, and certificates of no authority, are refused.
    cancel(dir.path(), false).unwrap();
    fs::write(&key_path, own.serialize_pem()).unwrap();
    assert!(import(dir.path(), &certificate, &key_path).unwrap_err().to_string().contains("another key"));
    fs::set_permissions(&certificate, fs::Permissions::from_mode(0o600)).unwrap();
    // Files that are exchanged are those of the user, and not what a backup has.
    for (certificate, key, named) in [(&key_path, &key_path, "--certificate"), (&certificate, &certificate, "--key")] {
        let remedy = import(dir.path(), certificate, key).unwrap_err().remedy();
        assert!(remedy.contains(named) && !remedy.contains("backup"), "{remedy}");
    }
    let plain = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&certificate, plain.cert.pem()).unwrap();
    fs::write(&key_path, plain.signing_key.serialize_pem()).unwrap();
    assert!(import(dir.path(), &certificate, &key_path).unwrap_err().to_string().contains("is not an authority"));
}

#[test]
fn a_daemon_keeps_its_certificate_in_a_private_file_and_takes_newer_ones_for_its_key_only() {
    let (dir, work_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let authority = Authority::open(dir.path()).unwrap();
    assert!(Identity::load(work_dir.path()).unwrap().is_none());
    let key = NewKey::generate().unwrap();
    let public = key.public();
    let certified = authority.certify(&agent("vm-1"), &public).unwrap();
    let identity =
        Identity::create(work_dir.path().join(Identity::FILE), "digest".to_owned(), key, certified.clone()).unwrap();
    let path = work_dir.path().join(Identity::FILE);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let other = authority.certify(&agent("vm-1"), &NewKey::generate().unwrap().public()).unwrap();
    identity.replace(other.clone()).unwrap_err();
    let until = SystemTime::now() - Duration::from_secs(1);
    identity.replace(authority.certify_until(&agent("vm-1"), &public, until).unwrap()).unwrap();
    let kept = Identity::load(work_dir.path()).unwrap().unwrap();
    assert!(kept.has_expired() && kept.is_of("digest") && !kept.is_of("another"));
    assert_eq!(kept.subject().unwrap(), agent("vm-1"));
    kept.replace(certified).unwrap();
    assert!(!Identity::load(work_dir.path()).unwrap().unwrap().has_expired());
    Identity::create(work_dir.path().join(Identity::FILE), String::new(), NewKey::generate().unwrap(), other)
        .map(drop)
        .unwrap_err();
    fs::write(&path, "{").unwrap();
    assert!(matches!(Identity::load(work_dir.path()), Err(AuthError::Malformed { .. })));
}

#[test]
fn what_a_global_master_presents_to_clients_is_for_nothing_else_and_trusted_during_a_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(dir.path()).unwrap();
    let before = authority.signers().trusted.clone();
    start(dir.path()).unwrap();
    let key = NewKey::generate().unwrap();
    let global = Subject { role: DaemonRole::Global, name: "1".to_owned(), number: Some(0) };
    let certified = authority.certify(&global, &key.public()).unwrap();
    assert!(certified.for_clients.is_empty());
    let names = ["jobs-1".to_owned(), "fd00::1".to_owned()];
    let certified = authority.certify_for_clients(certified, &key.public(), &names).unwrap();
    let presented: Vec<CertificateDer> = certified.for_clients.iter().map(|der| der.clone().into()).collect();
    assert_eq!(verify(&presented, &before, Use::Listening), Ok(()), "clients know the first authority only");
    assert!(verify(&presented, &before, Use::Joining).is_err());
    assert!(Expected::Server.check(&presented[0]).is_err() && Expected::JobHost(1).check(&presented[0]).is_err());
    // That for the master of the cluster listens nowhere, and names nobody else.
    let own = chain(&certified);
    assert!(verify(&own, &trusted(&certified), Use::Listening).is_err());
    assert_eq!(Subject::of(&own[0]).unwrap(), global);
    assert!(Expected::JobHost(1).check(&own[0]).is_err());
}
