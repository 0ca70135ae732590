//! Stand-in for an API server with many instances: paged lists, and watches with given events.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::bail;
use serde_json::{Value, json};

/// Size of the unused fields of an instance, similar to a real one.
const IGNORED: usize = 6000;

/// Resource version of the list.
const VERSION: u32 = 7;

/// The stand-in, which serves as long as this process runs.
pub(crate) struct Cluster {
    /// Kubeconfig of the stand-in.
    pub(crate) kubeconfig: PathBuf,
    watches: Watches,
}

/// Connections of watches.
type Watches = Arc<Mutex<Vec<TcpStream>>>;

impl Cluster {
    /// Starts the stand-in.
    pub(crate) fn start(directory: &Path, instances: u32) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let kubeconfig = directory.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", listener.local_addr()?) } }],
            "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        fs::write(&kubeconfig, config.to_string())?;
        let watches = Watches::default();
        let begun = Arc::clone(&watches);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let begun = Arc::clone(&begun);
                // A disconnected client does not affect others.
                thread::spawn(move || answer(&stream, instances, &begun));
            }
        });
        Ok(Self { kubeconfig, watches })
    }

    /// Sends an event of an instance to all watches.
    pub(crate) fn tell(&self, event: &str, n: u32, version: u32) -> anyhow::Result<()> {
        let mut object = instance(n);
        object["metadata"]["resourceVersion"] = (VERSION + version).to_string().into();
        let line = json!({ "type": event, "object": object }).to_string() + "\n";
        let chunk = format!("{:x}\r\n{line}\r\n", line.len());
        let Ok(mut watches) = self.watches.lock() else {
            bail!("a watch failed");
        };
        // Watches of ended processes fail.
        watches.retain_mut(|watch| watch.write_all(chunk.as_bytes()).is_ok());
        if watches.is_empty() {
            bail!("no client watches");
        }
        Ok(())
    }
}

fn answer(stream: &TcpStream, instances: u32, watches: &Watches) -> anyhow::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(request) = lines.next().transpose()? {
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let path = request.split(' ').nth(1).unwrap_or_default();
        let parameter = |name: &str| {
            let query = path.split_once('?').map_or("", |(_, query)| query);
            let found = query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            found.and_then(|value| value.parse::<u32>().ok())
        };
        if path.contains("watch=true") {
            let mut watch = stream.try_clone()?;
            watch.set_nodelay(true)?;
            watch.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
            )?;
            if let Ok(mut watches) = watches.lock() {
                watches.push(watch);
            }
            return Ok(());
        }
        let (from, limit) = (
            parameter("continue").unwrap_or(0),
            parameter("limit").unwrap_or(instances),
        );
        let to = from.saturating_add(limit).min(instances);
        let more = if to < instances {
            to.to_string()
        } else {
            String::new()
        };
        let items: Vec<Value> = (from..to).map(instance).collect();
        let body = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceList",
            "metadata": { "resourceVersion": VERSION.to_string(), "continue": more }, "items": items,
        });
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut to = stream;
        to.write_all(head.as_bytes())?;
        to.write_all(body.as_bytes())?;
    }
    Ok(())
}

fn instance(n: u32) -> Value {
    let address = std::net::Ipv4Addr::from(0x0a00_0000 + n);
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": format!("vm{n}"), "namespace": format!("ns{}", n % 100), "uid": n.to_string(),
            "resourceVersion": VERSION.to_string(), "annotations": { "ignored": "x".repeat(IGNORED) },
        },
        "spec": { "networks": [{ "name": "default", "pod": {} }, { "name": "nic1", "multus": { "networkName": "n" } }] },
        "status": { "phase": "Running", "interfaces": [
            { "name": "default", "ipAddress": "10.244.0.5", "ipAddresses": ["10.244.0.5"] },
            { "name": "nic1", "ipAddress": address, "ipAddresses": [address, "fe80::1"] },
        ] },
    })
}
