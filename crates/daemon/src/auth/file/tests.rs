use super::*;

fn secret(entry: &TokenEntry) -> String {
    entry.token().unwrap().to_owned()
}

fn token_of(holder: &str, role: Option<DaemonRole>) -> Which<'_> {
    Which { holder, role, name: None }
}
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    (dir, path)
}

fn user(name: &str, admin: bool) -> Holder {
    Holder::User { name: name.to_owned(), admin }
}

const TWO: &str = "# keep in sync with the wiki\n[[token]]\nuser = \"ada\"   # on leave\ntoken = \"t1\"\nadmin = true\n\n\
                   [[token]]\nagent = \"vm-1\"\ntoken = \"t2\"\n";

#[test]
fn a_mistake_is_reported_with_its_line_and_remedy_and_without_secrets() {
    let one = "[[token]]\nuser = 'ada'\n";
    for (text, line, expected) in [
        (format!("{one}token = 'hunter2\n"), 3, ""),
        (format!("{one}token = hunter2\n"), 3, ""),
        (format!("{one}token = 12345678\n"), 3, "`token` is not a string"),
        (format!("{one}tokn = 'hunter2'\n"), 3, "unknown key `tokn`"),
        (one.to_owned(), 2, "has no `token`"),
        (format!("{one}token = ''\n"), 3, "is empty"),
        (format!("{one}token = 'hunter2'\nadmin = 'yes'\n"), 4, "`admin` is neither"),
        (format!("{one}token = 'hunter2'\nuntil = 'soon'\n"), 4, "`until` is not a time"),
        (format!("{one}token = 'hunter2'\nagent = 'x'\n"), 2, "both `user` and `agent`"),
        ("\n[[token]]\ntoken = 'hunter2'\n".to_owned(), 3, "has no `user` or `agent`"),
        ("[[token]]\nuser = '../x'\ntoken = 'hunter2'\n".to_owned(), 2, "`../x` is not a valid user name"),
        (format!("{one}token = 'hunter2'\n\n[[token]]\nuser = 'bob'\ntoken = 'hunter2'\n"), 7, "of another entry"),
        ("[token]\nuser = 'ada'\ntoken = 'hunter2'\n".to_owned(), 1, "not a list of tables"),
        ("tokens = []\n".to_owned(), 1, "unknown key"),
        (format!("{one}{one}"), 2, "has no `token`"),
    ] {
        let (_dir, path) = file(&text);
        let refused = read(&path).unwrap_err();
        let reported = refused.to_string();
        assert!(
            reported.starts_with(&format!("{}:{line}: ", path.display())) && reported.contains(expected),
            "{text}\n{reported}"
        );
        assert!(!reported.contains("hunter2") && !reported.contains("12345678"), "{reported}");
        assert!(!refused.remedy().is_empty() && !refused.remedy().contains("remove it"), "{}", refused.remedy());
    }
    let (_dir, path) = file("");
    fs::write(&path, b"[[token]]\nuser = 'a\xff'\n").unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("tokens.toml:2: a byte is not UTF-8"));
}

