//! A blocking client of the HTTP interface. It needs no async runtime.

use crate::failure::{Failure, Kind, Result};
use crate::local::{LocalConnector, NoAddress};
use amalgam_core::vocabulary::JobSpec;
use amalgam_daemon::api::{
    self, Action, ActionRequest, ActionResult, ChosenTasks, Elsewhere, Event, JOB_MSGPACK, JobDetail, JobSummary,
    Listing, Submitted, Waited,
};
use amalgam_daemon::config::is_loopback;
use amalgam_daemon::encoding;
use amalgam_daemon::http::MAX_BODY;
use amalgam_daemon::versions::WIRE;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, RequestBuilder};

/// Time limit for establishing a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Maximum silence of a server, in addition to the time that the call itself waits for an event.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// Maximum silence of a stream. Event streams carry a keep-alive every 15 seconds; the output of a task may be silent for any
/// time. A silent stream is opened again, and a live server answers that within 20 seconds.
const STREAM_PATIENCE: Duration = Duration::from_secs(45);

/// Time that the server's own answer about a deadline may take after the deadline.
const GRACE: Duration = Duration::from_millis(500);

/// Time limit for a server to come back while a job is watched.
const RETURN_PATIENCE: Duration = Duration::from_secs(30);

/// Maximum number of items on one page of a list.
const MAX_PAGE: usize = 10_000;

/// Time limit for another global master's list of jobs.
const OTHERS_PATIENCE: Duration = Duration::from_secs(5);

/// The base of calls over the local socket, whose path is not part of it.
const LOCAL: &str = "http://local";

#[derive(Clone)]
pub struct Client {
    agent: Agent,
    base: String,
    /// `None` at the local socket, where the kernel says who calls.
    authorization: Option<String>,
    /// The user's deadline, independent of the server.
    deadline: Option<Instant>,
    /// The context that names this server, for messages.
    context: Option<Arc<str>>,
}

/// Jobs of a list.
pub struct Jobs {
    pub jobs: Vec<JobSummary>,
    /// Whether jobs are missing because of the limit.
    pub has_more: bool,
    /// One failure for each global master that does not answer. Its jobs are missing.
    pub silent: Vec<Failure>,
}

/// All pages of a list, up to its limit.
struct Pages<T> {
    items: Vec<T>,
    has_more: bool,
    /// The servers that have more such items.
    others: Option<Elsewhere>,
}

impl Client {
    pub fn new(base: String, token: String) -> Client {
        let authorization = Some(format!("Bearer {token}"));
        Client { agent: agent(Trust::Nothing), base, authorization, deadline: None, context: None }
    }

    /// A client that sends no token.
    pub fn anonymous(base: String) -> Client {
        Client { agent: agent(Trust::Nothing), base, authorization: None, deadline: None, context: None }
    }

    /// The authorities that a server offers, in PEM, from whatever process answers at its address: nothing is verified, and nothing
    /// secret is sent.
    pub fn offered_authorities(base: &str) -> Result<Vec<u8>> {
        Client { agent: agent(Trust::Anything), ..Client::anonymous(base.to_owned()) }.authorities()
    }

    /// A client of the server that listens at this socket of this machine. Without a token, it is the user of this process.
    pub fn local(socket: &Path, token: Option<String>) -> Client {
        let connector = LocalConnector { socket: socket.to_owned() };
        let config = agent(Trust::Nothing).config().clone();
        let agent = Agent::with_parts(config, connector, NoAddress);
        let authorization = token.map(|token| format!("Bearer {token}"));
        Client { agent, base: LOCAL.to_owned(), authorization, deadline: None, context: None }
    }

    /// A client that accepts servers whose certificates an authority of this file has signed: a copy of the server's
    /// `ca.pem`.
    ///
    /// # Errors
    /// If the file cannot be read or has no certificate.
    pub fn trusting(self, authority: &Path) -> Result<Client> {
        let remedy = "copy ca.pem from the server's state directory";
        let failed = |why: String| Failure::usage(format!("cannot use {}: {why}", authority.display()), remedy);
        let pem = fs::read(authority).map_err(|error| failed(error.to_string()))?;
        self.trusting_pem(&pem).ok_or_else(|| failed("it contains no certificate".to_owned()))
    }

