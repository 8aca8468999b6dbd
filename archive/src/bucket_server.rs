//! A real S3 server on a port of this machine, which checks signatures and checksums, behind a layer that makes its
//! conditional writes free of races, or lets them be as they are, and answers wrongly on demand.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;

use crate::s3::{Given, S3Settings};

/// The bucket that every server has.
pub const BUCKET: &str = "archive";

/// Who may use it.
pub const KEYS: (&str, &str) = ("rindle", "rindle-secret");

/// What the server makes of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// One of racing writers wins.
    Careful,
    /// It looks first and writes later, as the server below does.
    Racing,
    /// It ignores them.
    Deaf,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing, and this status and code are the answer.
    Before(u16, &'static str),
    /// It happens, and this is the answer.
    After(u16, &'static str),
    /// Nothing, and the connection ends.
    CutBefore,
    /// It happens, and the connection ends.
    CutAfter,
    /// It happens, and no answer comes.
    Silent,
    /// The answer ends in the middle of its body.
    Short,
    /// A byte of the answer's body is another one.
    Flipped,
    /// The answer's body comes in pieces, with such a pause between them.
    Drip(Duration),
}

/// Which requests a fault meets.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Of this method,
    pub method: Method,
    /// with this in their path,
    pub path: &'static str,
    /// after so many of them passed,
    pub after: u64,
    /// and then so many.
    pub times: u64,
    /// What happens to them.
    pub fault: Fault,
}

impl Rule {
    /// The next request of this method.
    pub fn once(method: Method, fault: Fault) -> Self {
        Self {
            method,
            path: "",
            after: 0,
            times: 1,
            fault,
        }
    }

    /// All of them from now on.
    pub fn always(method: Method, fault: Fault) -> Self {
        Self {
            times: u64::MAX,
            ..Self::once(method, fault)
        }
    }
}