#[test]
fn an_invalid_file_is_not_changed() {
    for text in ["[[token]]\nuser = 'ada'\ntoken = 'x\n", "garbage", "[[token]]\nuser = 'ada'\n"] {
        let (_dir, path) = file(text);
        add(&path, TokenEntry::new(user("bob", false)).unwrap(), false).unwrap_err();
        rotate(&path, &token_of("ada", None), false).unwrap_err();
        remove(&path, &token_of("ada", None)).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn a_replaced_token_is_valid_for_a_day_and_comments_stay() {
    let (_dir, path) = file(TWO);
    let new = rotate(&path, &token_of("ada", None), false).unwrap();
    assert_eq!(new.holder, user("ada", true));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("# keep in sync with the wiki") && text.contains("# on leave"), "{text}");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let entries = read(&path).unwrap();
    let (old, now) = (&entries[0], SystemTime::now());
    assert_eq!((entries.len(), secret(old)), (3, "t1".to_owned()));
    assert!(old.is_valid(now + OVERLAP - Duration::from_secs(60)) && !old.is_valid(now + OVERLAP));
    assert_eq!(client_token(&path, "ada").unwrap(), secret(&new));

    // Again: the end of the oldest token is not delayed.
    let newer = add(&path, TokenEntry::new(user("ada", true)).unwrap(), false).unwrap();
    let again = read(&path).unwrap();
    assert_eq!((again.len(), again[0].until), (4, old.until));
    assert_eq!(client_token(&path, "ada").unwrap(), secret(&newer));
    let last = rotate(&path, &token_of("ada", None), true).unwrap();
    let left: Vec<String> = read(&path).unwrap().into_iter().map(|entry| secret(&entry)).collect();
    assert_eq!(left, ["t2".to_owned(), secret(&last)]);
    remove(&path, &token_of("vm-1", Some(DaemonRole::Agent))).unwrap();
    assert_eq!(read(&path).unwrap().len(), 1);
    assert!(matches!(remove(&path, &token_of("vm-1", Some(DaemonRole::Agent))), Err(AuthError::Unknown { .. })));
}

#[test]
fn expired_tokens_are_not_used_and_are_removed_by_the_next_change() {
    let past = "[[token]]\nuser = 'ada'\ntoken = 'old'\nuntil = 2020-01-01T00:00:00Z\n";
    let (_dir, path) = file(&format!("{past}[[token]]\nuser = 'bob'\ntoken = 'bobs'\n"));
    assert_eq!(client_token(&path, "ada").unwrap(), "bobs");
    let new = add(&path, TokenEntry::new(user("ada", false)).unwrap(), false).unwrap();
    assert_eq!(read(&path).unwrap().iter().map(secret).collect::<Vec<_>>(), ["bobs".to_owned(), secret(&new)]);
}

#[test]
fn a_client_without_a_token_of_its_own_uses_an_administrators_also_after_its_rotation() {
    let text = "[[token]]\nuser = 'ada'\ntoken = 'old'\nadmin = true\n[[token]]\nuser = 'bob'\ntoken = 'bobs'\n";
    let (_dir, path) = file(text);
    assert_eq!(client_token(&path, "eve").unwrap(), "old");
    let new = rotate(&path, &token_of("ada", None), true).unwrap();
    assert_eq!(client_token(&path, "eve").unwrap(), secret(&new));
    assert_eq!(client_token(&path, "bob").unwrap(), "bobs");
}

#[test]
fn a_list_on_one_line_can_be_edited() {
    let (_dir, path) = file("token = [{ user = 'ada', token = 't1', admin = true }]\n");
    add(&path, TokenEntry::new(Holder::agent("vm-1")).unwrap(), false).unwrap();
    let holders: Vec<Holder> = read(&path).unwrap().into_iter().map(|entry| entry.holder).collect();
    assert_eq!(holders, [user("ada", true), Holder::agent("vm-1")]);
}

#[test]
fn a_daemon_uses_its_own_token_or_else_an_administrators() {
    let (_dir, path) = file(&format!("{TWO}[[token]]\nuser = 'bob'\ntoken = 't3'\n"));
    assert_eq!(daemon_token(&path, Some("vm-1"), "bob").unwrap(), "t2");
    assert_eq!(daemon_token(&path, Some("vm-2"), "bob").unwrap(), "t1");
    assert_eq!(daemon_token(&path, None, "ada").unwrap(), "t1");
    assert_eq!(client_token(&path, "vm-1").unwrap(), "t1", "clients do not use an agent's token");
    let (_dir, path) = file("only-one\n");
    assert_eq!(daemon_token(&path, Some("vm-1"), "bob").unwrap(), "only-one");
}

#[test]
fn concurrent_additions_are_all_kept() {
    let (_dir, path) = file(TWO);
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let path = &path;
            scope.spawn(move || add(path, TokenEntry::new(user(name, false)).unwrap(), false).unwrap());
        }
    });
    assert_eq!(read(&path).unwrap().len(), 6);
}

