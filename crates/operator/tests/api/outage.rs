//! An API server that is unreachable for a while.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::json;

use crate::fixture::{Fixture, NAMESPACE};

/// A connection to the API server that can be cut.
pub(crate) struct Line {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: String,
    cut: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Line {
    pub(crate) fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            server: url.trim_start_matches("https://").to_owned(),
            cut: AtomicBool::new(false),
            open: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&state);
        // The thread lives as long as the process: no client connects after the test.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                accepting.connect(client);
            }
        });
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Ends all connections, and refuses new ones.
    pub(crate) fn cut(&self) {
        let mut open = self.state.open.lock().expect("the connections");
        self.state.cut.store(true, Ordering::SeqCst);
        for connection in open.drain(..) {
            end(&connection);
        }
    }

    pub(crate) fn mend(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
    }
}

impl State {
    fn connect(&self, client: TcpStream) {
        let mut open = self.open.lock().expect("the connections");
        if self.cut.load(Ordering::SeqCst) {
            return end(&client);
        }
        let server = TcpStream::connect(&self.server).expect("the API server");
        let copy = |stream: &TcpStream| stream.try_clone().expect("a stream");
        for (mut from, mut to) in [(copy(&client), copy(&server)), (copy(&server), copy(&client))] {
            thread::spawn(move || {
                // Both sides end, with any result.
                let _ = io::copy(&mut from, &mut to);
                end(&from);
                end(&to);
            });
        }
        open.extend([client, server]);
    }
}

fn end(connection: &TcpStream) {
    // The connection may already have ended.
    let _ = connection.shutdown(Shutdown::Both);
}

#[test]
fn operator_resumes_after_outage() {
    let mut fixture = Fixture::installed();
    let line = Line::to(fixture.server_url());
    fixture.start_through(&line.url());
    fixture.configure(&json!({ "multus": {} }));
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    let uid = |fixture: &Fixture, kind| {
        fixture
            .operand(kind, "multus")
            .map(|found| found["metadata"]["uid"].clone())
    };
    let before = uid(&fixture, "daemonset");

    line.cut();
    // Meanwhile other clients delete objects and change the configuration.
    for kind in ["daemonset", "serviceaccount"] {
        fixture
            .kubectl()
            .run(["delete", "--wait=false", kind, "multus", "-n", NAMESPACE])
            .expect("deleted");
    }
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    assert_eq!(uid(&fixture, "daemonset"), None, "the operator is cut off");
    line.mend();

    fixture.wait_for_operand("daemonset", "multus", |object| {
        (Some(&object["metadata"]["uid"]) != before.as_ref()).then_some(())
    });
    fixture.wait_for_operand("serviceaccount", "multus", |_| Some(()));
    fixture.roll_out(&["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"]);
    fixture.wait_until_available();
}
