use super::*;
use crate::config::Jwks;
use crate::http::fake::FakeServer;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const ISSUER: &str = "https://id.example.org";

/// A key of an issuer. RSA keys cannot be made with `ring`, so this one is a fixture that nothing else uses.
enum Signing {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signing {
    fn rsa() -> Signing {
        let der = STANDARD.decode(include_str!("test-rsa-key.txt").trim()).unwrap();
        Signing::Rsa(RsaKeyPair::from_pkcs8(&der).unwrap())
    }

    fn ec() -> Signing {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Signing::Ec(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref(), &random).unwrap())
    }

    fn ed() -> Signing {
        let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Signing::Ed(Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Signing::Rsa(_) => "RS256",
            Signing::Ec(_) => "ES256",
            Signing::Ed(_) => "EdDSA",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Signing::Rsa(key) => {
                let mut signed = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signed).unwrap();
                signed
            }
            Signing::Ec(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Signing::Ed(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    fn jwk(&self, id: &str) -> Value {
        match self {
            Signing::Rsa(key) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(key.public());
                let (n, e) = (encoded(&public.n), encoded(&public.e));
                json!({"kty": "RSA", "kid": id, "use": "sig", "alg": "RS256", "n": n, "e": e})
            }
            Signing::Ec(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": id, "x": encoded(x), "y": encoded(y)})
            }
            Signing::Ed(key) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": encoded(key.public_key().as_ref())})
            }
        }
    }

    fn token(&self, id: Option<&str>, claims: &Value) -> String {
        let mut header = json!({"alg": self.algorithm(), "typ": "JWT"});
        id.into_iter().for_each(|id| header["kid"] = id.into());
        signed(&header, claims, |message| self.sign(message))
    }
}

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn signed(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
    let signature = encoded(&sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Claims that are valid at the time 1000, with these changes. `null` removes a claim.
fn claims(changes: Value) -> Value {
    let mut claims = json!({"iss": ISSUER, "aud": "amalgam", "sub": "grace", "exp": 2000, "nbf": 900});
    for (claim, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
            value => claims[claim] = value.clone(),
        }
    }
    claims
}

fn config(jwks: Jwks) -> OidcConfig {
    OidcConfig {
        issuer: ISSUER.to_owned(),
        audience: "amalgam".to_owned(),
        jwks,
        claim: "sub".to_owned(),
        groups_claim: "groups".to_owned(),
        operators: vec!["operators".to_owned()],
        admins: vec!["cluster-admins".to_owned()],
    }
}

fn with_keys(directory: &Path, keys: &[Value]) -> Issuers {
    let path = directory.join("keys.json");
    fs::write(&path, json!({"keys": keys}).to_string()).unwrap();
    Issuers::start(vec![config(Jwks::File(path))]).unwrap()
}

fn verified(issuers: &Issuers, token: &str) -> Result<Claimed, Refusal> {
    issuers.verify(token, at(1000)).expect("it looks like a JWT")
}

#[test]
fn tokens_of_all_three_algorithms_identify_their_user_until_they_expire() {
    let directory = tempfile::tempdir().unwrap();
    let all = [("r", Signing::rsa()), ("c", Signing::ec()), ("d", Signing::ed())];
    let issuers = with_keys(directory.path(), &all.each_ref().map(|(id, key)| key.jwk(id)));
    for (id, key) in &all {
        let token = key.token(Some(id), &claims(json!({})));
        let claimed = verified(&issuers, &token).unwrap();
        let identity = Identity { user: "grace".to_owned(), scopes: Scopes::USUAL };
        let under = Arc::new(config(Jwks::File(directory.path().join("keys.json"))));
        assert_eq!(claimed, Claimed { identity, by: format!("oidc {ISSUER}"), until: at(2030), under });
        assert_eq!(issuers.verify(&token, at(2029)), Some(Ok(claimed)));
        assert_eq!(issuers.verify(&token, at(2030)), Some(Err(Refusal::Expired)));
        // The key is known by its kind if the token does not name it.
        verified(&issuers, &key.token(None, &claims(json!({})))).unwrap();
        // Each changed byte of the signature, or of the claims, is noticed.
        let (message, signature) = token.rsplit_once('.').unwrap();
        let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        for place in 0..bytes.len() {
            bytes[place] ^= 1;
            assert_eq!(verified(&issuers, &format!("{message}.{}", encoded(&bytes))), Err(Refusal::Signature));
            bytes[place] ^= 1;
        }
        let forged = key.token(Some(id), &claims(json!({"sub": "root"})));
        let forged = forged.rsplit_once('.').unwrap().0;
        assert_eq!(verified(&issuers, &format!("{forged}.{signature}")), Err(Refusal::Signature));
        assert_eq!(verified(&issuers, &format!("{message}.")), Err(Refusal::Signature));
    }
    let other = Signing::ec().token(Some("c"), &claims(json!({})));
    assert_eq!(verified(&issuers, &other), Err(Refusal::Signature), "of another key");
}

#[test]
fn unsigned_tokens_and_those_with_a_public_key_as_a_secret_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let key = Signing::rsa();
    let secret = json!({"kty": "oct", "kid": "s", "alg": "HS256", "k": encoded(b"secret")});
    let issuers = with_keys(directory.path(), &[key.jwk("r"), secret, json!({"kty": "new"})]);
    for algorithm in ["none", "None", "HS256", "HS512", "RS512", "PS256", "ES384", "x"] {
        let header = json!({"alg": algorithm, "kid": "r"});
        let token = signed(&header, &claims(json!({})), |_| Vec::new());
        assert_eq!(verified(&issuers, &token), Err(Refusal::Algorithm), "{algorithm}");
    }
    // A key for one algorithm is for no other.
    let header = json!({"alg": "ES256", "kid": "r"});
    let token = signed(&header, &claims(json!({})), |message| key.sign(message));
    assert_eq!(verified(&issuers, &token), Err(Refusal::UnknownKey));
    let header = json!({"alg": "HS256", "kid": "s"});
    let mac = |message: &[u8]| ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"secret"), message);
    let token = signed(&header, &claims(json!({})), |message| mac(message).as_ref().to_vec());
    assert_eq!(verified(&issuers, &token), Err(Refusal::Algorithm));
}

