use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use super::*;

const PATIENCE: Duration = Duration::from_mins(1);

/// A server that reads one message for each line of the script and then sends that line, and holds the connection until
/// the client closes it.
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

/// Runs a client against the script. Returns what the test makes of it, and what the server received.
fn talk<T>(script: &[&str], patience: Duration, test: impl FnOnce(&mut Client) -> T) -> (T, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let script: Vec<String> = script.iter().map(|line| (*line).to_owned()).collect();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0, &script));
    let outcome = {
        let mut client = Client::connect(&Address::Unix(path), patience).unwrap();
        test(&mut client)
    };
    (outcome, server.join().unwrap())
}

/// What two operations lead to when the server answers this.
fn transacted(reply: &str) -> Result<Vec<Value>, String> {
    let test = |client: &mut Client| client.transact(&[json!({"op": "a"}), json!({"op": "b"})]);
    let (outcome, received) = talk(&[reply], PATIENCE, test);
    let request = json!({
        "method": "transact", "params": ["Open_vSwitch", {"op": "a"}, {"op": "b"}], "id": 1
    });
    assert_eq!(received, [request]);
    outcome.map_err(|error| error.to_string())
}

#[test]
fn replies_come_in_the_order_of_the_operations() {
    let reply = r#"{"id":1,"error":null,"result":[{"uuid":["uuid","u"]},{"count":1}]}"#;
    assert_eq!(
        transacted(reply),
        Ok(vec![json!({"uuid": ["uuid", "u"]}), json!({"count": 1})])
    );
}

#[test]
fn a_refused_operation_is_shown_with_the_established_text() {
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
fn messages_before_the_reply_are_answered_kept_or_dropped() {
    let script = [
        concat!(
            r#"{"id":null,"method":"update","params":["monitor",{"Bridge":1}]}"#,
            r#"{"id":"probe","method":"echo","params":["x"]}"#,
            r#"{"id":0,"error":null,"result":"late"}"#,
            r#"{"id":null,"method":"locked","params":["l"]}"#,
        ),
        // The reply comes only after the answer to the probe.
        r#"{"id":1,"error":null,"result":[{"count":0}]}{"id":null,"method":"update","params":["monitor",{"Bridge":2}]}"#,
    ];
    let (outcome, received) = talk(&script, PATIENCE, |client| {
        let replies = client.transact(&[json!({"op": "a"})]).unwrap();
        let first = client.next_update(Some(Duration::ZERO)).unwrap();
        let second = client.next_update(Some(PATIENCE)).unwrap();
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
fn a_monitor_returns_the_rows_of_the_start() {
    let tables = json!({"Bridge": {"columns": ["name"]}});
    let reply = r#"{"id":1,"error":null,"result":{"Bridge":{}}}"#;
    let (outcome, received) = talk(&[reply], PATIENCE, |client| client.monitor(tables.clone()));
    assert_eq!(outcome.unwrap(), json!({"Bridge": {}}));
    assert_eq!(received[0]["params"], json!(["Open_vSwitch", "monitor", tables]));
    let refusal = r#"{"id":1,"error":{"error":"syntax error","details":"no"},"result":null}"#;
    let (outcome, _) = talk(&[refusal], PATIENCE, |client| client.monitor(json!(1)));
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "ovsdb-server refused the request monitor: syntax error: no"
    );
}

#[test]
fn a_silent_server_is_waited_for_no_longer_than_the_patience() {
    let (outcome, _) = talk(&[""], Duration::from_millis(50), Client::echo);
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "no answer from ovsdb-server within 0.05 s"
    );
}

#[test]
fn what_is_no_message_is_an_error() {
    for reply in [
        "[]",
        "{\"id\":}",
        "{\"method\":\"update\",\"params\":[]}",
        "{\"method\":1}",
    ] {
        let (outcome, _) = talk(&[reply], PATIENCE, Client::echo);
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.starts_with("unreadable message from ovsdb-server: "),
            "{error}"
        );
    }
}

#[test]
fn a_server_that_ends_is_noticed() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut follower = Client::of(Stream(theirs.into()), PATIENCE);
    ours.write_all(b"{\"half\":").unwrap();
    drop(ours);
    assert!(matches!(follower.next_update(Some(PATIENCE)), Err(Error::Closed)));
    assert!(matches!(
        follower.echo(),
        Err(Error::Connection(_) | Error::Closed)
    ));
}

#[test]
fn an_absent_socket_is_named() {
    let missing = Address::Unix(Path::new("/nowhere/db.sock").into());
    let error = Client::connect(&missing, PATIENCE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot connect to unix:/nowhere/db.sock: No such file or directory (os error 2)"
    );
}

#[test]
fn a_listener_that_accepts_nobody_is_not_waited_for_longer() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db.sock");
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let address = Address::Unix(path);
    let patience = Duration::from_millis(50);
    let first = Client::connect(&address, patience);
    assert!(first.is_ok());
    let error = Client::connect(&address, patience).unwrap_err().to_string();
    assert!(error.ends_with(": timed out"), "{error}");
}

#[test]
fn changes_that_nobody_fetches_are_limited() {
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let mut client = Client::of(Stream(theirs.into()), PATIENCE);
    client.keep(json!({}), LONGEST_MESSAGE - 1).unwrap();
    client.keep(json!({}), 1).unwrap();
    assert!(matches!(client.keep(json!({}), 1), Err(Error::Malformed(_))));
}
