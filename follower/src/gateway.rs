//! A connection to a gateway: how it is made, and what is asked over it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rindle_proto::body::Attempt;
use rindle_proto::ids::{Generation, SourceName};
use rindle_proto::rpc::frames_client::FramesClient;
use rindle_proto::rpc::subscribe_reply::Reply;
use rindle_proto::rpc::{FetchBulkRequest, SubscribeReply, SubscribeRequest};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};

use crate::config::{ClientTls, SourceSettings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What the gateway may have under way towards us: enough that a round trip is no limit.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// Longest message; pieces are at most 1 MiB.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Longest bulk object that is taken into memory.
const MAX_BULK_BYTES: usize = 1 << 30;

/// Why nothing comes from a gateway.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    /// No connection.
    #[error("cannot connect")]
    Connect(#[source] tonic::transport::Error),
    /// What is configured makes no connection.
    #[error("sources[0]: {0}")]
    Config(String),
    /// It refused or broke off.
    #[error("{}", words(.0))]
    Status(Box<Status>),
    /// It sent what makes no sense.
    #[error("it sent {0}")]
    Protocol(String),
}

/// A refused handshake shows only as a stream that ends before it began.
fn words(status: &Status) -> String {
    match status.code() {
        Code::Cancelled => "the connection was closed before an answer came; when the gateway asks for client certificates \
                            (tls.clientCa), set tls.cert and tls.key"
            .to_owned(),
        code => format!("{} ({code})", status.message()),
    }
}

impl From<Status> for GatewayError {
    fn from(status: Status) -> Self {
        GatewayError::Status(Box::new(status))
    }
}

/// Connects to one gateway after another.
#[derive(Clone, Debug)]
pub(crate) struct Gateways {
    source: SourceName,
    urls: Vec<String>,
    token: Option<MetadataValue<Ascii>>,
    tls: Option<ClientTls>,
}

impl Gateways {
    pub(crate) fn new(settings: &SourceSettings) -> Result<Self, GatewayError> {
        let token = settings.auth_token.as_ref().map(|token| {
            let mut value = MetadataValue::try_from(format!("Bearer {}", token.expose()))?;
            value.set_sensitive(true);
            Ok::<_, tonic::metadata::errors::InvalidMetadataValue>(value)
        });
        let token = token.transpose().map_err(|_bytes| {
            GatewayError::Config("authToken holds characters that no header may have".to_owned())
        })?;
        Ok(Self {
            source: settings.name.clone(),
            urls: settings.urls.clone(),
            token,
            tls: settings.tls.clone(),
        })
    }

    /// The gateway to try at the `attempt`th time.
    pub(crate) fn url(&self, attempt: usize) -> &str {
        &self.urls[attempt % self.urls.len()]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.urls.is_empty()
    }

    /// Everything about a connection that can be known before it is made.
    async fn endpoint(&self, url: &str) -> Result<Endpoint, GatewayError> {
        let config = |error: &dyn std::error::Error| {
            GatewayError::Config(format!("{url}: {}", sentence(error)))
        };
        let endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(|error| config(&error))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .tcp_nodelay(true);
        match url.starts_with("https://") {
            true => {
                let tls = self.tls().await?;
                endpoint.tls_config(tls).map_err(|error| config(&error))
            }
            false => Ok(endpoint),
        }
    }

    pub(crate) async fn connect(&self, url: &str) -> Result<Gateway, GatewayError> {
        let endpoint = self.endpoint(url).await?;
        let channel = endpoint.connect().await.map_err(GatewayError::Connect)?;
        let client = FramesClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Gateway {
            client,
            source: self.source.clone(),
            token: self.token.clone(),
        })
    }

    /// Refuses what no attempt to connect could make anything of.
    pub(crate) async fn check(&self) -> Result<(), GatewayError> {
        for url in &self.urls {
            self.endpoint(url).await?;
        }
        Ok(())
    }

    async fn tls(&self) -> Result<ClientTlsConfig, GatewayError> {
        let read = async |path: &std::path::Path| {
            let read = tokio::fs::read(path).await;
            read.map_err(|error| GatewayError::Config(format!("tls: {}: {error}", path.display())))
        };
        let mut config = ClientTlsConfig::new();
        let Some(tls) = &self.tls else {
            return Ok(config.with_native_roots());
        };
        config = match &tls.ca {
            Some(ca) => config.ca_certificate(Certificate::from_pem(read(ca).await?)),
            None => config.with_native_roots(),
        };
        match (&tls.cert, &tls.key) {
            (Some(cert), Some(key)) => {
                Ok(config.identity(Identity::from_pem(read(cert).await?, read(key).await?)))
            }
            (None, None) => Ok(config),
            _ => Err(GatewayError::Config(
                "tls: cert and key go together".to_owned(),
            )),
        }
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    client: FramesClient<Channel>,
    source: SourceName,
    token: Option<MetadataValue<Ascii>>,
}

impl Gateway {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        request
    }

    pub(crate) async fn subscribe(
        &mut self,
        mut request: SubscribeRequest,
    ) -> Result<Streaming<SubscribeReply>, GatewayError> {
        request.source = self.source.to_string();
        let request = self.request(request);
        Ok(self.client.subscribe(request).await?.into_inner())
    }

    /// Which generation is served.
    pub(crate) async fn generation(&mut self) -> Result<Generation, GatewayError> {
        let mut replies = self.subscribe(SubscribeRequest::default()).await?;
        match replies.message().await?.and_then(|reply| reply.reply) {
            Some(Reply::Opened(opened)) => parse_generation(&opened.generation),
            _ => Err(GatewayError::Protocol("something before Opened".to_owned())),
        }
    }

    /// A bulk object as it stands in the archive.
    pub(crate) async fn bulk(
        &mut self,
        generation: Generation,
        attempt: Attempt,
        part: u32,
    ) -> Result<Bytes, GatewayError> {
        let request = self.request(FetchBulkRequest {
            generation: generation.to_string(),
            epoch: attempt.epoch.0,
            attempt: attempt.number,
            part,
        });
        let mut pieces = self.client.fetch_bulk(request).await?.into_inner();
        let mut object = BytesMut::new();
        while let Some(piece) = pieces.message().await? {
            if object.len() + piece.data.len() > MAX_BULK_BYTES {
                let what = format!("bulk part {part} of more than {MAX_BULK_BYTES} bytes");
                return Err(GatewayError::Protocol(what));
            }
            object.extend_from_slice(&piece.data);
        }
        Ok(object.freeze())
    }
}

pub(crate) fn parse_generation(text: &str) -> Result<Generation, GatewayError> {
    text.parse()
        .map_err(|error| GatewayError::Protocol(format!("a generation that is none: {error}")))
}

/// An error with its causes, for a sentence.
pub(crate) fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Layers of a library often repeat each other.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
