//! `amalgam login` on another machine: whom the client trusts, what it stores, which server it uses, and what a rotation of the
//! authority does to it.

use crate::machines::Machines;
use crate::support::{CommandOutput, Proxy, address, free_port, result};
use amalgam_daemon::authority::{Authority, finish, start};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A user on a machine that has no files of the cluster.
struct User<'a> {
    machines: &'a Machines,
    host: usize,
}

impl User<'_> {
    fn config(&self) -> PathBuf {
        self.machines.scene.path().join(format!("config-{}", self.host))
    }

    fn file(&self) -> PathBuf {
        self.config().join("amalgam/contexts.toml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.machines.scene.command(arguments);
        command.env_remove("AMALGAM_STATE").env("HOME", self.machines.scene.path().join("home"));
        command.env("XDG_CONFIG_HOME", self.config());
        self.machines.host(self.host).has(&mut command);
        command
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        result(self.command(arguments))
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.code, 0, "{arguments:?}: {output:?}");
        output.out
    }

    /// Logs in with a token on standard input.
    fn login(&self, token: &str, arguments: &[&str]) -> CommandOutput {
        let mut command = self.command(&[&["login"], arguments].concat());
        let path = self.machines.private("typed", token);
        command.stdin(File::open(path).unwrap());
        result(command)
    }

    #[track_caller]
    fn fails(&self, arguments: &[&str], why: &str) {
        let output = self.run(arguments);
        assert!(output.code != 0 && output.err.contains(why), "{arguments:?}: {output:?}");
    }
}

/// A server that other machines reach, its https address, and a user's token for it.
fn started() -> Option<(Machines, String, String)> {
    let port = free_port();
    let machines = Machines::listening(&format!("0.0.0.0:{port}"), 3, "")?;
    machines.start_agent(1, &machines.agents);
    let token = machines.scene.ok(&["token", "add", "grace"]).trim().to_owned();
    Some((machines, format!("https://{}:{port}", address(0)), token))
}

impl Machines {
    /// The fingerprint of the authority that signs the server's certificate, as an operator reads it.
    fn fingerprint(&self) -> String {
        let listed = self.scene.ok(&["ca", "list"]);
        let line = listed.lines().find(|line| line.contains("server")).expect("an authority of the server");
        line.split_whitespace().last().unwrap().to_owned()
    }
}