    /// As [`Client::trusting`], with the content of such a file. `None` if it has no certificate.
    pub fn trusting_pem(self, pem: &[u8]) -> Option<Client> {
        let certificates = parse_pem(pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let certificates: Vec<_> = certificates.collect();
        (!certificates.is_empty()).then(|| Client { agent: agent(Trust::These(certificates)), ..self })
    }

    /// A client whose failures to reach or to verify the server say that it is that of a context.
    pub fn of_context(self, name: &str) -> Client {
        Client { context: Some(name.into()), ..self }
    }

    /// Whether the server knows the token, also if that is not for reading.
    pub fn check_token(&self) -> Result<()> {
        let call = self.authorized(self.agent.get(format!("{}/v1/cluster", self.base)));
        match call.call() {
            Ok(answer) if answer.status() == StatusCode::FORBIDDEN => Ok(()),
            answer => check(&self.base, answer).map(drop).map_err(|failure| self.explained(failure)),
        }
    }

    /// The authorities that the server's clients trust, in PEM.
    pub fn authorities(&self) -> Result<Vec<u8>> {
        /// Those of a rotation have a few KiB.
        const MOST: u64 = 1 << 20;
        let answer = self.ask("/ca.pem", ANSWER_PATIENCE)?;
        let mut pem = Vec::new();
        let read = answer.into_body().into_reader().take(MOST).read_to_end(&mut pem);
        read.map_err(|error| unanswered(&self.base, &ureq::Error::from(error)))?;
        Ok(pem)
    }

    /// A client of the same server whose calls fail shortly after the deadline.
    pub fn until(&self, deadline: Option<Instant>) -> Client {
        Client { deadline, ..self.clone() }
    }

    /// A client of the same server with a time limit for all its calls together.
    pub fn within(&self, patience: Duration) -> Client {
        self.until(Instant::now().checked_add(patience))
    }

    /// Whether the deadline has passed.
    pub fn is_out_of_time(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.get_late(path, ANSWER_PATIENCE)
    }

    /// A call that the server may answer after up to `silence`.
    fn get_late<T: DeserializeOwned>(&self, path: &str, silence: Duration) -> Result<T> {
        self.decode(self.ask(path, silence)?)
    }

    /// A call whose answer is read as a stream.
    pub fn open(&self, path: &str) -> Result<Response<Body>> {
        self.ask(path, STREAM_PATIENCE)
    }

    fn ask(&self, path: &str, silence: Duration) -> Result<Response<Body>> {
        self.wherever_it_is(|base| {
            let call = self.authorized(self.agent.get(format!("{base}{path}")));
            call.config().timeout_per_read(Some(silence)).timeout_global(self.left()).build().call()
        })
    }

    fn authorized<B>(&self, call: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.authorization {
            Some(authorization) => call.header("authorization", authorization),
            None => call,
        }
    }

    /// The time left for a call, including the grace for the server's answer at the deadline.
    fn left(&self) -> Option<Duration> {
        Some(self.deadline?.saturating_duration_since(Instant::now()) + GRACE)
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.decode(self.send(path, "application/json", &encode_json(body)?, None)?)
    }

    /// A call with a body of bytes.
    pub fn post_bytes<T: DeserializeOwned>(&self, path: &str, body: &[u8]) -> Result<T> {
        self.decode(self.send(path, "application/octet-stream", body, None)?)
    }

    /// A call whose answer has no content.
    pub fn post_quietly(&self, path: &str, body: &impl Serialize) -> Result<()> {
        self.send(path, "application/json", &encode_json(body)?, None).map(drop)
    }

    pub fn delete(&self, path: &str) -> Result<()> {
        let answer = self.wherever_it_is(|base| {
            let call = self.agent.delete(format!("{base}{path}"));
            let call = self.authorized(call);
            call.config().timeout_global(self.left()).build().call()
        });
        answer.map(drop)
    }

    fn send(&self, path: &str, kind: &str, body: &[u8], key: Option<&str>) -> Result<Response<Body>> {
        self.wherever_it_is(|base| {
            let mut call = self.agent.post(format!("{base}{path}"));
            call = self.authorized(call).header("content-type", kind);
            if let Some(key) = key {
                call = call.header("idempotency-key", key);
            }
            call.config().timeout_global(self.left()).build().send(body)
        })
    }

    /// Asks the server and, if it redirects to another server, that one. Further redirects are not followed, because two servers
    /// that name each other would be a loop.
    fn wherever_it_is(
        &self,
        call: impl Fn(&str) -> std::result::Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>> {
        match check(&self.base, call(&self.base)) {
            Err(failure) => match self.led_to(failure.elsewhere.as_deref()).first() {
                Some(base) => check(base, call(base)).map_err(|failure| of_another_cluster(base, failure)),
                None => Err(self.explained(failure)),
            },
            answer => answer,
        }
    }

    /// Says which context names the server that cannot be reached or verified.
    fn explained(&self, failure: Failure) -> Failure {
        let is_unanswered = matches!(failure.kind, Kind::Unreachable | Kind::Broken) || failure.kind.is_unverified();
        let Some(context) = self.context.as_deref().filter(|_| is_unanswered) else { return failure };
        let remedy = match failure.kind {
            kind if kind.is_unverified() => format!(
                "the context `{context}` has the authorities of the last login, or of the last call before they were replaced: if \
                 they were, run `amalgam login` with this address again, and compare the fingerprint"
            ),
            _ => format!(
                "{}; its address is that of the context `{context}`: `amalgam context list` shows others",
                failure.remedy
            ),
        };
        Failure { remedy, ..failure }
    }

    /// The servers of a redirect that may get our token. From an encrypted connection, others that are encrypted: the same authorities
    /// verify them. Otherwise they are on this machine, as is the server that was asked, and the user has to have named that by its own
    /// address: the addresses behind a tunnel belong to another machine.
    fn led_to(&self, elsewhere: Option<&Elsewhere>) -> Vec<String> {
        const ENCRYPTED: &str = "https://";
        const PLAIN: &str = "http://";
        let Some(elsewhere) = elsewhere else { return Vec::new() };
        let mut here = std::iter::once(&elsewhere.here).chain(&elsewhere.also_here);
        let is_here = is_loopback(address_of(&self.base)) && here.any(|here| same_place(&self.base, here));
        let is_encrypted = self.base.starts_with(ENCRYPTED);
        let led = |base: &String| match base.strip_prefix(PLAIN) {
            // On loopback, they also answer with TLS.
            Some(address) if is_encrypted => (is_here && is_loopback(address)).then(|| format!("{ENCRYPTED}{address}")),
            _ => (is_encrypted || is_here && is_loopback(address_of(base))).then(|| base.clone()),
        };
        elsewhere.at.iter().filter_map(led).collect()
    }

    fn decode<T: DeserializeOwned>(&self, answer: Response<Body>) -> Result<T> {
        let mut bytes = Vec::new();
        answer
            .into_body()
            .into_reader()
            .read_to_end(&mut bytes)
            .map_err(|error| unanswered(&self.base, &ureq::Error::from(error)))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::new(
                format!("the server's answer is not understood: {error}"),
                "use a program of the server's version",
            )
        })
    }

