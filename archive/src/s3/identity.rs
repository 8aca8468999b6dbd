//! Who we are to the bucket. One identity for both libraries: static keys, a profile, web identity, the role of a
//! container or instance, in the usual order.

use std::sync::Arc;
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
use tokio::sync::Mutex;

use super::S3Settings;

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

/// What is known until it ends, or is refused.
#[derive(Debug)]
pub(super) struct Identity {
    known: Mutex<Option<Credentials>>,
    refused: std::sync::atomic::AtomicBool,
    region: String,
    profile_file: Option<std::path::PathBuf>,
}

impl Identity {
    pub(super) fn new(settings: &S3Settings) -> Self {
        Self {
            known: Mutex::new(None),
            refused: std::sync::atomic::AtomicBool::new(false),
            region: settings.region.clone(),
            profile_file: settings.profile_file.clone(),
        }
    }

    /// The server refused it: the next request looks again.
    pub(super) fn forget(&self) {
        self.refused
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }

    async fn credentials(&self) -> Result<Credentials, NoIdentity> {
        let mut known = self.known.lock().await;
        let refused = self
            .refused
            .swap(false, std::sync::atomic::Ordering::Relaxed);
        let holds = |it: &Credentials| {
            let end = it.expiry();
            end.is_none_or(|end| end > SystemTime::now() + EARLY)
        };
        if let Some(credentials) = known.as_ref().filter(|it| !refused && holds(it)) {
            return Ok(credentials.clone());
        }
        let loaded = tokio::time::timeout(WITHIN, self.load()).await;
        let loaded = loaded
            .map_err(|_elapsed| NoIdentity(format!("no answer within {} s", WITHIN.as_secs())))?
            .map_err(|error| NoIdentity(chain(&error)))?;
        *known = Some(loaded.clone());
        Ok(loaded)
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

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// The identity as the SDK asks for it.
#[derive(Debug)]
pub(super) struct ForSdk(pub(super) Arc<Identity>);

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