#[test]
fn a_client_that_logged_in_by_a_fingerprint_needs_nothing_else() {
    let Some((machines, server, token)) = started() else { return };
    let user = User { machines: &machines, host: 2 };
    let pin = machines.fingerprint();
    // Who has no terminal has to know the fingerprint; a wrong one, and what somebody between both offers, are refused before the
    // token is sent.
    let unpinned = user.login(&token, &[&server]);
    assert!(unpinned.code == 2 && unpinned.err.contains("pass --fingerprint"), "{unpinned:?}");
    let wrong = user.login(&token, &[&server, "--fingerprint", &pin.replace(|c: char| c.is_ascii_digit(), "0")]);
    assert!(wrong.code != 0 && wrong.err.contains(&format!("has the fingerprint {pin}, not ")), "{wrong:?}");
    let elsewhere = tempfile::tempdir().unwrap();
    Authority::open(elsewhere.path()).unwrap();
    let mine = machines.private("grace.token", &token);
    let by_file = ["login", &server, "--ca-file", elsewhere.path().join("ca.pem").to_str().unwrap()].map(str::to_owned);
    user.fails(&by_file.iter().map(String::as_str).collect::<Vec<_>>(), "cannot verify https://");
    let unknown = user.login("wrong", &[&server, "--fingerprint", &pin]);
    assert!(unknown.code != 0 && unknown.err.contains("does not know the token"), "{unknown:?}");
    let empty = user.login("\n", &[&server, "--fingerprint", &pin]);
    assert!(empty.code == 2 && empty.err.contains("no token for the server"), "{empty:?}");
    assert!(!user.file().exists(), "nothing is stored before all is verified");

    let port = server.rsplit(':').next().unwrap();
    let interface = format!("{}:{port}", address(0));
    let on_the_way = format!("127.0.0.1:{}", free_port());
    let wire = Proxy::recording(Some(machines.host(2)), on_the_way.clone(), &interface);
    let tunnelled = format!("https://{on_the_way}");
    let colons: Vec<&str> = (0..32).map(|pair| &pin[2 * pair..2 * pair + 2]).collect();
    let colons = colons.join(":").to_uppercase();
    let done = user.login(&token, &[&tunnelled, "--name", "tunnel", "--fingerprint", &colons]);
    assert!(done.code == 0 && done.err.contains("the context `tunnel` is the current one now"), "{done:?}");
    assert_eq!(user.ok(&["run", "--", "echo", "across"]).trim_end(), "across");
    let seen = wire.recorded();
    for text in [token.as_str(), "authorization", "across"] {
        assert!(
            !seen.is_empty() && !seen.windows(text.len()).any(|part| part == text.as_bytes()),
            "`{text}` is readable"
        );
    }
    let by_token_file = ["login", &server, "--fingerprint", &pin, "--token-file", mine.to_str().unwrap()];
    user.ok(&by_token_file);
    assert_eq!(fs::metadata(user.file()).unwrap().permissions().mode() & 0o777, 0o600);
    // The stored authorities verify the server when the token is replaced.
    let newer = machines.scene.ok(&["token", "rotate", "grace", "--revoke-now"]);
    user.fails(&["list"], "does not know the token");
    let again = user.login(&newer, &[&server]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(user.ok(&["list", "--all", "--context", &address(0).to_string()]).contains("succeeded"));
}

#[test]
fn a_join_string_says_which_server_is_the_right_one_and_stays_valid() {
    let Some((machines, server, token)) = started() else { return };
    let user = User { machines: &machines, host: 2 };
    let string = machines.join_string(&[]);
    let [at, pin, secret] = string.split('/').collect::<Vec<_>>()[..] else { panic!("{string}") };
    assert_eq!(pin, machines.fingerprint());
    let other = format!("{at}/{}/{secret}", "0e".repeat(32));
    let wrong = user.login(&token, &[&server, "--join", &other]);
    let other_authority = format!("has the fingerprint {pin}, not that of the join string");
    assert!(wrong.code != 0 && wrong.err.contains(&other_authority), "{wrong:?}");
    let cut = user.login(&token, &[&server, "--join", &format!("{at}/{secret}")]);
    assert!(cut.code != 0 && cut.err.contains(&other_authority), "{cut:?}");
    let garbled = user.login(&token, &[&server, "--join", &format!("https://{at}/{secret}")]);
    assert!(garbled.code == 2 && garbled.err.contains("invalid join string"), "{garbled:?}");
    assert!(![&wrong, &cut, &garbled].into_iter().any(|failed| failed.err.contains(secret)), "{wrong:?} {garbled:?}");
    assert!(!user.file().exists(), "nothing is stored before all is verified");

    for enough in [&string, &format!("{at}/{pin}")] {
        let done = user.login(&token, &[&server, "--join", enough]);
        assert_eq!(done.code, 0, "{done:?}");
        user.ok(&["list"]);
        user.ok(&["logout"]);
    }
    // For the one daemon that the string is for.
    machines.started(1, machines.joining_agent(2, "host-2", &string));
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_current_context() {
    let Some((machines, server, token)) = started() else { return };
    let user = User { machines: &machines, host: 2 };
    user.fails(&["list"], "no running server was found");
    user.fails(&["--context", "lab", "list"], "make one with `amalgam login URL`");
    let pin = machines.fingerprint();
    assert_eq!(user.login(&token, &[&server, "--name", "lab", "--fingerprint", &pin]).code, 0);
    let other = user.login(&token, &["https://head:1", "--name", "lab", "--fingerprint", &pin]);
    assert!(other.code == 2 && other.err.contains("the context `lab` is of another server"), "{other:?}");
    let dead = format!("http://127.0.0.1:{}", free_port());
    let text = fs::read_to_string(user.file()).unwrap();
    let added = format!("{text}\n[[context]]\nname = \"dead\"\nserver = \"{dead}\"\ntoken = \"x\"\n");
    fs::write(user.file(), added).unwrap();
    user.ok(&["list"]);
    user.fails(&["--context", "dead", "list"], "its address is that of the context `dead`");
    user.fails(&["--context", "x", "list"], "the contexts are: lab, dead;");
    user.fails(&["--context", "lab", "--server", &dead, "list"], "both name a server");
    user.fails(&["--context", "lab", "token", "list"], "leave --server and --context out");
    user.fails(&["--context", "lab", "agent"], "--context is for clients");
    user.fails(&["--server", &dead, "--token-file", "/dev/null", "list"], "");
    let with = |name: &str, value: &str, arguments: &[&str]| {
        let mut command = user.command(arguments);
        command.env(name, value);
        result(command)
    };
    let by_environment = with("AMALGAM_CONTEXT", "dead", &["list"]);
    assert!(by_environment.err.contains("the context `dead`"), "{by_environment:?}");
    assert_eq!(with("AMALGAM_CONTEXT", "dead", &["--context", "lab", "list"]).code, 0);
    assert_eq!(with("AMALGAM_SERVER", &dead, &["--context", "lab", "list"]).code, 0);
    let state = machines.scene.path().join("no-state");
    fs::create_dir(&state).unwrap();
    let by_state = with("AMALGAM_STATE", state.to_str().unwrap(), &["list"]);
    assert!(by_state.err.contains("no running server was found"), "{by_state:?}");
    let listed = with("AMALGAM_SERVER", &dead, &["context", "list"]);
    assert!(listed.out.contains("*  lab") && listed.err.contains("AMALGAM_SERVER names the server"), "{listed:?}");

    user.ok(&["context", "use", "dead"]);
    user.fails(&["list"], "the context `dead`");
    user.ok(&["context", "use", "-"]);
    user.fails(&["list"], "no running server was found");
    user.fails(&["context", "use", "x"], "the contexts are: lab, dead;");
    user.ok(&["context", "use", "lab"]);
    let shown = user.ok(&["context", "show"]);
    assert!(shown.contains(&pin) && shown.contains(&server) && !shown.contains(&token), "{shown}");
    assert!(!user.ok(&["context", "list", "--json"]).contains(&token));

    fs::set_permissions(user.file(), Permissions::from_mode(0o640)).unwrap();
    user.fails(&["list"], "contexts.toml can be read by others (mode 640)");
    fs::set_permissions(user.file(), Permissions::from_mode(0o600)).unwrap();
    user.ok(&["context", "remove", "dead"]);
    let out = user.run(&["logout"]);
    assert!(out.code == 0 && out.err.contains("removed the context `lab`; its token stays valid"), "{out:?}");
    user.fails(&["list"], "no running server was found");
    assert!(!fs::read_to_string(user.file()).unwrap().contains(&token));
}

#[test]
fn a_client_that_calls_during_a_rotation_of_the_authority_does_not_notice_its_end() {
    let Some((machines, server, token)) = started() else { return };
    let (user, absent) = (User { machines: &machines, host: 2 }, User { machines: &machines, host: 1 });
    let first = machines.fingerprint();
    for user in [&user, &absent] {
        assert_eq!(user.login(&token, &[&server, "--name", "lab", "--fingerprint", &first]).code, 0);
    }
    start(&machines.scene.state()).unwrap();
    // What the client has is recent: it does not ask for more.
    user.ok(&["list"]);
    assert_eq!(user.ok(&["context", "show"]).matches("SHA-256").count(), 1);
    let text = fs::read_to_string(user.file()).unwrap();
    let aged =
        |line: &str| if line.starts_with("authorities_at") { "authorities_at = 1700000000" } else { line }.to_owned();
    fs::write(user.file(), text.lines().map(aged).collect::<Vec<_>>().join("\n")).unwrap();
    user.ok(&["list"]);
    let shown = user.ok(&["context", "show"]);
    assert!(shown.matches("SHA-256").count() == 2 && shown.contains(&first), "{shown}");
    finish(&machines.scene.state(), true).unwrap();
    let last = machines.fingerprint();
    assert_ne!(first, last);
    user.ok(&["list"]);
    absent.fails(&["list"], "the context `lab` has the authorities of the last login");
    // The old fingerprint is no way back, the new one is.
    let old = absent.login(&token, &[&server, "--name", "lab", "--fingerprint", &first]);
    assert!(old.code != 0 && old.err.contains(&last), "{old:?}");
    assert_eq!(absent.login(&token, &[&server, "--name", "lab", "--fingerprint", &last]).code, 0);
    absent.ok(&["list"]);
}

#[test]
fn who_does_not_answer_or_is_no_server_with_tls_is_named() {
    let Some(machines) = Machines::start(2, "") else { return };
    let user = User { machines: &machines, host: 0 };
    let pin = "0".repeat(64);
    let nobody = format!("https://127.0.0.1:{}", free_port());
    user.fails(&["login", &nobody, "--fingerprint", &pin], "does not answer");
    let file = fs::read_to_string(machines.scene.state().join("server.json")).unwrap();
    let plain = serde_json::from_str::<amalgam_daemon::api::ServerFile>(&file).unwrap().address;
    user.fails(&["login", &format!("https://{plain}"), "--fingerprint", &pin], "has the fingerprint");
    user.fails(&["login", &format!("https://{}", machines.agents), "--fingerprint", &pin], "");
    user.fails(&["login", &format!("http://{plain}"), "--fingerprint", &pin], "has no certificate");
    user.fails(&["login", "http://192.0.2.1:7433"], "would send your token unencrypted");
    // A server of this machine is a context, too.
    let token = machines.scene.ok(&["token", "add", "grace"]);
    let here = user.login(&token, &[&format!("http://{plain}")]);
    assert!(here.code == 0 && here.err.contains("context `local`"), "{here:?}");
    user.ok(&["list"]);
}

/// The terminal of a command: what it shows, and what is typed.
struct Terminal {
    controller: File,
    shown: String,
}

impl Terminal {
    /// Starts a command with a terminal of its own as its standard streams.
    fn of(command: &mut Command) -> Terminal {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let terminal = || Stdio::from(OpenOptions::new().read(true).write(true).open(&path).unwrap());
        command.stdin(terminal()).stdout(terminal()).stderr(terminal());
        Terminal { controller: controller.into(), shown: String::new() }
    }

    /// Waits for a text, and types a line.
    fn answers(&mut self, asked: &str, line: &str) {
        let mut part = [0; 1024];
        while !self.shown.contains(asked) {
            let length = self.controller.read(&mut part).unwrap_or(0);
            assert!(length > 0, "`{asked}` is missing in: {}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&part[..length]));
        }
        writeln!(self.controller, "{line}").unwrap();
    }

    fn rest(mut self) -> String {
        let mut part = [0; 1024];
        // The last process that closes a terminal makes reading fail.
        while let Ok(length @ 1..) = self.controller.read(&mut part) {
            self.shown.push_str(&String::from_utf8_lossy(&part[..length]));
        }
        self.shown
    }
}

#[test]
fn on_a_terminal_the_fingerprint_is_shown_and_the_token_is_not() {
    let Some((machines, server, token)) = started() else { return };
    let user = User { machines: &machines, host: 2 };
    let login = |answer: &str| {
        let mut command = user.command(&["login", &server, "--name", "lab"]);
        let mut terminal = Terminal::of(&mut command);
        let mut child = command.spawn().unwrap();
        // Its copies of the terminal.
        drop(command);
        terminal.answers("(yes/no)", answer);
        if answer == "yes" {
            terminal.answers("Your access token", &token);
        }
        let code = child.wait().unwrap().code();
        (code, terminal.rest())
    };
    let (code, shown) = login("no");
    assert!(code != Some(0) && shown.contains("was not confirmed") && !user.file().exists(), "{shown}");
    let (code, shown) = login("yes");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains(&machines.fingerprint()) && !shown.contains(&token), "{shown}");
    user.ok(&["list"]);
}
