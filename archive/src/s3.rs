//! The bucket backend. See `designs/010-s3-store.md`.
//!
//! One write is one request: the libraries below do not retry, for a second attempt of a conditional write is answered
//! by what the first one did. What an answer means stands in [`answer`], and nowhere else.

mod answer;
mod identity;
mod settings;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aws_sdk_s3::config::retry::RetryConfig as SdkRetries;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{BehaviorVersion, IdentityCache, Region};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, GetResult, ObjectStore as _, PutMode, PutOptions,
    RetryConfig, UpdateVersion,
};

use crate::error::ArchiveError;
use crate::layout::Key;
use crate::store::{Create, Problem, Store, StoreError, StoreFuture, Swap, Version, Versioned};

use answer::{Answer, Unclear};
use identity::Identity;
pub use settings::{Given, S3Settings};

/// Until a connection stands.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A request on a link that is slower than this is taken for a dead one.
const BYTES_PER_SECOND: u64 = 128 << 10;

/// Pauses between attempts begin with this one, and attempts begin within that time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const QUICK: Duration = Duration::from_millis(600);

/// Idle connections are closed by servers too; one that is younger than this is likely to stand.
const IDLE: Duration = Duration::from_secs(15);

/// Objects in a bucket.
#[derive(Clone, Debug)]
pub struct S3Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Makes every call of [`Store`] but two.
    objects: AmazonS3,
    /// Lists and deletes: there the other one hides what a name is, or asks for more than this.
    sdk: aws_sdk_s3::Client,
    identity: Identity,
    bucket: String,
    /// Before every key, with its slash; or nothing.
    prefix: String,
    answers_within: Duration,
    /// Endpoint and bucket.
    place: String,
}

impl S3Store {
    /// A store in a bucket. Nothing is asked yet.
    ///
    /// # Errors
    /// When the settings are none that can work.
    pub fn new(settings: &S3Settings) -> Result<Self, ArchiveError> {
        let identity = Identity::new(settings);
        let unfit = |error: object_store::Error| ArchiveError::Unsupported {
            what: format!("the S3 settings do not fit together: {error}"),
            next: "look at bucket, endpoint and region",
        };
        let options = ClientOptions::new()
            .with_allow_http(settings.is_plain_http())
            .with_connect_timeout(CONNECT_WITHIN)
            .with_pool_idle_timeout(IDLE)
            // Each call has a limit of its own, by its size.
            .with_timeout_disabled();
        let retries = RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        };
        let credentials = Arc::new(identity.clone());
        let mut objects = AmazonS3Builder::new()
            .with_bucket_name(&settings.bucket)
            .with_region(&settings.region)
            .with_credentials(credentials)
            .with_checksum_algorithm(Checksum::SHA256)
            .with_client_options(options)
            .with_retry(retries);
        let limits = TimeoutConfig::builder()
            .connect_timeout(CONNECT_WITHIN)
            .operation_attempt_timeout(settings.answers_within)
            .build();
        let mut sdk = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new(settings.region.clone()))
            .credentials_provider(identity::ForSdk(identity.clone()))
            // The identity keeps what it knows, for both.
            .identity_cache(IdentityCache::no_cache())
            .retry_config(SdkRetries::disabled())
            .timeout_config(limits);
        if let Some(endpoint) = &settings.endpoint {
            objects = objects.with_endpoint(endpoint);
            sdk = sdk.endpoint_url(endpoint).force_path_style(true);
        }
        Ok(Self(Arc::new(Inner {
            objects: objects.build().map_err(unfit)?,
            sdk: aws_sdk_s3::Client::from_conf(sdk.build()),
            identity,
            bucket: settings.bucket.clone(),
            prefix: settings.prefix.clone(),
            answers_within: settings.answers_within,
            place: settings.place(),
        })))
    }
}

impl Inner {
    fn name(&self, key: &Key) -> String {
        format!("{}{key}", self.prefix)
    }

    fn path(&self, key: &Key) -> Path {
        Path::from(self.name(key))
    }

    /// How long a request of this many bytes may take.
    fn allowance(&self, bytes: u64) -> Duration {
        self.answers_within + Duration::from_secs(bytes / BYTES_PER_SECOND)
    }

