use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use super::*;

const TIMEOUT: Duration = Duration::from_mins(1);

/// Reads one message for each line of the script, and then sends the line. Holds the connection until the client closes
/// it.
fn serve(mut stream: UnixStream, script: &[String]) -> Vec<Value> {
    let mut splitter = Splitter::default();
    let mut received = Vec::new();
    for line in script {
        received.push(read(&mut stream, &mut splitter).expect("a message"));
        stream.write_all(line.as_bytes()).unwrap();
    }
    received.extend(std::iter::from_fn(|| read(&mut stream, &mut splitter)));
    received
}

fn read(stream: &mut UnixStream, splitter: &mut Splitter) -> Option<Value> {
    let mut chunk = [0; 100];
    loop {
        if let Some(text) = splitter.next().unwrap() {
            return Some(serde_json::from_slice(&text).unwrap());
        }
        match stream.read(&mut chunk).unwrap() {
            0 => return None,
            length => splitter.push(&chunk[..length]),
        }
    }
}

/// Runs a client against the script. Returns the result of the test, and the messages that the server received.
fn talk<T>(script: &[&str], timeout: Duration, test: impl FnOnce(&mut Client) -> T) -> (T, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let script: Vec<String> = script.iter().map(|line| (*line).to_owned()).collect();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0, &script));
    let outcome = {
        let mut client = Client::connect(&Address::Unix(path), timeout).unwrap();
        test(&mut client)
    };
    (outcome, server.join().unwrap())
}

/// Sends two operations and this reply. Returns the client's result.
fn transacted(reply: &str) -> Result<Vec<Value>, String> {
    let test = |client: &mut Client| client.transact(&[json!({"op": "a"}), json!({"op": "b"})]);
    let (outcome, received) = talk(&[reply], TIMEOUT, test);
    let request = json!({
        "method": "transact", "params": ["Open_vSwitch", {"op": "a"}, {"op": "b"}], "id": 1
    });
    assert_eq!(received, [request]);
    outcome.map_err(|error| error.to_string())
}

#[test]
fn replies_have_the_order_of_the_operations() {
    let reply = r#"{"id":1,"error":null,"result":[{"uuid":["uuid","u"]},{"count":1}]}"#;
    assert_eq!(
        transacted(reply),
        Ok(vec![json!({"uuid": ["uuid", "u"]}), json!({"count": 1})])
    );
}

#[test]
fn refused_operation_has_the_text_of_upstream() {
    for (reply, text) in [
        (
            r#"{"id":1,"error":null,"result":[{},{"error":"constraint violation","details":"9999 is not in range"}]}"#,
            "OVS Transaction failed err constraint violation Details: 9999 is not in range",
        ),
        (
            r#"{"id":1,"error":null,"result":[{},{},{"error":"referential integrity violation","details":"x"}]}"#,
            "OVS Transaction failed err referential integrity violation Details: x",
        ),
        (
            r#"{"id":1,"error":null,"result":[{"error":"aborted"},null]}"#,
            "OVS Transaction failed err aborted Details: ",
        ),
        (
            r#"{"id":1,"error":{"error":"unknown database","details":"no"},"result":null}"#,
            "OVS Transaction failed err unknown database Details: no",
        ),
        (
            r#"{"id":1,"error":"canceled","result":null}"#,
            "OVS Transaction failed err canceled Details: ",
        ),
        (
            r#"{"id":1,"error":null,"result":[{}]}"#,
            "OVS transaction failed. Less replies than operations",
        ),
        (
            r#"{"id":1}"#,
            "OVS transaction failed. Less replies than operations",
        ),
    ] {
        assert_eq!(transacted(reply), Err(text.to_owned()));
    }
}

