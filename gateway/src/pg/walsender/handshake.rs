//! From nothing to a session: socket, TLS, authentication.

use std::io;

use bytes::{Buf, BytesMut};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::error::WalError;
use super::reply::{notice, server_error};
use super::wire::{Socket, Wire};
use crate::pg::conn::{
    HostError, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_RETRIES, PINNED, Reason, SEND_TIMEOUT,
};
use crate::pg::endpoint::{Endpoint, Host, Password, Secret, SslMode};
use crate::pg::tls;

/// What the server tells about itself at the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Greeting {
    /// Process id of its end.
    pub(super) backend_pid: i32,
    /// Major version.
    pub(super) server_major: u32,
}

pub(super) async fn open(
    endpoint: &Endpoint,
    host: &Host,
    application_name: &str,
) -> Result<(Wire, Greeting), HostError> {
    let tls = if host.is_socket() {
        None
    } else {
        tls::client_config(&endpoint.tls)?
    };
    let password = endpoint.password.as_ref().map(Password::read).transpose();
    let password = password.map_err(Reason::Password)?;
    let session = async {
        let (socket, binding) = match tls {
            _ if host.is_socket() => (unix(host).await?, None),
            None => (Socket::Tcp(tcp(host).await?), None),
            Some(config) => encrypt(tcp(host).await?, host, config.into(), endpoint).await?,
        };
        let mut wire = Wire::new(socket);
        let mut startup = BytesMut::new();
        let parameters = [
            ("user", &*endpoint.user),
            ("database", &*endpoint.database),
            ("replication", "database"),
            ("application_name", application_name),
            ("client_encoding", "UTF8"),
            ("options", PINNED),
        ];
        frontend::startup_message(parameters, &mut startup)
            .map_err(WalError::io("encode the startup packet"))?;
        send(&mut wire, &startup).await?;
        let greeting = Authentication {
            endpoint,
            password,
            binding,
            scram: None,
            proved: false,
        }
        .run(&mut wire)
        .await?;
        wire.inbox.trust();
        Ok((wire, greeting))
    };
    session
        .await
        .map_err(|error: WalError| Reason::Session(error).into())
}

async fn unix(host: &Host) -> Result<Socket, WalError> {
    let path = format!("{}/.s.PGSQL.{}", host.name, host.port);
    let stream = UnixStream::connect(path)
        .await
        .map_err(WalError::io("connect to postgres"))?;
    Ok(Socket::Unix(stream))
}

async fn tcp(host: &Host) -> Result<TcpStream, WalError> {
    let doing = "connect to postgres";
    let stream = TcpStream::connect((&*host.name, host.port))
        .await
        .map_err(WalError::io(doing))?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    let socket = SockRef::from(&stream);
    let set = || -> io::Result<()> {
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(SEND_TIMEOUT))?;
        Ok(())
    };
    set().map_err(WalError::io("set up the socket to postgres"))?;
    Ok(stream)
}

async fn encrypt(
    mut stream: TcpStream,
    host: &Host,
    connector: TlsConnector,
    endpoint: &Endpoint,
) -> Result<(Socket, Option<Vec<u8>>), WalError> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream
        .write_all(&request)
        .await
        .map_err(WalError::io("ask postgres for TLS"))?;
    // Exactly one byte: more before the handshake would be somebody's injection.
    match stream
        .read_u8()
        .await
        .map_err(WalError::io("ask postgres for TLS"))?
    {
        b'S' => {}
        b'N' if endpoint.tls.mode == SslMode::Prefer => return Ok((Socket::Tcp(stream), None)),
        b'N' => return Err(WalError::NoTls),
        _ => return Err(WalError::unexpected("S or N after the request for TLS")),
    }
    let name = ServerName::try_from(host.name.clone())
        .map_err(|bad| WalError::Tls(io::Error::new(io::ErrorKind::InvalidInput, bad)))?;
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(WalError::Tls)?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let binding = certificates.first().and_then(tls::server_end_point);
    Ok((Socket::Tls(Box::new(stream)), binding))
}

struct Authentication<'a> {
    endpoint: &'a Endpoint,
    password: Option<Secret>,
    /// What binds SCRAM to this TLS connection.
    binding: Option<Vec<u8>>,
    scram: Option<ScramSha256>,
    /// SCRAM ended well.
    proved: bool,
}

