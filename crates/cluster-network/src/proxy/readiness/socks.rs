//! Connections through a SOCKS5 proxy (RFC 1928), without a login.

use std::io;
use std::net::IpAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const VERSION: u8 = 5;
const NO_LOGIN: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Connects to a name or address and a port by way of the proxy at `proxy`, which resolves the name.
pub(super) async fn connect(proxy: &str, host: &str, port: u16) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(proxy).await?;
    stream.write_all(&[VERSION, 1, NO_LOGIN]).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    if chosen != [VERSION, NO_LOGIN] {
        return Err(failed(format!("the SOCKS proxy {proxy} wants a login")));
    }
    let mut request = vec![VERSION, CONNECT, 0];
    match host.parse() {
        Ok(IpAddr::V4(address)) => {
            request.push(IPV4);
            request.extend(address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            request.push(IPV6);
            request.extend(address.octets());
        }
        Err(_) => {
            let length = u8::try_from(host.len()).map_err(|_| failed(format!("{host} is too long")))?;
            request.extend([NAME, length]);
            request.extend(host.bytes());
        }
    }
    request.extend(port.to_be_bytes());
    stream.write_all(&request).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    let [version, status, _, kind] = answer;
    if version != VERSION || status != 0 {
        let text = format!("the SOCKS proxy {proxy} did not connect to {host}:{port}: status {status}");
        return Err(failed(text));
    }
    // The address and port of the connection's other end follow.
    let length = match kind {
        IPV4 => 4,
        IPV6 => 16,
        _ => usize::from(stream.read_u8().await?),
    };
    let mut end = vec![0; length + 2];
    stream.read_exact(&mut end).await?;
    Ok(stream)
}

fn failed(text: String) -> io::Error {
    io::Error::other(text)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A proxy that expects this request and sends this answer, and then `hello`.
    async fn proxy(expected: Vec<u8>, answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut greeting = [0; 3];
            stream.read_exact(&mut greeting).await.expect("a greeting");
            assert_eq!(greeting, [5, 1, 0]);
            stream.write_all(&[5, 0]).await.expect("a client");
            let mut request = vec![0; expected.len()];
            stream.read_exact(&mut request).await.expect("a request");
            assert_eq!(request, expected);
            stream.write_all(answer).await.expect("a client");
            stream.write_all(b"hello").await.expect("a client");
        });
        address
    }

    // cluster-network#167
    #[tokio::test]
    async fn proxy_connects_to_names_and_addresses() {
        let name = [&[5, 1, 0, 3, 4][..], b"host", &[0x1f, 0x90]].concat();
        let v4 = vec![5, 1, 0, 1, 192, 0, 2, 1, 0x1f, 0x90];
        let v6 = [&[5, 1, 0, 4, 0x20, 1, 0xd, 0xb8][..], &[0; 11], &[1, 0x1f, 0x90]].concat();
        let by_name: &[u8] = &[5, 0, 0, 3, 2, b'a', b'b', 0, 1];
        let by_v4: &[u8] = &[5, 0, 0, 1, 10, 0, 0, 1, 0, 1];
        for (host, request, answer) in [
            ("host", name, by_v4),
            ("192.0.2.1", v4, by_name),
            ("2001:db8::1", v6, by_v4),
        ] {
            let proxy = proxy(request, answer).await;
            let mut stream = connect(&proxy, host, 8080).await.expect("a connection");
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.expect("an end");
            assert_eq!(rest, b"hello", "{host}");
        }
    }

    // cluster-network#167
    #[tokio::test]
    async fn refused_connection_names_its_target() {
        let request = vec![5, 1, 0, 1, 192, 0, 2, 1, 0, 80];
        let proxy = proxy(request, &[5, 5, 0, 1, 0, 0, 0, 0, 0, 0]).await;
        let error = connect(&proxy, "192.0.2.1", 80).await.expect_err("a refusal");
        assert_eq!(
            error.to_string(),
            format!("the SOCKS proxy {proxy} did not connect to 192.0.2.1:80: status 5")
        );
    }
}