#[test]
fn tokens_of_one_user_with_different_names_are_replaced_and_removed_separately() {
    let (_directory, path) = file("");
    let named = |name: Option<&str>, scopes: Option<Scopes>, until| {
        let entry = TokenEntry::new(user("ada", false)).unwrap();
        let scopes = scopes.unwrap_or(entry.scopes);
        add(&path, TokenEntry { name: name.map(str::to_owned), scopes, until, ..entry }, false).unwrap()
    };
    let year = SystemTime::now() + Duration::from_secs(365 * 24 * 60 * 60);
    let plain = named(None, None, None);
    let ci = named(Some("ci"), Scopes::of([Scope::Submit]), Some(year));
    let read_back = read(&path).unwrap();
    assert_eq!(read_back.len(), 2);
    assert_eq!(
        (read_back[0].clone(), read_back[1].scopes, read_back[1].name.as_deref()),
        (plain.clone(), ci.scopes, Some("ci"))
    );
    assert!(year.duration_since(read_back[1].until.unwrap()).unwrap() < Duration::from_secs(2));

    let which = |name| Which { holder: "ada", role: None, name };
    let newer = rotate(&path, &which(Some("ci")), true).unwrap();
    assert_eq!((newer.scopes, newer.name.as_deref(), newer.until.is_some()), (ci.scopes, Some("ci"), true));
    assert!(rotate(&path, &which(Some("other")), true).is_err());
    // A token that ends soon does not become one without an end, nor does an earlier administrator's return.
    let soon = SystemTime::now() + Duration::from_secs(3_600);
    let brief = rotate(&path, &which(Some("ci")), true).unwrap();
    assert_eq!(brief.until, newer.until);
    let admin = TokenEntry { name: Some("boss".to_owned()), ..TokenEntry::new(user("ada", true)).unwrap() };
    add(&path, admin, false).unwrap();
    let reads = TokenEntry {
        name: Some("boss".to_owned()),
        scopes: Scopes::of([Scope::Read]).unwrap(),
        until: Some(soon),
        ..TokenEntry::new(user("ada", false)).unwrap()
    };
    add(&path, reads, false).unwrap();
    let again = rotate(&path, &which(Some("boss")), false).unwrap();
    assert_eq!((again.scopes, again.until.is_some()), (Scopes::of([Scope::Read]).unwrap(), true));
    remove(&path, &which(Some("boss"))).unwrap();
    let newer = brief;
    let left = |path: &Path| read(path).unwrap().into_iter().map(|entry| secret(&entry)).collect::<Vec<_>>();
    assert_eq!(left(&path), [secret(&plain), secret(&newer)]);
    remove(&path, &which(Some("ci"))).unwrap();
    assert_eq!(left(&path), [secret(&plain)]);
    named(Some("ci"), None, None);
    remove(&path, &which(None)).unwrap();
    assert!(left(&path).is_empty());
}

#[test]
fn scopes_with_mistakes_name_the_line() {
    for (line, problem) in [
        ("scopes = 'read'", "`scopes` is not a list of scopes"),
        ("scopes = ['write']", "`scopes` is not a list of scopes"),
        ("scopes = []", "`scopes` is not a list of scopes"),
        ("admin = true\nscopes = ['read']", "an entry of an administrator or a daemon has `scopes`"),
        ("name = 'two words'", "two words"),
    ] {
        let (_directory, path) = file(&format!("[[token]]\nuser = 'ada'\ntoken = 'x'\n{line}\n"));
        let error = read(&path).unwrap_err();
        assert!(error.to_string().contains(problem), "{line}: {error}");
    }
    let (_directory, path) = file("[[token]]\nuser = 'ada'\ntoken = 'x'\nscopes = ['admin']\n");
    assert_eq!(read(&path).unwrap()[0].holder, user("ada", true));
}