    /// Waits for one request, but not for ever.
    async fn within<T, E: Into<Unclear>>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Unclear> {
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_elapsed) if self.identity.is_loading() => Err(Unclear::nobody(limit)),
            Err(_elapsed) => Err(Unclear::late(limit)),
        }
    }

    /// An answer that is none of those a caller decides by.
    fn failed(&self, action: &'static str, key: &Key, unclear: Unclear) -> StoreError {
        let problem = unclear.problem();
        if problem == Problem::Unauthorized {
            // Keys that were changed meanwhile are read for the next request.
            self.identity.forget();
        }
        StoreError::new(action, key, problem, Some(unclear.into_io()))
    }

    async fn put(&self, key: &Key, mode: PutMode, bytes: Bytes) -> Result<Option<String>, Unclear> {
        let limit = self.allowance(bytes.len() as u64);
        let path = self.path(key);
        let options = PutOptions::from(mode);
        let put = self.objects.put_opts(&path, bytes.into(), options);
        let put = self.within(limit, put).await?;
        Ok(put.e_tag)
    }

    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Create, StoreError> {
        match self.put(key, PutMode::Create, bytes).await {
            Ok(_etag) => Ok(Create::Created),
            Err(unclear) => match unclear.answer() {
                // Perhaps only a race that nobody won yet: the caller reads back.
                Answer::Taken | Answer::Conflict => Ok(Create::Exists),
                Answer::Absent | Answer::Other => Err(self.failed("create", key, unclear)),
            },
        }
    }

    async fn compare_and_set(
        &self,
        key: &Key,
        expected: Option<Version>,
        bytes: Bytes,
    ) -> Result<Swap, StoreError> {
        let mode = match expected {
            None => PutMode::Create,
            Some(Version(etag)) => PutMode::Update(UpdateVersion {
                e_tag: Some(etag),
                version: None,
            }),
        };
        match self.put(key, mode, bytes).await {
            Ok(Some(etag)) => Ok(Swap::Done(Version(etag))),
            Ok(None) => Err(self.failed("replace", key, Unclear::no_version())),
            Err(unclear) => match unclear.answer() {
                Answer::Taken | Answer::Absent => Ok(Swap::Lost),
                // Nobody may have won: to be looked at again.
                Answer::Conflict | Answer::Other => Err(self.failed("replace", key, unclear)),
            },
        }
    }

    /// Asks for an object, or the start of it; none where there is no such object. Not by HEAD, whose answer cannot say
    /// what is absent.
    async fn ask(
        &self,
        key: &Key,
        range: Option<GetRange>,
    ) -> Result<Option<GetResult>, StoreError> {
        let path = self.path(key);
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let asked = self.objects.get_opts(&path, options);
        match self.within(self.answers_within, asked).await {
            Ok(found) => Ok(Some(found)),
            Err(unclear) if unclear.answer() == Answer::Absent => Ok(None),
            Err(unclear) => Err(self.failed("read", key, unclear)),
        }
    }

    /// The object, or the start of it, with its version.
    async fn read(
        &self,
        key: &Key,
        range: Option<GetRange>,
        limit: u64,
    ) -> Result<Option<Versioned>, StoreError> {
        let failed = |unclear| self.failed("read", key, unclear);
        let Some(found) = self.ask(key, range).await? else {
            return Ok(None);
        };
        let len = found.range.end.saturating_sub(found.range.start);
        if len > limit {
            return Err(StoreError::new("read", key, Problem::TooLong, None));
        }
        let etag = found.meta.e_tag.clone();
        let read = body(found, len, self.answers_within);
        let bytes = self.within(self.allowance(len), read).await;
        Ok(Some(Versioned {
            bytes: bytes.map_err(failed)?,
            version: Version(etag.ok_or_else(|| failed(Unclear::no_version()))?),
        }))
    }

    /// Names directly under a directory, in order, each with its object's length.
    async fn names(
        &self,
        directory: &Key,
        after: Option<&str>,
    ) -> Result<Vec<(String, u64)>, StoreError> {
        let root = format!("{}/", self.name(directory));
        let mut pages = self
            .sdk
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(&root)
            .delimiter("/")
            .set_start_after(after.map(|after| format!("{root}{after}")))
            .into_paginator()
            .send();
        let mut names = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| self.failed("list", directory, error.into()))?;
            let length = |bytes: Option<i64>| bytes.and_then(|it| u64::try_from(it).ok());
            let objects = page.contents().iter().filter_map(|it| {
                let name = it.key()?.strip_prefix(&root)?;
                Some((name.to_owned(), length(it.size()).unwrap_or(0)))
            });
            names.extend(objects);
            let directories = page.common_prefixes().iter().filter_map(|it| {
                let name = it.prefix()?.strip_prefix(&root)?;
                Some((name.trim_end_matches('/').to_owned(), 0))
            });
            names.extend(directories);
        }
        let is_wanted = |(name, _): &(String, u64)| {
            let is_name = !name.is_empty() && !name.starts_with('.');
            is_name && after.is_none_or(|after| name.as_str() > after)
        };
        names.retain(is_wanted);
        // Pages and their parts come in any order.
        names.sort_unstable();
        names.dedup_by(|a, b| a.0 == b.0);
        Ok(names)
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        let deleted = self
            .sdk
            .delete_object()
            .bucket(&self.bucket)
            .key(self.name(key))
            .send()
            .await;
        match deleted.map_err(Unclear::from) {
            Ok(_) => Ok(()),
            Err(unclear) if unclear.answer() == Answer::Absent => Ok(()),
            Err(unclear) => Err(self.failed("delete", key, unclear)),
        }
    }
}

