use super::*;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

/// Deadline of any wait, generous for slow machines.
const DEADLINE: Duration = Duration::from_secs(30);

/// Free ports outside of the range from which the kernel chooses ephemeral ports.
fn free<const N: usize>() -> [u16; N] {
    let mut candidates = (10_000..30_000)
        .cycle()
        .skip(std::process::id() as usize % 20_000);
    let is_free =
        |port: &u16| TcpListener::bind(("::", *port)).is_ok() && UdpSocket::bind(("::", *port)).is_ok();
    [(); N].map(|()| candidates.find(is_free).unwrap())
}

fn corefile(zones: &Path, [dns, health, ready, figures]: [u16; 4]) -> String {
    format!(
        ".:{dns} {{\n auto {{\n  directory {}\n  reload 45s\n }}\n reload 2s\n log\n health :{health}\n ready :{ready}\n \
         prometheus 127.0.0.1:{figures}\n}}\n",
        zones.display()
    )
}

fn zone(serial: u32, address: &str) -> String {
    format!("$TTL 60\n@ IN SOA ns.vm. email.vm. ({serial} 1 1 1 1)\na IN A {address}\n")
}

/// Status and body of an answer; `None` if no server listens.
fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Response code and last four bytes of the answer to `a.vm.` A.
fn ask(port: u16) -> Option<(u8, [u8; 4])> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let query = b"\0\x01\0\0\0\x01\0\0\0\0\0\0\x01a\x02vm\0\0\x01\0\x01";
    socket.send(query).ok()?;
    let mut room = [0; 512];
    let length = socket.recv(&mut room).ok()?;
    Some((room[3] & 15, room[length - 4..length].try_into().unwrap()))
}

#[track_caller]
fn wait<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, mut found: impl FnMut() -> T) {
    let began = Instant::now();
    loop {
        let now = found();
        if now == *expected {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "{what}: {now:?}, not {expected:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn zones_of_a_corefile_are_served_and_followed() {
    // secondary-dns#57, the probe; secondary-dns#60
    let root = tempfile::tempdir().unwrap();
    let (path, zones) = (root.path().join("Corefile"), root.path().join("zones"));
    fs::create_dir(&zones).unwrap();
    let [dns, health, ready, figures, other] = free();
    fs::write(&path, corefile(&zones, [dns, health, ready, figures])).unwrap();
    let shutdown = Shutdown::new();
    let (end, conf) = (shutdown.clone(), path.clone());
    let thread = std::thread::spawn(move || {
        kube_kit::process::run(async { run(&conf, &end).await })
            .unwrap()
            .unwrap();
    });
    wait("health", &Some((200, "OK".to_owned())), || get(health, "/health"));
    wait("no zone", &Some(503), || {
        get(ready, "/ready").map(|(code, _)| code)
    });
    assert_eq!(ask(dns).map(|(code, _)| code), Some(2), "SERVFAIL");
    fs::write(zones.join("db.vm"), zone(1, "10.0.0.1")).unwrap();
    wait("ready", &Some((200, "OK".to_owned())), || get(ready, "/ready"));
    assert_eq!(ask(dns), Some((0, [10, 0, 0, 1])));
    let (_, text) = get(figures, "/metrics").unwrap();
    for line in [
        r#"kubesecondarydns_dns_requests_total{type="A",rcode="NOERROR",proto="udp"} 1"#,
        r#"kubesecondarydns_dns_requests_total{type="A",rcode="SERVFAIL",proto="udp"} 1"#,
        r#"kubesecondarydns_zone_records{zone="vm."} 1"#,
        r#"kubesecondarydns_zone_serial{zone="vm."} 1"#,
        "kubesecondarydns_dns_request_duration_seconds_count 2",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
    // An invalid Corefile is ignored. The next one changes the port, and the zone stays.
    fs::write(&path, ".:1 {\n cache\n}\n").unwrap();
    std::thread::sleep(Duration::from_millis(10));
    fs::write(&path, corefile(&zones, [other, health, ready, figures])).unwrap();
    wait("the new port", &Some((0, [10, 0, 0, 1])), || ask(other));
    wait("the old port", &None, || ask(dns));
    assert_eq!(get(health, "/health").map(|(code, _)| code), Some(200));
    // The next one follows the same directory in another way: the metrics are those of the new zones.
    let text = corefile(&zones, [dns, health, ready, figures]);
    fs::write(&path, text.replace("reload 45s", "reload 44s")).unwrap();
    wait("the first port again", &Some((0, [10, 0, 0, 1])), || ask(dns));
    let two = format!("{}b IN A 10.0.0.2\n", zone(2, "10.0.0.3"));
    fs::write(zones.join("db.vm"), two).unwrap();
    wait("the new records", &Some((0, [10, 0, 0, 3])), || ask(dns));
    for line in [
        r#"kubesecondarydns_zone_records{zone="vm."} 2"#,
        r#"kubesecondarydns_zone_serial{zone="vm."} 2"#,
    ] {
        wait(line, &true, || {
            let (_, text) = get(figures, "/metrics").unwrap();
            text.lines().any(|it| it == line)
        });
    }
    let began = Instant::now();
    shutdown.trigger();
    thread.join().unwrap();
    assert!(began.elapsed() < Duration::from_secs(9));
}

#[test]
fn corefile_that_is_missing_or_wrong_is_fatal() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("Corefile");
    let start = || {
        let ended = kube_kit::process::run(async { run(&path, &Shutdown::new()).await });
        format!("{:#}", ended.unwrap().unwrap_err())
    };
    assert!(start().starts_with("cannot read the Corefile /"), "{}", start());
    fs::write(&path, ".:5353 {\n    cache 30\n}\n").unwrap();
    assert_eq!(start(), "Corefile:2: unsupported directive 'cache'");
}