#[test]
fn message_before_the_reply_is_answered_stored_or_dropped() {
    let script = [
        concat!(
            r#"{"id":null,"method":"update","params":["monitor",{"Bridge":1}]}"#,
            r#"{"id":"probe","method":"echo","params":["x"]}"#,
            r#"{"id":0,"error":null,"result":"late"}"#,
            r#"{"id":null,"method":"locked","params":["l"]}"#,
        ),
        // The reply follows the answer to the probe.
        r#"{"id":1,"error":null,"result":[{"count":0}]}{"id":null,"method":"update","params":["monitor",{"Bridge":2}]}"#,
    ];
    let (outcome, received) = talk(&script, TIMEOUT, |client| {
        let replies = client.transact(&[json!({"op": "a"})]).unwrap();
        let first = client.next_update(Some(Duration::ZERO)).unwrap();
        let second = client.next_update(Some(TIMEOUT)).unwrap();
        let none = client.next_update(Some(Duration::ZERO)).unwrap();
        (replies, first, second, none)
    });
    let update = |number: u8| Some(json!({"Bridge": number}));
    assert_eq!(outcome, (vec![json!({"count": 0})], update(1), update(2), None));
    assert_eq!(
        received[1],
        json!({"id": "probe", "result": ["x"], "error": null})
    );
}

#[test]
fn monitor_returns_the_existing_rows() {
    let tables = json!({"Bridge": {"columns": ["name"]}});
    let reply = r#"{"id":1,"error":null,"result":{"Bridge":{}}}"#;
    let (outcome, received) = talk(&[reply], TIMEOUT, |client| client.monitor(tables.clone()));
    assert_eq!(outcome.unwrap(), json!({"Bridge": {}}));
    assert_eq!(received[0]["params"], json!(["Open_vSwitch", "monitor", tables]));
    let refusal = r#"{"id":1,"error":{"error":"syntax error","details":"no"},"result":null}"#;
    let (outcome, _) = talk(&[refusal], TIMEOUT, |client| client.monitor(json!(1)));
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "ovsdb-server refused the request monitor: syntax error: no"
    );
}

#[test]
fn request_to_a_silent_server_times_out() {
    let (outcome, _) = talk(&[""], Duration::from_millis(50), Client::echo);
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "no answer from ovsdb-server within 0.05 s"
    );
}

#[test]
fn malformed_message_is_an_error() {
    for reply in [
        "[]",
        "{\"id\":}",
        "{\"method\":\"update\",\"params\":[]}",
        "{\"method\":1}",
    ] {
        let (outcome, _) = talk(&[reply], TIMEOUT, Client::echo);
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.starts_with("malformed message from ovsdb-server: "),
            "{error}"
        );
    }
}

#[test]
fn closed_connection_is_an_error() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut follower = Client::of(Stream(theirs.into()), TIMEOUT);
    ours.write_all(b"{\"half\":").unwrap();
    drop(ours);
    assert!(matches!(follower.next_update(Some(TIMEOUT)), Err(Error::Closed)));
    assert!(matches!(
        follower.echo(),
        Err(Error::Connection(_) | Error::Closed)
    ));
}

#[test]
fn missing_socket_is_named() {
    let missing = Address::Unix(Path::new("/nowhere/db.sock").into());
    let error = Client::connect(&missing, TIMEOUT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot connect to unix:/nowhere/db.sock: No such file or directory (os error 2)"
    );
}

#[test]
fn connect_to_a_full_listener_times_out() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db.sock");
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let address = Address::Unix(path);
    let timeout = Duration::from_millis(50);
    let first = Client::connect(&address, timeout);
    assert!(first.is_ok());
    let error = Client::connect(&address, timeout).unwrap_err().to_string();
    assert!(error.ends_with(": timed out"), "{error}");
}

#[test]
fn stored_changes_are_limited() {
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let mut client = Client::of(Stream(theirs.into()), TIMEOUT);
    client.keep(json!({}), LONGEST_MESSAGE - 1).unwrap();
    client.keep(json!({}), 1).unwrap();
    assert!(matches!(client.keep(json!({}), 1), Err(Error::Malformed(_))));
}