#[test]
fn claims_are_checked_and_refusals_say_which_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let key = Signing::ec();
    let issuers = with_keys(directory.path(), &[key.jwk("1")]);
    let claim = |name: &str| Refusal::Claim(name.to_owned());
    let audience = || Refusal::Audience("amalgam".to_owned());
    let cases = [
        (json!({"iss": "https://evil.example.org"}), Refusal::UnknownIssuer("https://evil.example.org".to_owned())),
        (json!({"iss": null}), claim("iss")),
        (json!({"iss": [ISSUER, "x"]}), claim("iss")),
        (json!({"aud": "other"}), audience()),
        (json!({"aud": ["x", "y"]}), audience()),
        (json!({"aud": null}), claim("aud")),
        (json!({"exp": null}), claim("exp")),
        (json!({"exp": "2000"}), claim("exp")),
        (json!({"exp": -5}), claim("exp")),
        (json!({"exp": 970}), Refusal::Expired),
        (json!({"nbf": 1031}), Refusal::Immature),
        (json!({"nbf": "never"}), claim("nbf")),
        (json!({"sub": null}), claim("sub")),
        (json!({"sub": 7}), claim("sub")),
    ];
    for (changes, refusal) in cases {
        let token = key.token(Some("1"), &claims(changes.clone()));
        assert_eq!(verified(&issuers, &token), Err(refusal.clone()), "{changes}");
        assert!(!refusal.to_string().contains(&token) && !refusal.remedy().is_empty());
    }
    for name in ["", "../x", "-x", "a b", "a\nb", &"x".repeat(65)] {
        let token = key.token(Some("1"), &claims(json!({"sub": name})));
        assert!(matches!(verified(&issuers, &token), Err(Refusal::BadName(_))), "{name:?}");
    }
    for changes in [json!({"aud": ["x", "amalgam"]}), json!({"exp": 971}), json!({"nbf": 1030}), json!({"exp": 2000.5})]
    {
        verified(&issuers, &key.token(Some("1"), &claims(changes))).unwrap();
    }
    assert_eq!(verified(&issuers, &key.token(Some("2"), &claims(json!({})))), Err(Refusal::UnknownKey));
    for broken in ["..", "a.b.c", "e30.e30.e30", "\u{e9}.e30.x"] {
        assert!(verified(&issuers, broken).is_err(), "{broken}");
    }
    for no_jwt in ["", "abc", "a.b", "a.b.c.d"] {
        assert_eq!(issuers.verify(no_jwt, at(1000)), None);
    }
    assert_eq!(Issuers::default().verify("a.b.c", at(1000)), None);
}

#[test]
fn groups_give_scopes() {
    let directory = tempfile::tempdir().unwrap();
    let key = Signing::ed();
    let issuers = with_keys(directory.path(), &[key.jwk("1")]);
    for (groups, scopes) in [
        (json!(["staff", "operators"]), "read,submit,operate"),
        (json!("operators"), "read,submit,operate"),
        (json!(["operators", "cluster-admins"]), "admin"),
        (json!(["Operators", 7]), "read,submit"),
        (json!({"operators": true}), "read,submit"),
    ] {
        let token = key.token(Some("1"), &claims(json!({"groups": groups})));
        assert_eq!(verified(&issuers, &token).unwrap().identity.scopes.to_string(), scopes, "{groups}");
    }
}