    /// Submits a job, and repeats that if the connection breaks. The key makes repetitions harmless.
    pub fn submit(&self, job: &JobSpec, key: &str) -> Result<Submitted> {
        let body =
            encoding::to_vec(job).map_err(|error| Failure::new(format!("cannot encode the job: {error}"), ""))?;
        if body.len() > MAX_BODY {
            let what = format!("the job has {} MiB, and the limit is {} MiB", body.len() >> 20, MAX_BODY >> 20);
            return Err(Failure::new(what, "split it, or give each task an index instead of a line"));
        }
        let content_type = format!("{JOB_MSGPACK}; version={}", WIRE.newest);
        let send = || self.decode(self.send("/v1/jobs", &content_type, &body, Some(key))?);
        match send() {
            Err(failure) if failure.kind == Kind::Broken => patiently(send),
            answer => answer,
        }
    }

    pub fn job(&self, job: u64) -> Result<JobDetail> {
        self.get(&format!("/v1/jobs/{job}"))
    }

    pub fn wait(&self, job: u64, patience: Duration) -> Result<Waited> {
        let path = format!("/v1/jobs/{job}/wait?timeout_seconds={}", patience.as_secs_f64());
        self.get_late(&path, patience + ANSWER_PATIENCE)
    }

    /// Acts on each job separately, at the global master that owns it. Results are in the order of `jobs`.
    pub fn act(&self, jobs: Vec<u64>, action: Action) -> Result<Vec<ActionResult>> {
        self.act_on_tasks(jobs, action, Vec::new())
    }