/// What may be asked twice is asked again when a first answer was a quick no: a hiccup is no outage, and who waited long
/// for one goes back to his caller.
async fn again_if_quick<T, F>(mut ask: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match ask().await {
            Err(error) if error.problem == Problem::Unavailable && begun.elapsed() < QUICK => {
                tracing::debug!(error = %error, "asked again");
            }
            answer => return answer,
        }
        tokio::time::sleep(pause).await;
        pause *= 4;
    }
}

/// Exactly `len` bytes, each piece of them within a time.
async fn body(found: GetResult, len: u64, piece_within: Duration) -> Result<Bytes, Unclear> {
    let mut stream = found.into_stream();
    let mut whole = BytesMut::new();
    loop {
        let next = tokio::time::timeout(piece_within, stream.next()).await;
        let Some(piece) = next.map_err(|_elapsed| Unclear::late(piece_within))? else {
            break;
        };
        let piece = piece?;
        if piece.len() as u64 == len {
            return Ok(piece);
        }
        // A server that says less than it sends gets no more memory than it said.
        if whole.len() as u64 + piece.len() as u64 > len {
            return Err(Unclear::wrong_length(len));
        }
        whole.extend_from_slice(&piece);
    }
    match whole.len() as u64 == len {
        true => Ok(whole.freeze()),
        false => Err(Unclear::wrong_length(len)),
    }
}

impl Store for S3Store {
    fn create(&self, key: &Key, bytes: Bytes) -> StoreFuture<'_, Create> {
        let key = key.clone();
        Box::pin(async move { self.0.create(&key, bytes).await })
    }

    /// What S3 answered is durable.
    fn settle(&self, _key: &Key) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn get(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Bytes>> {
        let key = key.clone();
        Box::pin(async move {
            let found = again_if_quick(|| self.0.read(&key, None, limit)).await?;
            Ok(found.map(|found| found.bytes))
        })
    }

    fn get_start(&self, key: &Key, len: usize) -> StoreFuture<'_, Option<Bytes>> {
        let key = key.clone();
        Box::pin(async move {
            let len = len as u64;
            let range = Some(GetRange::Bounded(0..len));
            let found = again_if_quick(|| self.0.read(&key, range.clone(), len)).await?;
            Ok(found.map(|found| found.bytes))
        })
    }

    fn list(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, Vec<String>> {
        let (directory, after) = (directory.clone(), after.map(str::to_owned));
        Box::pin(async move {
            let names = again_if_quick(|| self.0.names(&directory, after.as_deref())).await?;
            Ok(names.into_iter().map(|(name, _)| name).collect())
        })
    }

    fn weigh(&self, directory: &Key, after: Option<&str>) -> StoreFuture<'_, u64> {
        let (directory, after) = (directory.clone(), after.map(str::to_owned));
        Box::pin(async move {
            let names = again_if_quick(|| self.0.names(&directory, after.as_deref())).await?;
            Ok(names.iter().map(|(_, bytes)| bytes).sum())
        })
    }

    fn get_versioned(&self, key: &Key, limit: u64) -> StoreFuture<'_, Option<Versioned>> {
        let key = key.clone();
        Box::pin(async move { again_if_quick(|| self.0.read(&key, None, limit)).await })
    }

    fn compare_and_set(
        &self,
        key: &Key,
        expected: Option<&Version>,
        bytes: Bytes,
    ) -> StoreFuture<'_, Swap> {
        let (key, expected) = (key.clone(), expected.cloned());
        Box::pin(async move { self.0.compare_and_set(&key, expected, bytes).await })
    }

    fn place(&self) -> Option<String> {
        Some(self.0.place.clone())
    }

    fn modified(&self, key: &Key) -> StoreFuture<'_, Option<SystemTime>> {
        let key = key.clone();
        Box::pin(async move {
            let start = Some(GetRange::Bounded(0..1));
            let found = again_if_quick(|| self.0.ask(&key, start.clone())).await?;
            Ok(found.map(|found| found.meta.last_modified.into()))
        })
    }

    fn delete(&self, key: &Key) -> StoreFuture<'_, ()> {
        let key = key.clone();
        Box::pin(async move { again_if_quick(|| self.0.delete(&key)).await })
    }
}
