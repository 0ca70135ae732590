//! A connection to an API server that tests can cut.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// A connection to an API server that can be cut. It carries TCP, so that clients see the certificate of the server.
pub struct Line {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: String,
    cut: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Line {
    /// Returns a connection to the server with this URL.
    pub fn to(url: &str) -> Self {
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

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Ends all connections, and refuses new ones.
    pub fn cut(&self) {
        let mut open = self.state.open.lock().expect("the connections");
        self.state.cut.store(true, Ordering::SeqCst);
        for connection in open.drain(..) {
            end(&connection);
        }
    }

    /// Accepts connections again.
    pub fn mend(&self) {
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
