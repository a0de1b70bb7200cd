//! Several addresses for clients, and TLS on loopback.

use crate::machines::Machines;
use crate::standby::Servers;
use crate::support::{
    CommandOutput, Daemon, Network, Scene, address, free_port, interface, result, saying_into, until_true,
};
use amalgam_daemon::authority::Trusted;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

const WHOLE: &str = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

/// The answer to a request without TLS.
fn plain(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(WHOLE.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A command of a client that has nothing of the server's but a token.
fn elsewhere(scene: &Scene, arguments: &[&str], authority: Option<&Path>) -> CommandOutput {
    let token = scene.work().join("client.token");
    let mut command = scene.command(arguments);
    command.env_remove("AMALGAM_STATE").env("HOME", scene.path().join("home"));
    command.env("XDG_CONFIG_HOME", scene.path().join("config"));
    command.env("AMALGAM_TOKEN", fs::read_to_string(token).unwrap().trim());
    if let Some(path) = authority {
        command.env("AMALGAM_CA_FILE", path);
    }
    result(command)
}

/// A server of two addresses of loopback with this configuration, and its ready line.
fn started(config: &str) -> (Scene, [String; 2], String) {
    let scene = Scene::new();
    let config = scene.write("server.toml", config);
    let addresses = ["127.0.0.1", "[::1]"].map(|host| format!("{host}:{}", free_port()));
    let [four, six] = &addresses;
    let mut command = scene.command(&["server", "--listen", four, "--listen", six, "--listen-agents", "127.0.0.1:0"]);
    command.arg("--config").arg(config);
    let ready = scene.start(command, &scene.state());
    scene.write("client.token", &scene.ok(&["token", "add", "grace"]));
    (scene, addresses, ready)
}

#[test]
fn loopback_answers_with_tls_and_without_at_each_address() {
    let (scene, addresses, ready) = started("");
    let [four, six] = &addresses;
    assert!(ready.starts_with(&format!("ready: http://{four}, http://{six}, agents at ")), "{ready}");
    let authority = scene.state().join("ca.pem");
    let fingerprint = Trusted::read(&fs::read(&authority).unwrap()).unwrap().remove(0).fingerprint;
    // Those who send nothing, or half a handshake, are in nobody's way.
    let mut silent: Vec<TcpStream> = Vec::new();
    for number in 0..40 {
        let mut stream = TcpStream::connect(&addresses[number % 2]).unwrap();
        stream.write_all(&b"\x16\x03\x01"[..number % 4]).unwrap();
        silent.push(stream);
    }
    for address in &addresses {
        assert!(plain(address).starts_with("HTTP/1.1 200"));
        let https = format!("https://{address}");
        let listed = elsewhere(&scene, &["list", "--server", &https], Some(&authority));
        assert_eq!(listed.code, 0, "{listed:?}");
        let login = elsewhere(&scene, &["login", &https, "--name", "here", "--fingerprint", &fingerprint], None);
        assert_eq!(login.code, 0, "{login:?}");
        assert_eq!(elsewhere(&scene, &["list"], None).code, 0);
        assert_eq!(elsewhere(&scene, &["logout", "here"], None).code, 0);
    }
    // Clients that find the server on this machine.
    scene.ok(&["list"]);
    let examined = scene.run(&["doctor"]).out;
    for address in &addresses {
        assert!(examined.contains(&format!("the server listens for clients at {address}")), "{examined}");
    }
    drop(silent);
}

#[test]
fn plain_text_on_loopback_is_refused_where_the_configuration_says_so() {
    let sockets = tempfile::tempdir().unwrap();
    let socket = sockets.path().join("socket");
    let (scene, addresses, ready) = started(&format!("plain_http = false\nlisten_local = '{}'\n", socket.display()));
    let [four, six] = &addresses;
    assert!(ready.starts_with(&format!("ready: https://{four}, https://{six}, agents at ")), "{ready}");
    for address in &addresses {
        let refused = plain(address);
        assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("`plain_http = false`"), "{refused}");
        let refused = elsewhere(&scene, &["list", "--server", &format!("http://{address}")], None);
        assert!(refused.code != 0 && refused.err.contains("have to be encrypted"), "{refused:?}");
        assert!(refused.err.contains("help: use https://"), "{refused:?}");
    }
    let local = elsewhere(&scene, &["list", "--server", &format!("unix:{}", socket.display())], None);
    assert_eq!(local.code, 0, "{local:?}");
    // The command line finds out by itself, and verifies the server.
    scene.ok(&["list"]);
    scene.ok(&["doctor", "--role", "client"]);
    let authority = scene.state().join("ca.pem");
    fs::rename(&authority, scene.path().join("ca.pem")).unwrap();
    let unverified = scene.run(&["list"]);
    assert!(unverified.code != 0 && unverified.err.contains("ca.pem"), "{unverified:?}");
    fs::rename(scene.path().join("ca.pem"), &authority).unwrap();
    let dev = Scene::new();
    let config = dev.write("dev.toml", "plain_http = false");
    dev.start_dev(&["--config", config.to_str().unwrap()]);
    assert_eq!(dev.ok(&["run", "--", "echo", "verified"]).trim(), "verified");
    // The copy of another server's authority, as clients have it.
    dev.kill_daemon();
    fs::remove_file(dev.state().join("ca-key.pem")).unwrap();
    let mut refused = dev.command(&["dev", "--listen", "127.0.0.1:0", "--config"]);
    refused.arg(&config);
    let refused = Daemon::start(refused).err().expect("it cannot encrypt");
    assert!(refused.contains("ca-key.pem is missing"), "{refused}");
    dev.start_dev(&[]);
    assert_eq!(dev.ok(&["run", "--", "echo", "plain"]).trim(), "plain");
    let federation = dev.run(&["dev", "--clusters", "2", "--config", config.to_str().unwrap(), "--state-dir", "other"]);
    assert!(federation.code == 2 && federation.err.contains("`plain_http = false` is not for"), "{federation:?}");
}

#[test]
fn what_only_some_addresses_are_for_is_the_same_with_several() {
    let hosts = [vec![interface(0, 0), interface(1, 0)], vec![interface(0, 1)], vec![interface(1, 2)]];
    let (first, second, port) = (address(0), "10.78.0.1", free_port());
    let Some(site) = Machines::within(Network::with(&hosts), format!("{first}:{}", free_port())) else { return };
    let text = format!("listen = [\"127.0.0.1:{port}\", \"{first}:{port}\", \"{second}:{port}\"]");
    let config = site.scene.write("server.toml", &text);
    let mut server = site.scene.command(&["server", "--listen-agents", &site.agents, "--config"]);
    server.arg(config);
    let ready = site.scene.start(server, &site.scene.state());
    let urls = format!("http://127.0.0.1:{port}, https://{first}:{port}, https://{second}:{port}");
    assert!(ready.starts_with(&format!("ready: {urls}, agents at ")), "{ready}");
    site.scene.ok(&["list"]);
    for (host, server) in [(0, "127.0.0.1"), (1, first.as_str()), (2, second)] {
        let server = format!("{server}:{port}");
        let listed = site.client(host, &format!("https://{server}"), &["list"]);
        assert_eq!(listed.code, 0, "{server}: {listed:?}");
        let received = String::from_utf8(site.received(host, &server, WHOLE.as_bytes())).unwrap();
        let expected = if host == 0 { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
        assert!(received.starts_with(expected), "{server}: {received}");
    }
    // From the server's own machine, too, by an address that others reach.
    let received = String::from_utf8(site.received(0, &format!("{first}:{port}"), WHOLE.as_bytes())).unwrap();
    assert!(received.starts_with("HTTP/1.1 403") && received.contains("other addresses than loopback"), "{received}");
}

#[test]
fn addresses_that_exclude_each_other_are_refused() {
    let scene = Scene::new();
    let port = free_port();
    let start = |listen: &str| {
        let command = scene.command(&["server", "--listen-agents", "127.0.0.1:0", "--listen", listen]);
        Daemon::start(command).err().expect("it cannot listen there")
    };
    let twice = start(&format!("127.0.0.1:{port},127.0.0.1:{port}"));
    assert!(twice.contains(&format!("`127.0.0.1:{port}` is listed twice")), "{twice}");
    let wrong = start(&format!("127.0.0.1:{port},nowhere"));
    assert!(wrong.contains("invalid address `nowhere` to listen on"), "{wrong}");
}

/// A cluster's master and two global masters, which joined it with strings, all on loopback.
#[test]
fn global_masters_on_loopback_are_verified_by_the_authority_of_the_cluster() {
    for plain_http in [true, false] {
        let scene = Scene::new();
        let [master, first, second, six] = [(); 4].map(|()| free_port());
        let config = scene.write(
            "federation.toml",
            &format!(
                "plain_http = {plain_http}\n[federation]\nmasters = ['127.0.0.1:{master}']\n\
                 globals = ['127.0.0.1:{first}', 'localhost:{second}']\nspan = 64\n"
            ),
        );
        let numbered = |verb: &str, number: &str, arguments: &[&str], home: &Path| {
            let mut command = scene.command(&[&[verb, "--number", number], arguments].concat());
            command.arg("--config").arg(&config).arg("--state-dir").arg(home);
            Daemon::start(command).unwrap_or_else(|output| panic!("no {verb}: {output}"))
        };
        let mut daemons = vec![numbered("server", "0", &["--listen", "127.0.0.1:0"], &scene.state())];
        let string = || scene.ok(&["token", "join", "--role", "global", "--address", &format!("127.0.0.1:{master}")]);
        let homes = ["0", "1"].map(|number| scene.path().join(number));
        let both = format!("127.0.0.1:{first},[::1]:{six}");
        daemons.push(numbered("global", "0", &["--join", string().trim(), "--listen", &both], &homes[0]));
        let scheme = if plain_http { "http" } else { "https" };
        let urls = format!("ready: {scheme}://127.0.0.1:{first}, {scheme}://[::1]:{six}, global master 0 of");
        assert!(daemons[1].ready.starts_with(&urls), "{}", daemons[1].ready);
        daemons.push(numbered("global", "1", &["--join", string().trim()], &homes[1]));
        scene.write("client.token", &scene.ok(&["token", "add", "grace"]));
        let authority = scene.state().join("ca.pem");
        let at = |port: &str, arguments: &[&str]| {
            let server = format!("https://{port}");
            let done = elsewhere(
                &scene,
                &[&arguments[..1], &["--server", &server], &arguments[1..]].concat(),
                Some(&authority),
            );
            assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
            done.out.trim().to_owned()
        };
        let [first, second, six] =
            [format!("127.0.0.1:{first}"), format!("localhost:{second}"), format!("[::1]:{six}")];
        until_true("the users of the cluster", || {
            let listed = |server: &String| {
                let server = format!("https://{server}");
                elsewhere(&scene, &["list", "--server", &server], Some(&authority)).code == 0
            };
            [&first, &second].into_iter().all(listed)
        });
        // A job of the second, of which each address of the first leads there.
        let id = at(&second, &["submit", "-q", "--wait-for-nodes", "--", "true"]);
        for server in [&first, &six] {
            assert!(at(server, &["info", &id]).contains("true"));
            assert_eq!(at(server, &["list", "-q"]), id);
        }
        assert_eq!(plain(&first).starts_with("HTTP/1.1 200"), plain_http);
        // On their own machine.
        for home in &homes {
            let mut command = scene.command(&["list", "-q", "--state-dir"]);
            command.arg(home).arg("--token-file").arg(scene.state().join("tokens.toml"));
            let listed = result(command);
            assert_eq!((listed.code, listed.out.trim()), (0, id.as_str()), "{listed:?}");
        }
    }
}

#[test]
fn a_standby_answers_at_all_its_addresses_before_and_after_it_takes_over() {
    let Some(pair) = Servers::prepare(2) else { return };
    let homes = ["one", "two"].map(|name| pair.scene.path().join(name));
    pair.spawn(0, pair.command(0, &homes[0]));
    pair.await_active(0);
    let six = format!("[::1]:{}", free_port());
    let mut command = pair.command(1, &homes[1]);
    command.args(["--listen", &six]);
    pair.spawn(1, command);
    let list = || {
        let mut command = pair.scene.command(&["list", "--state-dir"]);
        command.arg(&homes[1]);
        result(command)
    };
    until_true("the standby", || list().err.contains("this is a standby of cluster 0"));
    for address in [&pair.listen[1], &six] {
        assert!(plain(address).starts_with("HTTP/1.1 200"), "{address}");
    }
    pair.take(0).kill();
    pair.await_active(1);
    let listed = list();
    assert_eq!(listed.code, 0, "{listed:?}");
    for address in [&pair.listen[1], &six] {
        assert!(plain(address).starts_with("HTTP/1.1 200"), "{address}");
    }
}

#[test]
fn a_job_host_listens_at_several_addresses_and_join_strings_name_one_that_others_reach() {
    let Some(site) = Machines::within(Network::new(2), format!("{}:{}", address(0), free_port())) else { return };
    let config = site.scene.write("server.toml", "preset = 'apollo'\njob_hosts = 1\n");
    let here = format!("127.0.0.1:{}", free_port());
    let mut server = site.scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", &here]);
    server.args(["--listen-agents", &site.agents, "--config"]).arg(config);
    site.scene.start(server, &site.scene.state());
    let string = site.join_string(&["--role", "jobs"]);
    assert!(string.starts_with(&format!("{}/", site.agents)), "{string}");
    let [first, second] = [address(1), "127.0.0.1".to_owned()].map(|host| format!("{host}:{}", free_port()));
    let mut jobs = site.scene.command(&["jobs", "--number", "1", "--join", &string, "--listen", &first]);
    jobs.args(["--listen", &second, "--work-dir"]).arg(site.scene.path().join("jobs"));
    jobs.env_remove("AMALGAM_STATE").env("HOME", site.scene.path().join("home"));
    let ready = site.started(1, jobs);
    assert_eq!(ready, format!("ready: job host 1 for agents at {first}, {second}, server {}", site.agents));
    // Neither speaks without TLS.
    for at in [&first, &second] {
        assert!(site.received(1, at, WHOLE.as_bytes()).len() <= 7, "{at}");
    }
}

#[test]
fn agents_that_reach_only_the_second_address_of_a_job_host_use_it() {
    let hosts = [vec![interface(0, 0), interface(1, 0)], vec![interface(0, 1), interface(1, 1)], vec![interface(1, 2)]];
    let port = free_port();
    let [near, far] = [address(0), "10.78.0.1".to_owned()].map(|host| format!("{host}:{port}"));
    let Some(site) = Machines::within(Network::with(&hosts), format!("{near},{far}")) else { return };
    site.scene.write("server.toml", "preset = 'apollo'\njob_hosts = 1\n");
    site.start_server("127.0.0.1:0");
    let [first, second] = [address(1), "10.78.0.2".to_owned()].map(|host| format!("{host}:{}", free_port()));
    let string = site.join_string(&["--role", "jobs"]);
    let mut jobs = site.scene.command(&["jobs", "--number", "1", "--join", &string, "--listen", &first]);
    jobs.args(["--listen", &second, "--advertise", &second, "--work-dir"]).arg(site.scene.path().join("jobs"));
    jobs.env_remove("AMALGAM_STATE").env("HOME", site.scene.path().join("home"));
    site.started(1, jobs);
    let said = [1, 2].map(|host| {
        let said = site.scene.path().join(format!("said-{host}"));
        let string = site.join_string(&["--address", if host == 1 { &near } else { &far }]);
        site.started(host, saying_into(site.joining_agent(host, &format!("host-{host}"), &string), &said));
        said
    });
    // The agent of host 2 has no way to the first address.
    for said in said {
        until_true("the agent at the job host", || {
            fs::read_to_string(&said).unwrap_or_default().contains("connected to job host 1")
        });
    }
    site.run_across();
}