/// A running server, on threads of its own: whoever waits for a program that waits for it holds nobody up. It ends when
/// this is dropped.
#[derive(Debug)]
pub struct BucketServer {
    address: SocketAddr,
    directory: tempfile::TempDir,
    state: Arc<State>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

#[derive(Debug)]
struct State {
    service: S3Service,
    /// The same without a look at who asks: a request that lost its conditions has another signature.
    open: S3Service,
    manners: Mutex<Manners>,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Seen>,
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// What came since the last look.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Requests by method.
    pub requests: HashMap<Method, u64>,
    /// Faults that happened.
    pub fired: u64,
    /// PUTs that told a SHA-256 of their body.
    pub checksums: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BucketServer {
    /// Starts one on a free port, with one empty bucket.
    ///
    /// # Errors
    /// Of the system.
    pub fn start(manners: Manners) -> std::io::Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::create_dir(directory.path().join(BUCKET))?;
        let files = || {
            s3s_fs::FileSystem::new(directory.path())
                .map_err(|error| std::io::Error::other(format!("{error:?}")))
        };
        let mut service = S3ServiceBuilder::new(files()?);
        service.set_auth(SimpleAuth::from_single(KEYS.0, KEYS.1));
        let state = Arc::new(State {
            service: service.build(),
            open: S3ServiceBuilder::new(files()?).build(),
            manners: Mutex::new(manners),
            rules: Mutex::default(),
            seen: Mutex::default(),
            locks: Mutex::default(),
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else {
                    return;
                };
                tokio::select! {
                    () = serve(listener, served) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        Ok(Self {
            address,
            directory,
            state,
            _stop: stop,
        })
    }

    /// Where it listens.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The bucket's objects as files.
    pub fn files(&self) -> PathBuf {
        self.directory.path().join(BUCKET)
    }

    /// Settings for the bucket, with credentials in a file that is written here.
    ///
    /// # Errors
    /// Of the system; of the settings never.
    pub fn settings(&self) -> std::io::Result<S3Settings> {
        self.write_keys(KEYS.1)?;
        let endpoint = self.endpoint();
        let given = Given {
            bucket: Some(BUCKET),
            endpoint: Some(&endpoint),
            ..Given::default()
        };
        let settings = S3Settings::resolve(&given, |_| None).map_err(std::io::Error::other)?;
        Ok(settings.with_profile_file(self.keys_file()))
    }

    /// Writes the file of credentials with another secret.
    ///
    /// # Errors
    /// Of the system.
    pub fn write_keys(&self, secret: &str) -> std::io::Result<()> {
        let text = format!(
            "[default]\naws_access_key_id = {}\naws_secret_access_key = {secret}\n",
            KEYS.0
        );
        std::fs::write(self.keys_file(), text)
    }

    fn keys_file(&self) -> PathBuf {
        let root: &Path = self.directory.path();
        root.join(".keys")
    }

    /// Sets what becomes of conditions from now on.
    pub fn behave(&self, manners: Manners) {
        *lock(&self.state.manners) = manners;
    }

    /// Lets requests fail; earlier rules stay and come first.
    pub fn fail(&self, rule: Rule) {
        self.failing().fail(rule);
    }

    /// The same for a task of its own.
    pub fn failing(&self) -> Failing {
        Failing(Arc::clone(&self.state))
    }

    /// Nothing fails any more.
    pub fn mend(&self) {
        lock(&self.state.rules).clear();
    }

    /// What came since the last call.
    pub fn seen(&self) -> Seen {
        std::mem::take(&mut *lock(&self.state.seen))
    }
}

/// Lets requests of a server fail.
#[derive(Clone, Debug)]
pub struct Failing(Arc<State>);

impl Failing {
    /// As [`BucketServer::fail`].
    pub fn fail(&self, rule: Rule) {
        let mut rules = lock(&self.0.rules);
        rules.retain(|rule| rule.times > 0);
        rules.push(rule);
    }

    /// Nothing fails any more.
    pub fn mend(&self) {
        lock(&self.0.rules).clear();
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    // Connections end with the server.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            continue;
        };
        let _ = socket.set_nodelay(true);
        let state = Arc::clone(&state);
        let answer = move |request| {
            let state = Arc::clone(&state);
            async move { state.answer(request).await }
        };
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(socket), hyper::service::service_fn(answer));
        connections.spawn(async move {
            // One that is cut on purpose ends with an error.
            let _ended = connection.await;
        });
    }
}

/// Ends the connection.
#[derive(Debug, thiserror::Error)]
#[error("cut")]
struct Cut;

impl State {
    fn fault(&self, request: &Request<Incoming>) -> Option<Fault> {
        let mut rules = lock(&self.rules);
        let meets = |rule: &&mut Rule| {
            rule.method == *request.method() && request.uri().path().contains(rule.path)
        };
        for rule in rules.iter_mut().filter(|rule| rule.times > 0).filter(meets) {
            if rule.after > 0 {
                rule.after -= 1;
                continue;
            }
            rule.times = rule.times.saturating_sub(1);
            lock(&self.seen).fired += 1;
            return Some(rule.fault);
        }
        None
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Cut> {
        {
            let mut seen = lock(&self.seen);
            *seen.requests.entry(request.method().clone()).or_default() += 1;
            seen.checksums += u64::from(request.headers().contains_key("x-amz-checksum-sha256"));
        }
        let fault = self.fault(&request);
        match fault {
            Some(Fault::Before(status, code)) => return Ok(error(status, code)),
            Some(Fault::CutBefore) => return Err(Cut),
            _ => {}
        }
        let manners = *lock(&self.manners);
        let headers = request.headers_mut();
        let conditional = headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH);
        if manners == Manners::Deaf {
            for ignored in [IF_MATCH, IF_NONE_MATCH, AUTHORIZATION] {
                headers.remove(ignored);
            }
        }
        let path = request.uri().path().to_owned();
        let guard = match conditional && manners == Manners::Careful {
            true => Some(Arc::clone(lock(&self.locks).entry(path).or_default())),
            false => None,
        };
        let held = match &guard {
            Some(guard) => Some(guard.lock().await),
            None => None,
        };
        let service = match manners {
            Manners::Deaf => &self.open,
            Manners::Careful | Manners::Racing => &self.service,
        };
        let answer = service.call(request.map(Body::from)).await;
        drop(held);
        let answer = answer.map_err(|_failed| Cut)?;
        match fault {
            None | Some(Fault::Before(..) | Fault::CutBefore) => Ok(answer),
            Some(Fault::After(status, code)) => Ok(error(status, code)),
            Some(Fault::CutAfter) => Err(Cut),
            Some(Fault::Silent) => std::future::pending().await,
            Some(Fault::Short | Fault::Flipped | Fault::Drip(_)) => spoilt(answer, fault).await,
        }
    }
}

fn error(status: u16, code: &str) -> Response<Body> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>on demand</Message></Error>"
    );
    let body = match code {
        "" => Body::empty(),
        _ => Body::from(text),
    };
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/xml")
        .body(body)
        .unwrap_or_default()
}

/// The same answer with another body.
async fn spoilt(answer: Response<Body>, fault: Option<Fault>) -> Result<Response<Body>, Cut> {
    let (mut head, mut body) = answer.into_parts();
    let whole = body.store_all_limited(1 << 30).await;
    let whole = whole.map_err(|_failed| Cut)?.to_vec();
    head.headers.insert(CONTENT_LENGTH, whole.len().into());
    let pieces: Vec<Result<Frame<Bytes>, std::io::Error>> = match fault {
        Some(Fault::Short) => {
            let half = Bytes::copy_from_slice(&whole[..whole.len() / 2]);
            vec![Ok(Frame::data(half)), Err(std::io::Error::other("cut"))]
        }
        Some(Fault::Drip(_)) => whole
            .chunks(whole.len().div_ceil(8).max(1))
            .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
            .collect(),
        _ => {
            let mut whole = whole;
            if let Some(byte) = whole.last_mut() {
                *byte ^= 1;
            }
            vec![Ok(Frame::data(whole.into()))]
        }
    };
    let pause = match fault {
        Some(Fault::Drip(pause)) => pause,
        _ => Duration::ZERO,
    };
    let pieces = stream::iter(pieces).then(move |piece| async move {
        tokio::time::sleep(pause).await;
        piece
    });
    let body = Body::http_body_unsync(http_body_util::StreamBody::new(pieces));
    Ok(Response::from_parts(head, body))
}
