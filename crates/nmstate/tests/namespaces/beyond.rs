//! The network beyond the wire: a gateway and name server at 192.0.2.1, in a namespace of its own; and a cluster that
//! holds every node for ready.

use std::convert::Infallible;
use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::http::{Request, Response};
use kube::Client;
use kube::client::Body;
use linux::netns::NetNs;
use linux::route::Socket;
use serde_json::{Value, json};
use weft_nmstate::apply::{Pipeline, Settings};
use weft_nmstate::engine::{Backend, Engine};
use weft_nmstate::failure::Failure;

use crate::host::wait;

/// Where the gateway is, which is the name server too.
pub(crate) const GATEWAY: &str = "192.0.2.1";
/// Another name server.
const NAME_SERVER: &str = "192.0.2.53";

/// The network beyond the wire.
#[derive(Debug)]
pub(crate) struct Beyond(pub(crate) NetNs);

impl Beyond {
    /// A network without a wire yet.
    pub(crate) fn new() -> Self {
        Self(NetNs::create_anonymous().unwrap())
    }

    /// A path that leads there from every process.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_fd().as_raw_fd())
    }

    /// Gives the far end of the wire the addresses of the gateway and of the name server, and answers every DNS
    /// question.
    pub(crate) fn serve(&self) {
        let sockets = self.0.run(|| {
            let mut socket = Socket::open().unwrap();
            let wire = socket.link_by_name("wire").unwrap();
            let sockets = [GATEWAY, NAME_SERVER].map(|address| {
                let net = format!("{address}/24").parse().unwrap();
                socket.add_address(&wire, net).unwrap();
                UdpSocket::bind((address, 53)).unwrap()
            });
            socket.set_up(&wire).unwrap();
            sockets
        });
        for names in sockets.unwrap() {
            std::thread::spawn(move || answer(&names));
        }
    }

    /// Leases an address, the gateway and a name server to every client on the wire; files are in `directory`.
    pub(crate) fn lease(&self, directory: &Path) -> Lease {
        let config = directory.join("udhcpd.conf");
        let leases = directory.join("leases");
        fs::write(&leases, "").unwrap();
        let lines = format!(
            "interface wire\nstart 192.0.2.100\nend 192.0.2.110\nlease_file {}\noption router {GATEWAY}\noption dns \
             {GATEWAY}\noption subnet 255.255.255.0\noption lease 3600\n",
            leases.display()
        );
        fs::write(&config, lines).unwrap();
        // It dies with the test, whatever becomes of that.
        let server = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "nsenter"])
            .arg(format!("--net={}", self.path()))
            .args(["busybox", "udhcpd", "-f"])
            .arg(&config)
            .stdout(Stdio::null())
            .spawn();
        Lease(server.unwrap())
    }
}

/// A DHCP server.
#[derive(Debug)]
pub(crate) struct Lease(Child);

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn answer(names: &UdpSocket) {
    let mut packet = [0; 512];
    while let Ok((length, from)) = names.recv_from(&mut packet) {
        let mut answer = packet[..length].to_vec();
        // An answer to one question with one record, whose content does not matter.
        answer[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1]);
        let _ = names.send_to(&answer, from);
    }
}

/// Changes the host as the handler does, with probes that soon give up.
pub(crate) fn apply(engine: &Engine, backend: Backend, desired: &Value) -> Result<String, Failure> {
    let settings = Settings {
        selection_timeout: Duration::from_secs(10),
        timeout: Duration::from_secs(15),
        pause: Duration::from_millis(500),
        backend,
        ..Settings::default()
    };
    wait(async {
        let pipeline = Pipeline::new(engine.clone(), cluster(), "node01".to_owned(), settings);
        pipeline.apply(desired).await
    })
}

/// An API server with a node that is ready.
fn cluster() -> Client {
    let service = tower::service_fn(|request: Request<Body>| async move {
        let object = if request.uri().path().contains("/nodes/") {
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node01"},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        } else {
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        };
        Ok::<_, Infallible>(Response::new(Body::from(object.to_string().into_bytes())))
    });
    Client::new(service, "default")
}