    /// Acts on these tasks of the jobs, or on whole jobs if `tasks` is empty.
    pub fn act_on_tasks(&self, jobs: Vec<u64>, action: Action, tasks: Vec<ChosenTasks>) -> Result<Vec<ActionResult>> {
        let request = ActionRequest { jobs, action, tasks };
        let mut results: Vec<ActionResult> = self.post("/v1/jobs/actions", &request)?;
        let tasks = request.tasks;
        let mut elsewhere: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, result) in results.iter().enumerate() {
            let led = result.error.as_ref().and_then(|error| error.elsewhere.as_deref());
            if let Some(base) = self.led_to(led).first() {
                elsewhere.entry(base.clone()).or_default().push(place);
            }
        }
        for (base, places) in elsewhere {
            let there = Client { base, ..self.clone() };
            let jobs = places.iter().filter_map(|place| results.get(*place)).map(|result| result.job).collect();
            let request = ActionRequest { jobs, action, tasks: tasks.clone() };
            let answered = there.post::<Vec<ActionResult>>("/v1/jobs/actions", &request);
            match answered {
                Ok(answers) => {
                    places.into_iter().zip(answers).for_each(|(place, answer)| results[place] = answer);
                }
                // The results of the other jobs still have to be reported.
                Err(failure) => {
                    let failure = of_another_cluster(&there.base, failure);
                    let error = api::Error::new(api::ErrorCode::Unavailable, failure.what, failure.remedy);
                    places.into_iter().for_each(|place| results[place].error = Some(error.clone()));
                }
            }
        }
        Ok(results)
    }

    /// All pages of a list.
    pub fn list<T: DeserializeOwned>(&self, path: &str, query: &Query) -> Result<Vec<T>> {
        Ok(self.pages(path, query, None)?.items)
    }

    /// The first items of a list up to its limit, and whether there are more.
    pub fn list_first<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &Query,
        limit: Option<NonZeroUsize>,
    ) -> Result<(Vec<T>, bool)> {
        let pages = self.pages(path, query, limit)?;
        Ok((pages.items, pages.has_more))
    }

    /// The jobs of all global masters in a federation, newest first, up to the limit.
    pub fn jobs(&self, path: &str, query: &Query, limit: Option<NonZeroUsize>) -> Result<Jobs> {
        let Pages { items: mut jobs, others, mut has_more } = self.pages::<JobSummary>(path, query, limit)?;
        let Some(others) = others else { return Ok(Jobs { jobs, has_more, silent: Vec::new() }) };
        let bases = self.led_to(Some(&others));
        let asked = thread::scope(|scope| {
            let ask = |base: &String| {
                // A paused global master accepts connections and sends nothing.
                let other = Client { base: base.clone(), ..self.within(OTHERS_PATIENCE) };
                scope.spawn(move || {
                    let pages = other.pages::<JobSummary>(path, query, limit);
                    pages.map_err(|failure| of_another_cluster(&other.base, failure))
                })
            };
            let threads: Vec<_> = bases.iter().map(ask).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        let mut silent = Vec::new();
        let missing = "the jobs of another global master are missing";
        for answer in asked.into_iter().flatten() {
            match answer {
                Ok(further) => {
                    jobs.extend(further.items);
                    has_more |= further.has_more;
                }
                Err(failure) => {
                    silent.push(Failure { what: format!("{missing}: {}", failure.what), ..failure });
                }
            }
        }
        if bases.len() < others.at.len() {
            let what =
                format!("{missing}: this one is reached at another address than {}, where it listens", others.here);
            silent.push(Failure::unreachable(
                what,
                "use addresses at which all can be reached, or ask each one with --server",
            ));
        }
        jobs.sort_by_key(|job| Reverse((job.submitted_at, job.id)));
        if let Some(limit) = limit {
            has_more |= jobs.len() > limit.get();
            jobs.truncate(limit.get());
        }
        Ok(Jobs { jobs, has_more, silent })
    }

    fn pages<T: DeserializeOwned>(&self, path: &str, query: &Query, limit: Option<NonZeroUsize>) -> Result<Pages<T>> {
        let limit = limit.map_or(usize::MAX, NonZeroUsize::get);
        let mut items = Vec::new();
        let mut cursor = None;
        loop {
            let mut query = query.clone();
            query.add("cursor", cursor.as_deref());
            query.add("limit", Some(&(limit - items.len()).min(MAX_PAGE).to_string()));
            let page: Listing<T> = self.get(&format!("{path}{query}"))?;
            items.extend(page.items);
            cursor = page.next;
            if cursor.is_none() || items.len() >= limit {
                return Ok(Pages { items, has_more: cursor.is_some(), others: page.others });
            }
        }
    }

    /// Events of a job from a sequence number on. Ends when the connection does.
    pub fn events(&self, job: u64, from: u64) -> Result<impl Iterator<Item = Event> + use<>> {
        let body = self.open(&format!("/v1/events?job={job}&from={from}"))?.into_body();
        let lines = BufReader::with_capacity(64 << 10, body.into_reader()).lines();
        let payloads =
            lines.map_while(std::result::Result::ok).filter_map(|line| Some(line.strip_prefix("data: ")?.to_owned()));
        Ok(payloads.filter_map(|payload| serde_json::from_str(&payload).ok()))
    }
}

/// Which servers with TLS a client accepts.
enum Trust {
    /// There are no calls with TLS.
    Nothing,
    These(Vec<Certificate<'static>>),
    /// Whatever answers. Only for calls that send nothing secret.
    Anything,
}

/// Sets a limit for each read and write: a stopped server or a lost machine accepts connections and bytes and sends nothing.
fn agent(trust: Trust) -> Agent {
    let is_unverified = matches!(trust, Trust::Anything);
    let authorities = if let Trust::These(authorities) = trust { authorities } else { Vec::new() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(authorities)))
        .disable_verification(is_unverified)
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT_PATIENCE))
        .timeout_per_read(Some(ANSWER_PATIENCE))
        .timeout_per_write(Some(ANSWER_PATIENCE))
        .user_agent(concat!("amalgam/", env!("CARGO_PKG_VERSION")))
        // A proxy of the environment is not for the cluster.
        .proxy(None)
        .build();
    config.new_agent()
}

