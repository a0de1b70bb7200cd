//! An etcd with TLS that requires certificates of its clients.

use crate::standby::Etcd;
use crate::support::{CommandOutput, Daemon, Scene, free_port, result, saying_into, until_true};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// An authority in a directory of its own.
struct Signer {
    issuer: Issuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Signer {
    fn new(dir: PathBuf) -> Signer {
        fs::create_dir(&dir).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, dir.file_name().unwrap().to_str().unwrap());
        let key = KeyPair::generate().unwrap();
        fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Signer { issuer: Issuer::new(params, key), dir }
    }

    fn path(&self, file: &str) -> String {
        self.dir.join(file).to_str().unwrap().to_owned()
    }

    /// Writes `name.pem` and `name-key.pem`.
    fn sign(&self, name: &str, usages: &[ExtendedKeyUsagePurpose]) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = usages.to_vec();
        let key = KeyPair::generate().unwrap();
        fs::write(self.path(&format!("{name}.pem")), params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        let path = self.path(&format!("{name}-key.pem"));
        fs::write(&path, key.serialize_pem()).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }
}

/// A server with these keys in [store].
fn server(scene: &Scene, number: u32, store: &str, said: &Path) -> Command {
    let address = format!("127.0.0.1:{}", free_port());
    let text =
        format!("[federation]\nmasters = ['{address}']\nspan = 64\nnumber = 0\n[store]\nlease = '2s'\n{store}\n");
    let config = scene.write(&format!("{number}.toml"), &text);
    let mut command = scene.command(&["server", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(config).arg("--state-dir").arg(scene.path().join(format!("server-{number}")));
    saying_into(command, said)
}

#[test]
fn a_master_and_an_etcd_with_tls_verify_each_other() {
    let scene = Scene::new();
    let (ours, others) = (Signer::new(scene.path().join("ours")), Signer::new(scene.path().join("others")));
    // The JSON interface of etcd is a client of etcd itself, with the same certificate.
    ours.sign("etcd", &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]);
    for signer in [&ours, &others] {
        signer.sign("client", &[ExtendedKeyUsagePurpose::ClientAuth]);
    }
    let flags = [("--cert-file", "etcd.pem"), ("--key-file", "etcd-key.pem"), ("--trusted-ca-file", "ca.pem")];
    let flags = flags.into_iter().flat_map(|(flag, file)| [flag.to_owned(), ours.path(file)]);
    let flags: Vec<String> = flags.chain(["--client-cert-auth".to_owned()]).collect();
    let Some(etcd) = Etcd::start_with(&scene, "https", &flags) else { return };
    let endpoint = &etcd.endpoint;
    let said = scene.path().join("said");
    let of = |ca: &Signer, own: Option<&Signer>| {
        let own = own
            .map(|own| format!("certificate = '{}'\nkey = '{}'", own.path("client.pem"), own.path("client-key.pem")));
        format!("etcd = ['{endpoint}']\nca = '{}'\n{}", ca.path("ca.pem"), own.unwrap_or_default())
    };
    let right = of(&ours, Some(&ours));
    let active = Daemon::start(server(&scene, 0, &right, &said));
    let active = active.unwrap_or_else(|_| panic!("no server: {}", fs::read_to_string(&said).unwrap()));
    // The other one stands by: it reads who is active.
    let waiting = Daemon::spawn(server(&scene, 1, &right, &said));
    until_true("the standby", || {
        fs::read_to_string(&said).unwrap().contains("standby: the active master of cluster 0")
    });
    drop((active, waiting));
    // Each of the mistakes, and its remedy.
    let key = ours.path("client-key.pem");
    let exposed = format!(
        "etcd = ['{endpoint}']\nca = '{}'\ncertificate = '{}'\nkey = '{}'",
        ours.path("ca.pem"),
        ours.path("client.pem"),
        ours.path("open.pem")
    );
    fs::copy(&key, ours.path("open.pem")).unwrap();
    fs::set_permissions(ours.path("open.pem"), Permissions::from_mode(0o644)).unwrap();
    let plain = format!("etcd = ['{}']", endpoint.replace("https", "http"));
    let missing = right.replace("client.pem", "nothing.pem");
    let mistakes = [
        (of(&others, Some(&ours)), "`ca` of [store] is not the authority of this etcd"),
        (of(&ours, None), " a certificate: write `certificate` and `key` into [store]"),
        (of(&ours, Some(&others)), " accept `certificate` of [store]"),
        (exposed, "can be read by others (mode 644)"),
        (missing, "nothing.pem, a file of [store]: No such file"),
        (plain, "no endpoint of etcd answers correctly"),
    ];
    let started = mistakes.into_iter().enumerate().map(|(number, (store, why))| {
        let said = scene.path().join(format!("said-{number}"));
        let command = server(&scene, 2 + number as u32, &store, &said);
        (why, said, thread::spawn(move || result(command)))
    });
    for (why, said, ended) in started.collect::<Vec<_>>() {
        let CommandOutput { code, .. } = ended.join().unwrap();
        let said = fs::read_to_string(said).unwrap();
        assert!(code != 0 && said.contains(why), "{why}: {said}");
    }
}