impl Authentication<'_> {
    /// Answers the server until it is ready for the first command.
    async fn run(mut self, wire: &mut Wire) -> Result<Greeting, WalError> {
        let mut greeting = Greeting::default();
        loop {
            let mut answer = BytesMut::new();
            while let Some(message) = wire.inbox.next()? {
                match message.tag {
                    b'R' => self.answer(message.body, &mut answer)?,
                    b'S' => note_parameter(message.body, &mut greeting),
                    b'K' => {
                        let pid = message.body.first_chunk().copied();
                        greeting.backend_pid = pid.map_or(0, i32::from_be_bytes);
                    }
                    b'N' => notice(message.body),
                    b'E' => return Err(WalError::Server(Box::new(server_error(message.body)))),
                    // The server speaks an older minor version of the protocol: we ask for none newer.
                    b'v' => {}
                    b'Z' => return Ok(greeting),
                    _ => return Err(WalError::unexpected("authentication or a greeting")),
                }
            }
            match answer.is_empty() {
                true => wire.fill().await?,
                false => send(wire, &answer).await?,
            }
        }
    }

    fn answer(&mut self, request: &[u8], out: &mut BytesMut) -> Result<(), WalError> {
        let encode = WalError::io("encode a password");
        let (kind, rest) = request
            .split_first_chunk()
            .ok_or(WalError::unexpected("a kind of authentication"))?;
        match u32::from_be_bytes(*kind) {
            // A server that began SCRAM must end it: only then has it proved to know the password.
            0 if self.scram.is_some() && !self.proved => {
                Err(WalError::unexpected("the end of SCRAM"))
            }
            0 => Ok(()),
            3 => frontend::password_message(self.password()?.as_bytes(), out).map_err(encode),
            5 => {
                let salt = rest
                    .try_into()
                    .map_err(|_length| WalError::unexpected("a salt"))?;
                let user = self.endpoint.user.as_bytes();
                let hash = md5_hash(user, self.password()?.as_bytes(), salt);
                frontend::password_message(hash.as_bytes(), out).map_err(encode)
            }
            10 => self.begin_scram(rest, out),
            11 => {
                let scram = self.scram()?;
                scram
                    .update(rest)
                    .map_err(WalError::io("SCRAM with postgres"))?;
                frontend::sasl_response(scram.message(), out).map_err(encode)
            }
            12 => {
                self.scram()?
                    .finish(rest)
                    .map_err(WalError::io("SCRAM with postgres"))?;
                self.proved = true;
                Ok(())
            }
            7 | 8 => Err(WalError::Authentication {
                method: "GSSAPI".to_owned(),
            }),
            9 => Err(WalError::Authentication {
                method: "SSPI".to_owned(),
            }),
            other => Err(WalError::Authentication {
                method: format!("method {other}"),
            }),
        }
    }

    fn begin_scram(&mut self, offered: &[u8], out: &mut BytesMut) -> Result<(), WalError> {
        let offers = |mechanism: &str| {
            offered
                .split(|byte| *byte == 0)
                .any(|name| name == mechanism.as_bytes())
        };
        let (mechanism, binding) = match (self.binding.take(), offers(SCRAM_SHA_256_PLUS)) {
            (Some(hash), true) => (
                SCRAM_SHA_256_PLUS,
                ChannelBinding::tls_server_end_point(hash),
            ),
            // "We could, you cannot": lets the server notice that somebody took its offer away.
            (Some(_), false) => (SCRAM_SHA_256, ChannelBinding::unrequested()),
            (None, _) => (SCRAM_SHA_256, ChannelBinding::unsupported()),
        };
        if !offers(mechanism) {
            let names = String::from_utf8_lossy(offered);
            let method = names
                .split('\0')
                .filter(|name| !name.is_empty())
                .collect::<Vec<_>>();
            return Err(WalError::Authentication {
                method: method.join(" or "),
            });
        }
        let scram = ScramSha256::new(self.password()?.as_bytes(), binding);
        frontend::sasl_initial_response(mechanism, scram.message(), out)
            .map_err(WalError::io("encode a password"))?;
        self.scram = Some(scram);
        Ok(())
    }

    fn scram(&mut self) -> Result<&mut ScramSha256, WalError> {
        self.scram
            .as_mut()
            .ok_or(WalError::unexpected("the start of SCRAM"))
    }

    fn password(&self) -> Result<&str, WalError> {
        self.password
            .as_ref()
            .map(|it| it.expose())
            .ok_or(WalError::NoPassword)
    }
}

fn note_parameter(body: &[u8], greeting: &mut Greeting) {
    let mut words = body.split(|byte| *byte == 0);
    if let (Some(b"server_version"), Some(version)) = (words.next(), words.next()) {
        let digits: String = version
            .iter()
            .map(|byte| char::from(*byte))
            .take_while(char::is_ascii_digit)
            .collect();
        greeting.server_major = digits.parse().unwrap_or(0);
    }
}

async fn send(wire: &mut Wire, bytes: &BytesMut) -> Result<(), WalError> {
    wire.queue(bytes.chunk());
    wire.push().await
}