fn address_of(base: &str) -> &str {
    base.trim_start_matches("http://").trim_start_matches("https://")
}

/// Whether both are the same port on this machine's loopback interface, under any of its names.
fn same_place(one: &str, other: &str) -> bool {
    let port = |base: &str| address_of(base).rsplit_once(':').map(|(_, port)| port.to_owned());
    let are_here = [one, other].into_iter().all(|base| is_loopback(address_of(base)));
    address_of(one) == address_of(other) || are_here && port(one) == port(other)
}

fn check(base: &str, answer: std::result::Result<Response<Body>, ureq::Error>) -> Result<Response<Body>> {
    let answer = answer.map_err(|error| unanswered(base, &error))?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let mut text = String::new();
    let _ = answer.into_body().into_reader().take(1 << 20).read_to_string(&mut text);
    match serde_json::from_str::<api::Error>(&text) {
        Ok(error) => Err(error.into()),
        Err(_) => Err(Failure::new(format!("the server at {base} answered {status}"), "is it an amalgam server?")),
    }
}

/// The server that was asked is verified, and names this one, whose certificate is of another authority: in a federation, a global
/// master has that of the cluster whose string it joined with first.
fn of_another_cluster(base: &str, failure: Failure) -> Failure {
    if failure.kind != Kind::UnknownAuthority {
        return failure;
    }
    let remedy = format!(
        "the server that you asked names this one, whose certificate is of the authority of another cluster: run `amalgam login {base}` \
         and use that context; or pass --ca-file with ca.pem of both clusters in one file"
    );
    Failure { remedy, ..failure }
}

fn unanswered(base: &str, error: &ureq::Error) -> Failure {
    let remedy = match error {
        _ if matches!(of_tls(error), Some(rustls::Error::InvalidCertificate(_))) => {
            "check --ca-file: it has to be ca.pem of this server; and the address: it has to be the one for clients, and the server's \
             certificate has its host name, its addresses and `listen_names` of its configuration"
        }
        _ if of_tls(error).is_some() => {
            "it may have no encryption, or too many connections: check the address and the port, and try again"
        }
        ureq::Error::Protocol(_) => "is this the address of the interface, and not the one for agents?",
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            "check that its machine can be reached, and the address in --server or AMALGAM_SERVER"
        }
        ureq::Error::Timeout(_) => "it may be stopped or overloaded: look at its log, try again, or restart it",
        _ => "check that it runs, and the address in --server or AMALGAM_SERVER",
    };
    let why = match error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            format!("no connection within {} seconds", CONNECT_PATIENCE.as_secs())
        }
        ureq::Error::Timeout(_) => "it accepts connections, but did not answer in time".to_owned(),
        error => error.to_string(),
    };
    if let Some(error @ rustls::Error::InvalidCertificate(why)) = of_tls(error) {
        let is_unknown =
            matches!(why, rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature);
        // Another try would fail in the same way.
        return Failure {
            kind: if is_unknown { Kind::UnknownAuthority } else { Kind::Unverified },
            ..Failure::unreachable(format!("cannot verify {base}: {error}"), remedy)
        };
    }
    let place = if base == LOCAL { "its local socket" } else { base };
    let failure = Failure::unreachable(format!("the server at {place} does not answer: {why}"), remedy);
    let connected = match error {
        ureq::Error::Io(error) => error.kind() != io::ErrorKind::ConnectionRefused,
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound | ureq::Error::BadUri(_) => false,
        ureq::Error::Timeout(phase) => !matches!(phase, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        _ => true,
    };
    if connected { Failure { kind: Kind::Broken, ..failure } } else { failure }
}

