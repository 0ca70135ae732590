//! A connection that is kept: one request after another over TLS, by one thread. No library, so that the time on the
//! clock is the server's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{self, AddressFamily, SocketType};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tls_client::Anybody;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who is asked, and how.
#[derive(Clone)]
pub(crate) struct Server {
    address: SocketAddr,
    /// Address of this machine that connections come from.
    from: Ipv4Addr,
    token: Option<String>,
    tls: Arc<ClientConfig>,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// A connection to a server.
pub(crate) struct Connection {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
    token: Option<String>,
}

impl Server {
    /// A server at a port of this machine; with a token, for whoever asks who we are.
    pub(crate) fn new(port: u16, token: Option<String>) -> anyhow::Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Anybody::new(provider))
            .with_no_client_auth();
        Ok(Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            from: Ipv4Addr::LOCALHOST,
            token,
            tls: Arc::new(tls),
        })
    }

    /// The same server for another client.
    pub(crate) fn from(self, from: Ipv4Addr) -> Self {
        Self { from, ..self }
    }

    /// Connects, handshake included.
    pub(crate) fn connect(&self) -> anyhow::Result<Connection> {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        net::bind(&socket, &SocketAddr::from((self.from, 0)))?;
        net::connect(&socket, &self.address)?;
        let tcp = TcpStream::from(socket);
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::from(self.address.ip());
        let mut tls = ClientConnection::new(Arc::clone(&self.tls), name)?;
        let mut handshake = &tcp;
        while tls.is_handshaking() {
            tls.complete_io(&mut handshake)?;
        }
        Ok(Connection {
            stream: BufReader::new(StreamOwned::new(tls, tcp)),
            token: self.token.clone(),
        })
    }
}

impl Connection {
    /// Begins a request and does not end it.
    pub(crate) fn begin(&mut self) -> anyhow::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(b"POST /mutate-pods HTTP/1.1\r\n")?;
        Ok(stream.flush()?)
    }

    /// Sends a request and reads the whole answer.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        kind: &str,
        body: &[u8],
    ) -> anyhow::Result<Answer> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n",
            body.len()
        );
        if let Some(token) = &self.token {
            request.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        let stream = self.stream.get_mut();
        stream.write_all(&request)?;
        stream.flush()?;
        self.read()
    }

    fn read(&mut self) -> anyhow::Result<Answer> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.context("the answer is not HTTP")?;
        let mut length = None;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok();
            }
        }
        let body = match length {
            Some(length) => self.take(length)?,
            None => self.chunks()?,
        };
        Ok(Answer { status, body })
    }

    fn chunks(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let length = usize::from_str_radix(line.trim(), 16).context("the answer has no length")?;
            body.extend(self.take(length)?);
            self.line()?;
            if length == 0 {
                return Ok(body);
            }
        }
    }

    fn take(&mut self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the server closed the connection");
        }
        Ok(line.trim_end().to_owned())
    }
}
