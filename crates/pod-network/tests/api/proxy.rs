//! A TCP proxy to the API server that tests can cut.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Forwards connections until it is cut.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: bool,
    open: Vec<TcpStream>,
}

impl Proxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(server)) else {
                    continue;
                };
                let mut state = shared.lock().unwrap();
                if state.cut {
                    continue;
                }
                for (mut reader, mut writer) in [
                    (from.try_clone().unwrap(), to.try_clone().unwrap()),
                    (to.try_clone().unwrap(), from.try_clone().unwrap()),
                ] {
                    thread::spawn(move || {
                        let _ = io::copy(&mut reader, &mut writer);
                        let _ = writer.shutdown(Shutdown::Both);
                    });
                }
                state.open.extend([from, to]);
            }
        });
        Self { address, state }
    }

    /// Closes all connections, and refuses new ones until `open`.
    pub(crate) fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut = true;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap().cut = false;
    }
}