fn of_tls(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

fn encode_json(body: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(body).map_err(|error| Failure::new(format!("cannot encode the call: {error}"), ""))
}

/// Retries while the server is unreachable, such as during a restart.
pub fn patiently<T>(call: impl FnMut() -> Result<T>) -> Result<T> {
    again_while(|kind| matches!(kind, Kind::Unreachable | Kind::Broken), call)
}

/// Retries also while the server stops or a node that it needs is not connected.
pub fn very_patiently<T>(call: impl FnMut() -> Result<T>) -> Result<T> {
    again_while(Kind::may_pass, call)
}

fn again_while<T>(passes: impl Fn(Kind) -> bool, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        match call() {
            Err(failure) if passes(failure.kind) && started.elapsed() < RETURN_PATIENCE => {
                std::thread::sleep(Duration::from_millis(200));
            }
            answer => return answer,
        }
    }
}

/// A unique key that makes a submission repeatable.
pub fn idempotency_key() -> Result<String> {
    let nonce = amalgam_daemon::auth::new_nonce()?;
    Ok(nonce[..16].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Parameters of a call, escaped.
#[derive(Clone, Default, Debug)]
pub struct Query(String);

/// A text as a part of a path or a query.
pub fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b',' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

impl Query {
    pub fn add(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&encoded(value));
    }

    /// Adds a list, unless it is empty.
    pub fn add_list(&mut self, name: &str, values: &[String]) {
        self.add(name, (!values.is_empty()).then(|| values.join(",")).as_deref());
    }

    pub fn with(mut self, name: &str, value: &str) -> Query {
        self.add(name, Some(value));
        self
    }
}

impl std::fmt::Display for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_only_to_redirects_on_this_machine_or_to_servers_that_are_verified() {
        let client = |base: &str| Client::new(base.to_owned(), String::new());
        let led = |asked: &str, here: &str, at: &[&str]| {
            let at = at.iter().map(|at| (*at).to_owned()).collect();
            let also_here = vec!["http://[::1]:7635".to_owned()];
            client(asked).led_to(Some(&Elsewhere { here: here.to_owned(), also_here, at }))
        };
        let (one, two) = ("http://127.0.0.1:7633", "http://127.0.0.1:7634");
        assert_eq!(led(one, one, &[two]), [two]);
        assert_eq!(led("http://localhost:7633", one, &[two]), [two]);
        assert_eq!(led("http://[::1]:7635", one, &[two]), [two], "by another of its addresses");
        assert!(led("http://127.0.0.1:9999", one, &[two]).is_empty(), "by a tunnel");
        assert!(led("http://head:7633", one, &[two]).is_empty(), "by another machine");
        let encrypted = "https://10.0.0.1:7433";
        assert!(led(encrypted, "http://10.0.0.1:7433", &[two]).is_empty(), "by an encrypted connection");
        assert!(led(encrypted, encrypted, &[two]).is_empty(), "by an encrypted connection");
        assert_eq!(led("https://127.0.0.1:7633", one, &[two]), ["https://127.0.0.1:7634"]);
        assert!(led("https://127.0.0.1:9999", one, &[two]).is_empty(), "by an encrypted tunnel");
        // The same authorities verify the other one.
        let other = "https://10.0.0.2:7433";
        assert_eq!(led(encrypted, encrypted, &[other, two]), [other]);
        assert_eq!(led("https://head:7433", encrypted, &[other]), [other]);
        assert!(led(one, one, &[other]).is_empty());
        assert!(led(one, one, &["http://head:7634", "http://10.0.0.1:7634"]).is_empty());
        assert!(client(one).led_to(None).is_empty());
    }
}
