//! A persistent connection: one request after another over TLS, by one thread. Without a library, so that the measured
//! time is the server's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{self, AddressFamily, SocketType};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;
use tls_client::Anybody;

/// A timeout that no answer reaches.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The server, and the settings of the connection.
#[derive(Clone, Debug)]
pub struct Server {
    address: SocketAddr,
    /// Local address of connections.
    from: Ipv4Addr,
    token: Option<String>,
    tls: Arc<ClientConfig>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
    token: Option<String>,
}

/// Sends a request to a server without TLS at a local port.
pub fn plain(port: u16, path: &str) -> anyhow::Result<Answer> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(Answer {
        status: status.context("the answer is not HTTP")?,
        body: body.as_bytes().to_vec(),
    })
}

impl Server {
    /// Returns a server at a local port. With a token, requests are authenticated.
    pub fn new(port: u16, token: Option<String>) -> anyhow::Result<Self> {
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

    /// Returns the same server for another client.
    #[must_use]
    pub fn from(self, from: Ipv4Addr) -> Self {
        Self { from, ..self }
    }

    /// Connects, including the handshake.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        net::bind(&socket, &SocketAddr::from((self.from, 0)))?;
        net::connect(&socket, &self.address)?;
        let tcp = TcpStream::from(socket);
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(TIMEOUT))?;
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
    /// Starts a request without ending it.
    pub fn begin(&mut self, path: &str) -> anyhow::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(format!("POST {path} HTTP/1.1\r\n").as_bytes())?;
        Ok(stream.flush()?)
    }

    /// Sends a request and reads the whole answer.
    pub fn ask(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> anyhow::Result<Answer> {
        self.send(method, path, kind, body)?;
        let (status, length) = self.head()?;
        let body = match length {
            Some(length) => self.take(length)?,
            None => self.chunks()?,
        };
        Ok(Answer { status, body })
    }

    /// Sends an object to an API server. A refusal is an error.
    pub fn write(&mut self, method: &str, path: &str, object: &Value) -> anyhow::Result<Answer> {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let answer = self.ask(method, path, kind, object.to_string().as_bytes())?;
        if !(200..300).contains(&answer.status) {
            bail!("{method} {path}: {}", String::from_utf8_lossy(&answer.body));
        }
        Ok(answer)
    }

    /// Follows a streamed answer line by line, until `line` returns false.
    pub fn follow(
        &mut self,
        path: &str,
        mut line: impl FnMut(&[u8]) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        self.send("GET", path, "application/json", b"")?;
        let (status, length) = self.head()?;
        if status != 200 || length.is_some() {
            bail!("GET {path}: status {status}");
        }
        let mut unread = Vec::new();
        while let Some(chunk) = self.chunk()? {
            unread.extend(chunk);
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let rest = unread.split_off(end + 1);
                if !line(&unread)? {
                    return Ok(());
                }
                unread = rest;
            }
        }
        bail!("GET {path}: the server ended the answer")
    }

    fn send(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> anyhow::Result<()> {
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
        Ok(stream.flush()?)
    }

    /// Parses the status code, and the length of the body, if the head has it.
    fn head(&mut self) -> anyhow::Result<(u16, Option<usize>)> {
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
        Ok((status, length))
    }

    fn chunks(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk()? {
            body.extend(chunk);
        }
        Ok(body)
    }

    /// Returns the next chunk of a chunked answer, or `None` at its end.
    fn chunk(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let length = usize::from_str_radix(line.trim(), 16).context("the answer has no length")?;
        let chunk = self.take(length)?;
        self.line()?;
        Ok((length > 0).then_some(chunk))
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
