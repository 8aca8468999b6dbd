//! Who we are to the bucket. One identity for both libraries: static keys, a profile, web identity, the role of a
//! container or instance, in the usual order.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_s3::config::Region;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::sync::watch;

use super::S3Settings;
use crate::error::chain;

/// Servers that give credentials may be slow; one that does not answer at all is told.
const WITHIN: Duration = Duration::from_secs(30);

/// Keys are asked for anew so long before they end.
const EARLY: Duration = Duration::from_secs(300);

/// Nobody told who we are.
#[derive(Debug, thiserror::Error)]
#[error(
    "no AWS credentials: {0}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the machine a role"
)]
pub(super) struct NoIdentity(pub(super) String);

/// What is known until it ends, or is refused. Shared by clones, and by the task that asks.
#[derive(Clone, Debug)]
pub(super) struct Identity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    region: String,
    profile_file: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct State {
    known: Option<Credentials>,
    /// The server refused it.
    refused: bool,
    /// Somebody asks already: he outlives the request that made him ask.
    loading: Option<watch::Receiver<Option<Loaded>>>,
}

type Loaded = Result<Credentials, String>;

impl Identity {
    pub(super) fn new(settings: &S3Settings) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            region: settings.region.clone(),
            profile_file: settings.profile_file.clone(),
        }))
    }

    /// The server refused it: the next request looks again.
    pub(super) fn forget(&self) {
        self.0.state().refused = true;
    }

    /// Requests wait for whoever gives credentials.
    pub(super) fn is_loading(&self) -> bool {
        self.0.state().loading.is_some()
    }

    async fn credentials(&self) -> Result<Credentials, NoIdentity> {
        let mut loading = {
            let mut state = self.0.state();
            let early = SystemTime::now() + EARLY;
            if let Some(known) = state.usable(early) {
                return Ok(known);
            }
            match &state.loading {
                Some(loading) => loading.clone(),
                None => {
                    let (tell, loading) = watch::channel(None);
                    state.loading = Some(loading.clone());
                    let inner = Arc::clone(&self.0);
                    tokio::spawn(async move { tell.send(Some(inner.renew().await)) });
                    loading
                }
            }
        };
        let told = loading.wait_for(Option::is_some).await;
        let loaded = match told.ok().as_deref() {
            Some(Some(loaded)) => loaded.clone(),
            Some(None) | None => Err("the task that asks for them died".to_owned()),
        };
        // What still holds is better than nothing.
        loaded.or_else(|why| {
            let known = self.0.state().usable(SystemTime::now());
            known.ok_or(NoIdentity(why))
        })
    }
}

impl State {
    /// What is known, not refused, and holds beyond a moment.
    fn usable(&self, until: SystemTime) -> Option<Credentials> {
        let known = self.known.as_ref().filter(|_| !self.refused)?;
        known
            .expiry()
            .is_none_or(|end| end > until)
            .then(|| known.clone())
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn renew(&self) -> Loaded {
        let loaded = match tokio::time::timeout(WITHIN, self.load()).await {
            Ok(loaded) => loaded.map_err(|error| chain(&error)),
            Err(_elapsed) => Err(format!("no answer within {} s", WITHIN.as_secs())),
        };
        let mut state = self.state();
        state.loading = None;
        if let Ok(credentials) = &loaded {
            state.known = Some(credentials.clone());
            state.refused = false;
        }
        loaded
    }

    /// Made anew each time: providers read files once only.
    async fn load(&self) -> Result<Credentials, CredentialsError> {
        match &self.profile_file {
            Some(path) => {
                let files = EnvConfigFiles::builder()
                    .with_file(EnvConfigFileKind::Credentials, path)
                    .build();
                let profiles = ProfileFileCredentialsProvider::builder().profile_files(files);
                profiles.build().provide_credentials().await
            }
            None => {
                let region = Region::new(self.region.clone());
                let chain = DefaultCredentialsChain::builder().region(region);
                chain.build().await.provide_credentials().await
            }
        }
    }
}

/// The identity as the SDK asks for it.
#[derive(Debug)]
pub(super) struct ForSdk(pub(super) Identity);

impl ProvideCredentials for ForSdk {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            self.0
                .credentials()
                .await
                .map_err(CredentialsError::provider_error)
        })
    }
}

#[async_trait::async_trait]
impl CredentialProvider for Identity {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let found = self.credentials().await;
        let found = found.map_err(|error| object_store::Error::Generic {
            store: "S3",
            source: error.into(),
        })?;
        Ok(Arc::new(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        }))
    }
}