#[test]
fn a_file_of_keys_is_read_again_and_a_mistake_leaves_the_last_keys_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.json");
    let (one, two) = (Signing::ec(), Signing::ec());
    let issuers = with_keys(directory.path(), &[one.jwk("1")]);
    let tokens = [one.token(Some("1"), &claims(json!({}))), two.token(Some("2"), &claims(json!({})))];
    let accepted = || tokens.each_ref().map(|token| verified(&issuers, token).is_ok());
    assert_eq!(accepted(), [true, false]);
    fs::write(&path, "{\"keys\": [").unwrap();
    assert_eq!(accepted(), [true, false]);
    fs::remove_file(&path).unwrap();
    assert_eq!(accepted(), [true, false]);
    fs::write(&path, json!({"keys": [two.jwk("2")]}).to_string()).unwrap();
    assert_eq!(accepted(), [false, true]);
    for (text, why) in [("", "not a JWKS"), ("[]", "not a JWKS"), ("{\"keys\": []}", "no key for RS256")] {
        fs::write(&path, text).unwrap();
        let refused = Issuers::start(vec![config(Jwks::File(path.clone()))]).err().unwrap();
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

#[test]
fn keys_are_fetched_beside_the_requests_and_unknown_ones_do_not_flood_the_issuer() {
    let (key, fetches) = (Signing::ec(), Arc::new(AtomicUsize::new(0)));
    let published = Arc::new(Mutex::new(json!({"keys": [key.jwk("1")]}).to_string()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let (count, text) = (Arc::clone(&fetches), Arc::clone(&published));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            count.fetch_add(1, Ordering::SeqCst);
            let text = text.lock().unwrap().clone();
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}", text.len());
        }
    });
    let issuers = Issuers::start(vec![config(Jwks::Url(url))]).unwrap();
    let token = key.token(Some("1"), &claims(json!({})));
    let started = std::time::Instant::now();
    while let Err(refusal) = verified(&issuers, &token) {
        assert!(matches!(refusal, Refusal::NoKeys(_)), "{refusal}");
        assert!(started.elapsed() < Duration::from_secs(30), "the keys were not fetched");
        thread::sleep(Duration::from_millis(10));
    }
    let unknown = key.token(Some("2"), &claims(json!({})));
    let asked = std::time::Instant::now();
    for _ in 0..1000 {
        assert_eq!(verified(&issuers, &unknown), Err(Refusal::UnknownKey));
    }
    assert!(asked.elapsed() < Duration::from_secs(5), "requests wait for the issuer");
    thread::sleep(Duration::from_millis(200));
    // A reload that changes the entry does not fetch them again.
    let before = config(issuers.now().0[0].config.jwks.clone());
    let changed = OidcConfig { admins: vec!["all".to_owned()], ..before.clone() };
    issuers.replace(issuers.prepare(vec![changed.clone()]).unwrap());
    let admin = key.token(Some("1"), &claims(json!({"groups": ["all"]})));
    assert_eq!(verified(&issuers, &admin).unwrap().identity.scopes, Scopes::ADMIN);
    assert!(issuers.have(&changed) && !issuers.have(&before));
    thread::sleep(Duration::from_millis(200));
    assert_eq!(fetches.load(Ordering::SeqCst), 1, "the next fetch is a minute later");
}

#[test]
fn a_request_with_a_jwt_is_that_of_its_user_and_is_recorded_and_a_stream_ends_with_the_token() {
    let state = tempfile::tempdir().unwrap();
    let key = Signing::ec();
    let server = FakeServer::with_issuers(state.path(), "ada", with_keys(state.path(), &[key.jwk("1")]));
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let bearer = |token: &str| format!("Bearer {token}");
    let call = |token: &str, path: &str| {
        let call = agent.get(format!("http://{}{path}", server.address)).header("authorization", bearer(token));
        call.call().unwrap()
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let token = |exp: u64, changes: Value| {
        let mut claims = claims(changes);
        claims["exp"] = exp.into();
        key.token(Some("1"), &claims)
    };
    let grace = token(now + 60, json!({}));
    assert_eq!(call(&grace, "/v1/jobs").status(), 200);
    let drain = |token: &str| {
        let call = agent.post(format!("http://{}/v1/nodes/0/drain", server.address));
        call.header("authorization", bearer(token)).send(&b"{\"drain\":true}"[..]).unwrap().status().as_u16()
    };
    assert_eq!(drain(&grace), 403, "grace is no operator");
    assert_ne!(drain(&token(now + 60, json!({"groups": ["operators"]}))), 403);
    let text = fs::read_to_string(state.path().join("audit.log")).unwrap();
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&line["user"], &line["token"]), (&json!("grace"), &json!(format!("oidc {ISSUER}"))));
    assert!(!text.contains(&grace));

    let expired = token(now - 60, json!({}));
    let mut answer = call(&expired, "/v1/jobs");
    let body = answer.body_mut().read_to_string().unwrap();
    assert!(answer.status() == 401 && body.contains("the token has expired") && !body.contains(&expired), "{body}");
    // It is accepted within the leeway, and its stream ends with that.
    let brief = token(now - LEEWAY.as_secs() + 3, json!({}));
    let started = std::time::Instant::now();
    let (answer, mut read) = (call(&brief, "/v1/events"), String::new());
    assert_eq!(answer.status(), 200);
    assert!(answer.into_body().into_reader().read_to_string(&mut read).is_err(), "{read}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}
