//! Raw messages over real sockets.

use super::*;
use crate::answer::{Block, SharedZones};
use crate::model::{Header, Model, key};
use crate::vmi::Record;
use crate::zone::file;
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use std::io::{Read as _, Write as _};
use std::net::{TcpStream as Tcp, UdpSocket as Udp};
use std::thread::JoinHandle;

/// Deadline of any wait, generous for slow machines.
const DEADLINE: Duration = Duration::from_secs(30);
const Z: &str = "vm.";

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// A server in a thread. It ends when it is dropped.
struct Stage {
    port: u16,
    zones: SharedZones,
    model: Model,
    log: Lines,
    stop: Shutdown,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stage {
    /// Starts with `nic1.vmi1.ns1`, and with these addresses of the name server.
    fn start(name_servers: &[&str]) -> Self {
        let mut stage = Self::unloaded(name_servers, Limits::default());
        stage.load();
        stage.set(
            "ns1",
            "vmi1",
            &[("nic1.vmi1.ns1", "1.2.3.4"), ("vmi1.ns1", "1.2.3.4")],
        );
        stage
    }

    /// Starts without loaded zones.
    fn unloaded(name_servers: &[&str], limits: Limits) -> Self {
        let header = Header {
            zone: "vm".to_owned(),
            name_servers: name_servers.iter().map(|it| it.parse().unwrap()).collect(),
            ttl: 3600,
            reverse: Vec::new(),
        };
        let zones = SharedZones::default();
        lock(&zones).expect(name(Z));
        let site = Site(vec![Block {
            below: Name::root(),
            zones: Arc::clone(&zones),
            log: true,
        }]);
        let log = Lines::default();
        let desk = Desk {
            site: Arc::new(Mutex::new(site)),
            metrics: Metrics::default(),
            log: QueryLog::to(log.clone()).unwrap(),
        };
        let stop = Shutdown::new();
        let (end, (at, port)) = (stop.clone(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            kube_kit::process::run(async {
                let server = Server::start(0, &desk, limits).unwrap();
                at.send(server.port()).unwrap();
                end.wait().await;
                server.stop().await;
            })
            .unwrap();
        });
        Self {
            port: port.recv().unwrap(),
            zones,
            model: Model::new(header, 0),
            log,
            stop,
            thread: Some(thread),
        }
    }

    fn load(&self) {
        for zone in self.model.zones() {
            lock(&self.zones).put(zone);
        }
    }

    fn set(&mut self, namespace: &str, vm: &str, records: &[(&str, &str)]) {
        let records = records.iter().map(|(owner, address)| Record {
            owner: (*owner).into(),
            address: address.parse().unwrap(),
            is_default: false,
        });
        if let Some(update) = self.model.set(&key(namespace, vm), records.collect()) {
            self.model.carry(&update, &mut lock(&self.zones));
        }
    }

    fn udp(&self) -> Udp {
        let socket = Udp::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket
    }

    fn tcp(&self) -> Tcp {
        let stream = Tcp::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// The answer over UDP.
    fn ask(&self, message: &[u8]) -> Vec<u8> {
        let socket = self.udp();
        socket.send(message).unwrap();
        let mut room = [0; 4096];
        let length = socket.recv(&mut room).unwrap();
        room[..length].to_vec()
    }

    /// The answer over UDP and TCP, which must be equal unless UDP is truncated.
    #[track_caller]
    fn answer(&self, of: &str, kind: RecordType) -> Message {
        let query = query(of, kind);
        let over_udp = self.ask(&query);
        let over_tcp = self.ask_tcp(&query);
        assert_eq!(over_udp, over_tcp, "{of}");
        Message::from_vec(&over_udp).unwrap()
    }

    fn ask_tcp(&self, message: &[u8]) -> Vec<u8> {
        let mut stream = self.tcp();
        stream.write_all(&framed(message)).unwrap();
        received(&mut stream)
    }

    /// Asserts that the server still answers.
    #[track_caller]
    fn assert_alive(&self) {
        let answer = self.answer("nic1.vmi1.ns1.vm.", RecordType::A);
        assert_eq!(answer.response_code, ResponseCode::NoError);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.trigger();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

fn received(stream: &mut Tcp) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message).unwrap();
    message
}

const ID: [u8; 2] = [0x12, 0x67];

/// A handmade query with RD set and without an OPT record.
fn query(of: &str, kind: RecordType) -> Vec<u8> {
    let mut message = ID.to_vec();
    message.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    message.extend(question(of, kind));
    message
}

fn question(of: &str, kind: RecordType) -> Vec<u8> {
    let mut octets = Vec::new();
    for label in of.trim_end_matches('.').split('.') {
        octets.push(u8::try_from(label.len()).unwrap());
        octets.extend(label.as_bytes());
    }
    octets.push(0);
    octets.extend(u16::from(kind).to_be_bytes());
    octets.extend([0, 1]);
    octets
}

/// Adds an OPT record.
fn with_opt(mut query: Vec<u8>, version: u8, dnssec_ok: bool, size: u16, options: &[u8]) -> Vec<u8> {
    query[11] = 1;
    query.extend([0, 0, 41]);
    query.extend(size.to_be_bytes());
    query.extend([0, version, if dnssec_ok { 0x80 } else { 0 }, 0]);
    query.extend(u16::try_from(options.len()).unwrap().to_be_bytes());
    query.extend(options);
    query
}

#[track_caller]
fn assert_negative(answer: &Message, code: ResponseCode) {
    assert_eq!(answer.response_code, code);
    assert!(answer.authoritative && answer.answers.is_empty() && answer.additionals.is_empty());
    let [soa] = &answer.authorities[..] else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (soa.record_type(), soa.ttl, &soa.name),
        (RecordType::SOA, 3600, &name(Z))
    );
}

#[track_caller]
fn assert_empty(answer: &[u8], code: ResponseCode) {
    let message = Message::from_vec(answer).unwrap();
    assert_eq!(message.response_code, code);
    assert!(!message.authoritative && !message.truncation && !message.recursion_available);
    assert!(message.answers.is_empty() && message.authorities.is_empty() && message.additionals.is_empty());
    assert_eq!(answer[..2], ID);
}

#[test]
fn address_of_an_interface() {
    // secondary-dns#37
    let stage = Stage::start(&[]);
    let answer = stage.answer("nic1.vmi1.ns1.vm.", RecordType::A);
    assert_eq!(answer.message_type, MessageType::Response);
    assert_eq!((answer.id, answer.response_code), (0x1267, ResponseCode::NoError));
    assert!(answer.authoritative && answer.recursion_desired);
    assert!(!answer.recursion_available && !answer.truncation && !answer.authentic_data);
    let [record] = &answer.answers[..] else {
        panic!("{answer:?}")
    };
    assert_eq!((record.ttl, record.dns_class), (3600, DNSClass::IN));
    assert_eq!(record.data, RData::A("1.2.3.4".parse().unwrap()));
    assert!(answer.authorities.is_empty() && answer.additionals.is_empty() && answer.edns.is_none());
}

#[test]
fn address_of_an_instance() {
    // secondary-dns#38
    let answer = Stage::start(&[]).answer("vmi1.ns1.vm.", RecordType::A);
    assert_eq!(answer.answers[0].data, RData::A("1.2.3.4".parse().unwrap()));
}

#[test]
fn names_in_any_case_come_back_as_they_were() {
    // secondary-dns#39
    let stage = Stage::start(&[]);
    let asked = query("NIC1.Vmi1.nS1.VM.", RecordType::A);
    let answer = stage.ask(&asked);
    assert_eq!(answer[12..asked.len()], asked[12..]);
    let answer = Message::from_vec(&answer).unwrap();
    assert_eq!(answer.answers[0].data, RData::A("1.2.3.4".parse().unwrap()));
    // The owner is a pointer to the question.
    assert_eq!(stage.ask(&asked)[asked.len()..asked.len() + 2], [0xc0, 12]);
}

#[test]
fn other_types_of_a_name_have_no_data() {
    // secondary-dns#40
    let stage = Stage::start(&["192.0.2.1"]);
    for kind in [
        RecordType::AAAA,
        RecordType::TXT,
        RecordType::MX,
        RecordType::ANY,
        RecordType::Unknown(4711),
    ] {
        assert_negative(&stage.answer("nic1.vmi1.ns1.vm.", kind), ResponseCode::NoError);
    }
}

#[test]
fn instance_with_ipv6_alone_has_no_a_record_and_exists() {
    // secondary-dns#19, the query for A
    let mut stage = Stage::start(&[]);
    stage.set(
        "ns1",
        "six",
        &[("nic1.six.ns1", "fd00::5"), ("six.ns1", "fd00::5")],
    );
    for at in ["nic1.six.ns1.vm.", "six.ns1.vm."] {
        assert_negative(&stage.answer(at, RecordType::A), ResponseCode::NoError);
        let answer = stage.answer(at, RecordType::AAAA);
        assert_eq!(answer.answers[0].data, RData::AAAA("fd00::5".parse().unwrap()));
    }
}

#[test]
fn names_that_do_not_exist() {
    // secondary-dns#41
    let stage = Stage::start(&[]);
    for at in ["nope.ns1.vm.", "x.nic1.vmi1.ns1.vm.", "ns.vm.", "nope.vm."] {
        assert_negative(&stage.answer(at, RecordType::A), ResponseCode::NXDomain);
    }
}

#[test]
fn namespace_exists_as_long_as_an_instance_is_in_it() {
    // secondary-dns#42
    let mut stage = Stage::start(&[]);
    assert_negative(&stage.answer("ns1.vm.", RecordType::A), ResponseCode::NoError);
    stage.set("ns1", "vmi1", &[]);
    assert_negative(&stage.answer("ns1.vm.", RecordType::A), ResponseCode::NXDomain);
}

#[test]
fn soa_has_the_serial_of_the_file() {
    // secondary-dns#43
    let mut stage = Stage::start(&["192.0.2.1"]);
    stage.set("ns1", "vmi2", &[("vmi2.ns1", "1.2.3.5")]);
    let answer = stage.answer(Z, RecordType::SOA);
    let RData::SOA(soa) = &answer.answers[0].data else {
        panic!("{answer:?}")
    };
    assert_eq!((soa.serial, soa.minimum), (2, 3600));
    assert_eq!((&soa.mname, &soa.rname), (&name("ns.vm."), &name("email.vm.")));
    let file = file::read(&stage.model.render(), &name(Z)).unwrap();
    assert_eq!(file.soa(), soa);
    assert_eq!(answer.authorities[0].record_type(), RecordType::NS);
    assert!(answer.authoritative && answer.additionals.is_empty());
}

#[test]
fn zone_without_instances_exists() {
    // secondary-dns#44
    let stage = Stage::unloaded(&[], Limits::default());
    stage.load();
    for kind in [RecordType::A, RecordType::NS, RecordType::TXT] {
        assert_negative(&stage.answer(Z, kind), ResponseCode::NoError);
    }
    assert_negative(&stage.answer("a.vm.", RecordType::A), ResponseCode::NXDomain);
}

#[test]
fn name_server_is_in_its_section_with_glue() {
    // secondary-dns#45
    let stage = Stage::start(&["192.0.2.1", "2001:db8::1"]);
    let answer = stage.answer(Z, RecordType::NS);
    assert_eq!(answer.answers[0].data.to_string(), "ns.vm.");
    assert!(answer.authorities.is_empty());
    let glue: Vec<String> = answer.additionals.iter().map(|it| it.data.to_string()).collect();
    assert_eq!(glue, ["192.0.2.1", "2001:db8::1"]);
    assert_eq!(answer.additionals[0].name, name("ns.vm."));
    let answer = stage.answer("nic1.vmi1.ns1.vm.", RecordType::A);
    assert_eq!(answer.authorities[0].data.to_string(), "ns.vm.");
    assert!(answer.additionals.is_empty());
    let answer = stage.answer("ns.vm.", RecordType::A);
    assert_eq!(answer.answers[0].data.to_string(), "192.0.2.1");
}

#[test]
fn zones_are_not_transferred() {
    // secondary-dns#46
    let stage = Stage::start(&[]);
    assert_empty(&stage.ask_tcp(&query(Z, RecordType::AXFR)), ResponseCode::Refused);
    // The authority section has the client's serial.
    let mut incremental = query(Z, RecordType::IXFR);
    incremental[9] = 1;
    incremental.extend([0xc0, 12, 0, 6, 0, 1, 0, 0, 0, 0, 0, 22, 0, 0]);
    incremental.extend([0; 20]);
    assert_empty(&stage.ask(&incremental), ResponseCode::Refused);
}

#[test]
fn other_zones_are_refused() {
    // secondary-dns#47
    let stage = Stage::start(&[]);
    for at in ["example.com.", "4.3.2.1.in-addr.arpa.", "xvm."] {
        assert_empty(&stage.ask(&query(at, RecordType::A)), ResponseCode::Refused);
    }
    let mut root = query("x.", RecordType::NS);
    root.splice(12..15, [0]);
    assert_empty(&stage.ask(&root), ResponseCode::Refused);
}

#[test]
fn other_classes_are_refused() {
    // secondary-dns#48
    let stage = Stage::start(&[]);
    for (of, class) in [
        ("version.bind.", 3),
        ("nic1.vmi1.ns1.vm.", 3),
        ("nic1.vmi1.ns1.vm.", 255),
    ] {
        let mut message = query(of, RecordType::TXT);
        *message.last_mut().unwrap() = class;
        assert_empty(&stage.ask(&message), ResponseCode::Refused);
    }
}

#[test]
fn other_operations_are_not_implemented() {
    // secondary-dns#49
    let stage = Stage::start(&[]);
    for (opcode, expected) in [
        (1, OpCode::Unknown(1)),
        (2, OpCode::Status),
        (4, OpCode::Notify),
        (5, OpCode::Update),
    ] {
        let mut message = query("nic1.vmi1.ns1.vm.", RecordType::SOA);
        message[2] |= opcode << 3;
        let answer = stage.ask(&message);
        assert_empty(&answer, ResponseCode::NotImp);
        assert_eq!(answer[2] >> 3 & 15, opcode, "{expected:?}");
    }
}

#[test]
fn malformed_queries() {
    // secondary-dns#50
    let stage = Stage::start(&[]);
    let one = question("nic1.vmi1.ns1.vm.", RecordType::A);
    let mut two = query("nic1.vmi1.ns1.vm.", RecordType::A);
    two[5] = 2;
    two.extend(&one);
    let mut none = two[..12].to_vec();
    none[5] = 0;
    let cut = query("nic1.vmi1.ns1.vm.", RecordType::A);
    let mut more = cut.clone();
    more[11] = 1;
    let mut pointer = cut[..12].to_vec();
    pointer.extend([0xc0, 12, 0, 1, 0, 1]);
    let mut into_header = cut[..12].to_vec();
    into_header.extend([1, b'a', 0xc0, 6, 0, 1, 0, 1]);
    let mut second_opt = with_opt(with_opt(cut.clone(), 0, false, 4096, &[]), 0, false, 4096, &[]);
    second_opt[11] = 2;
    for message in [
        &two,
        &none,
        &cut[..cut.len() - 1].to_vec(),
        &more,
        &pointer,
        &into_header,
        &second_opt,
    ] {
        assert_empty(&stage.ask(message), ResponseCode::FormErr);
    }
    stage.assert_alive();
}

#[test]
fn later_versions_of_edns_are_refused() {
    // secondary-dns#51
    let stage = Stage::start(&[]);
    let message = with_opt(query("nic1.vmi1.ns1.vm.", RecordType::A), 1, true, 4096, &[]);
    let answer = Message::from_vec(&stage.ask(&message)).unwrap();
    // BADVERS. Another code has the same number.
    assert_eq!(u16::from(answer.response_code), 16);
    let edns = answer.edns.as_ref().expect("an OPT record");
    assert_eq!((edns.version(), edns.rcode_high()), (0, 1));
    assert!(!answer.authoritative && answer.answers.is_empty());
}

#[test]
fn opt_record_answers_an_opt_record() {
    // secondary-dns#52
    let stage = Stage::start(&[]);
    let cookie = [0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    for dnssec_ok in [false, true] {
        for options in [&[][..], &cookie, &[0xff, 0xf0, 0, 0]] {
            let message = query("nic1.vmi1.ns1.vm.", RecordType::A);
            let answer = stage.ask(&with_opt(message, 0, dnssec_ok, 4096, options));
            let answer = Message::from_vec(&answer).unwrap();
            assert_eq!(answer.answers.len(), 1);
            let edns = answer.edns.as_ref().expect("an OPT record");
            assert_eq!((edns.version(), edns.max_payload()), (0, 1232));
            assert_eq!(edns.flags().dnssec_ok, dnssec_ok);
            assert!(edns.options().as_ref().is_empty());
        }
    }
    let answer = stage.answer("nic1.vmi1.ns1.vm.", RecordType::A);
    assert!(answer.edns.is_none());
}

#[test]
fn bits_of_the_client_come_back() {
    let stage = Stage::start(&[]);
    for (set, expected) in [
        ([0x00, 0x00], [0x84, 0x00]),
        ([0x01, 0x30], [0x85, 0x10]),
        ([0x06, 0xc0], [0x84, 0x00]),
    ] {
        let mut message = query("nic1.vmi1.ns1.vm.", RecordType::A);
        message[2..4].copy_from_slice(&set);
        assert_eq!(stage.ask(&message)[2..4], expected, "{set:?}");
    }
}

#[test]
fn answers_that_do_not_fit_are_truncated() {
    // secondary-dns#53
    let mut stage = Stage::start(&["192.0.2.1"]);
    for n in 0..60 {
        stage.set("ns1", &format!("m{n}"), &[("many.ns1", &format!("10.0.0.{n}"))]);
    }
    let asked = query("many.ns1.vm.", RecordType::A);
    let short = stage.ask(&asked);
    assert!(short.len() <= 512, "{}", short.len());
    let message = Message::from_vec(&short).unwrap();
    assert!(message.truncation && message.answers.is_empty() && message.authorities.is_empty());
    let whole = Message::from_vec(&stage.ask_tcp(&asked)).unwrap();
    assert!(!whole.truncation);
    let addresses: Vec<String> = whole.answers.iter().map(|it| it.data.to_string()).collect();
    // The order is the file's, which is the order of the instances' names.
    let mut names: Vec<String> = (0..60).map(|n| format!("m{n}")).collect();
    names.sort();
    let expected: Vec<String> = names.iter().map(|it| format!("10.0.0.{}", &it[1..])).collect();
    assert_eq!(addresses, expected);
    assert_eq!(whole.authorities.len(), 1);
    // 60 addresses take 960 bytes; 100 addresses exceed the maximum.
    for (size, is_whole) in [(512, false), (100, false), (1232, true), (65535, true)] {
        let answer = stage.ask(&with_opt(asked.clone(), 0, false, size, &[]));
        let message = Message::from_vec(&answer).unwrap();
        assert_eq!(message.truncation, !is_whole, "{size}");
        assert!(message.edns.is_some() && answer.len() <= usize::from(size.clamp(512, 1232)));
    }
    for n in 60..100 {
        stage.set("ns1", &format!("m{n}"), &[("many.ns1", &format!("10.0.0.{n}"))]);
    }
    let answer = stage.ask(&with_opt(asked, 0, false, 65535, &[]));
    assert!(Message::from_vec(&answer).unwrap().truncation && answer.len() <= 1232);
}

#[test]
fn several_queries_in_one_segment() {
    // secondary-dns#54
    let stage = Stage::start(&[]);
    let mut second = query("nope.vm.", RecordType::A);
    second[..2].copy_from_slice(&[9, 9]);
    let both = [
        framed(&query("nic1.vmi1.ns1.vm.", RecordType::A)),
        framed(&second),
    ]
    .concat();
    let mut stream = stage.tcp();
    stream.write_all(&both).unwrap();
    let answers = [received(&mut stream), received(&mut stream)];
    let answers = answers.map(|answer| Message::from_vec(&answer).unwrap());
    assert_eq!(answers.each_ref().map(|it| it.id), [0x1267, 0x0909]);
    assert_eq!(answers[1].response_code, ResponseCode::NXDomain);
}

#[test]
fn clients_that_stall_are_left() {
    // secondary-dns#55, secondary-dns §6: 10 s unless a test sets less
    assert_eq!(Limits::default().silence, Duration::from_secs(10));
    let limits = Limits {
        // Long enough for the other client on a busy machine.
        silence: Duration::from_secs(8),
        ..Limits::default()
    };
    let mut stage = Stage::unloaded(&[], limits);
    stage.load();
    stage.set("ns1", "vmi1", &[("nic1.vmi1.ns1", "1.2.3.4")]);
    let mut stalled: Vec<Tcp> = (0..50).map(|_| stage.tcp()).collect();
    for (n, stream) in stalled.iter_mut().enumerate() {
        // A part of the length, the length alone, and a part of the query.
        let query = framed(&query("nic1.vmi1.ns1.vm.", RecordType::A));
        stream.write_all(&query[..[1, 2, 20][n % 3]]).unwrap();
    }
    let answer = stage.ask(&query("nic1.vmi1.ns1.vm.", RecordType::A));
    assert_eq!(Message::from_vec(&answer).unwrap().answers.len(), 1);
    for stream in &stalled {
        stream.set_nonblocking(true).unwrap();
        let waits = (&mut &*stream).read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(
            waits,
            Err(io::ErrorKind::WouldBlock),
            "the answer did not wait for its end"
        );
        stream.set_nonblocking(false).unwrap();
    }
    for mut stream in stalled {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end");
    }
}

#[test]
fn connections_have_a_bound_and_none_keeps_others_out() {
    let limits = Limits {
        connections: 3,
        ..Limits::default()
    };
    assert!(Limits::default().connections >= 100);
    let mut stage = Stage::unloaded(&[], limits);
    stage.load();
    stage.set("ns1", "vmi1", &[("nic1.vmi1.ns1", "1.2.3.4")]);
    let asked = framed(&query("nic1.vmi1.ns1.vm.", RecordType::A));
    let mut streams: Vec<Tcp> = (0..10).map(|_| stage.tcp()).collect();
    for stream in streams.iter_mut().rev().take(3) {
        stream.write_all(&asked).unwrap();
        received(stream);
    }
    assert_eq!(
        streams[0].read(&mut [0]).map_or(0, |read| read),
        0,
        "it made room"
    );
    stage.assert_alive();
}

#[test]
fn a_hundred_clients_at_a_time() {
    let stage = Stage::start(&[]);
    let asked = framed(&query("nic1.vmi1.ns1.vm.", RecordType::A));
    let mut streams: Vec<Tcp> = (0..100).map(|_| stage.tcp()).collect();
    for _ in 0..2 {
        for stream in &mut streams {
            stream.write_all(&asked).unwrap();
        }
        for stream in &mut streams {
            received(stream);
        }
    }
}

#[test]
fn noise_gets_no_answer() {
    // secondary-dns#56
    let stage = Stage::start(&[]);
    let socket = stage.udp();
    let mut response = query("nic1.vmi1.ns1.vm.", RecordType::A);
    response[2] |= 0x80;
    let mut noise = 1_u32;
    let mut random = |length: usize| -> Vec<u8> {
        let mut next = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            noise.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    };
    for message in [vec![0], vec![], random(11), response] {
        socket.send(&message).unwrap();
    }
    for length in [12, 13, 100, 512, 512, 512, 1400] {
        let mut message = random(length);
        message[2] &= 0x7f;
        stage.ask(&message);
    }
    stage.assert_alive();
    // All earlier answers arrive before the answer to this query.
    let mut last = query("nic1.vmi1.ns1.vm.", RecordType::A);
    last[0] = 0xff;
    socket.send(&last).unwrap();
    let mut room = [0; 512];
    socket.recv(&mut room).unwrap();
    assert_eq!(room[0], 0xff);
    let mut stream = stage.tcp();
    stream.write_all(&[0xff, 0xff]).unwrap();
    assert_eq!(stream.read(&mut room).unwrap(), 0, "too long for a query");
}

#[test]
fn zone_that_is_not_known_yet() {
    // secondary-dns#57, the answers
    let stage = Stage::unloaded(&[], Limits::default());
    for at in [Z, "a.vm.", "a.b.c.vm."] {
        assert_empty(&stage.ask(&query(at, RecordType::A)), ResponseCode::ServFail);
    }
    assert_empty(
        &stage.ask(&query("example.com.", RecordType::A)),
        ResponseCode::Refused,
    );
    stage.load();
    assert_negative(&stage.answer(Z, RecordType::A), ResponseCode::NoError);
}

#[test]
fn change_is_in_the_next_answer() {
    // secondary-dns#58, all in one process
    let mut stage = Stage::start(&[]);
    let address = |stage: &Stage| {
        let answer = stage.answer("nic1.vmi1.ns1.vm.", RecordType::A);
        answer.answers[0].data.to_string()
    };
    assert_eq!(address(&stage), "1.2.3.4");
    stage.set("ns1", "vmi1", &[("nic1.vmi1.ns1", "1.2.3.5")]);
    assert_eq!(address(&stage), "1.2.3.5");
}

#[test]
fn shared_name_gives_each_address_once() {
    let mut stage = Stage::start(&[]);
    stage.set("c", "a.b", &[("a.b.c", "1.1.1.1")]);
    stage.set("c", "b", &[("a.b.c", "2.2.2.2")]);
    stage.set("c", "b.c", &[("a.b.c", "1.1.1.1")]);
    let answer = stage.answer("a.b.c.vm.", RecordType::A);
    let addresses: Vec<String> = answer.answers.iter().map(|it| it.data.to_string()).collect();
    assert_eq!(addresses, ["1.1.1.1", "2.2.2.2"]);
}

#[test]
fn aliases_of_a_file_are_followed() {
    let stage = Stage::start(&[]);
    let text = "$TTL 60\n@ SOA ns.x. m.x. (1 2 3 4 5)\na CNAME b\nb A 10.0.0.1\nc CNAME d\nd CNAME c\ne CNAME f\ng CNAME h.y.\n";
    lock(&stage.zones).put(file::read(text, &name("x.")).unwrap());
    let answer = stage.answer("a.x.", RecordType::A);
    let data: Vec<String> = answer.answers.iter().map(|it| it.data.to_string()).collect();
    assert_eq!(data, ["b.x.", "10.0.0.1"]);
    assert_eq!(stage.answer("a.x.", RecordType::CNAME).answers.len(), 1);
    assert_eq!(
        stage.answer("c.x.", RecordType::A).response_code,
        ResponseCode::ServFail
    );
    let dangling = stage.answer("e.x.", RecordType::A);
    assert_eq!(
        (dangling.response_code, dangling.answers.len()),
        (ResponseCode::NXDomain, 1)
    );
    let elsewhere = stage.answer("g.x.", RecordType::A);
    assert_eq!(
        (elsewhere.response_code, elsewhere.answers.len()),
        (ResponseCode::NoError, 1)
    );
}

#[test]
fn ipv6_clients_are_answered_and_logged() {
    let stage = Stage::start(&[]);
    let Ok(socket) = Udp::bind("[::1]:0") else {
        eprintln!("skipped: this host has no IPv6");
        return;
    };
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
        .send_to(&query("nic1.vmi1.ns1.vm.", RecordType::A), ("::1", stage.port))
        .unwrap();
    let mut room = [0; 512];
    socket.recv(&mut room).unwrap();
    stage.ask(&query("nic1.vmi1.ns1.vm.", RecordType::A));
    let log = stage.log.clone();
    drop(stage);
    let began = Instant::now();
    let lines = loop {
        let lines = String::from_utf8(lock(&log.0).clone()).unwrap();
        if lines.lines().count() == 2 || began.elapsed() > DEADLINE {
            break lines;
        }
        std::thread::yield_now();
    };
    assert!(
        lines.contains("[INFO] [::1]:") && lines.contains("[INFO] 127.0.0.1:"),
        "{lines}"
    );
    assert!(
        lines.contains("\"A IN nic1.vmi1.ns1.vm. udp 34 false 512\" NOERROR qr,aa,rd 50 "),
        "{lines}"
    );
}

#[test]
fn port_that_is_taken_is_an_error() {
    let stage = Stage::start(&[]);
    let desk = Desk {
        site: Arc::new(Mutex::new(Site(Vec::new()))),
        metrics: Metrics::default(),
        log: QueryLog::to(io::sink()).unwrap(),
    };
    let port = stage.port;
    let error = kube_kit::process::run(async { Server::start(port, &desk, Limits::default()).map(drop) });
    let error = error.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen for DNS on port {port} over UDP")
    );
}

#[test]
fn end_does_not_wait_for_silent_clients() {
    // secondary-dns#60, the server
    let stage = Stage::start(&[]);
    let mut silent = stage.tcp();
    silent.write_all(&[0]).unwrap();
    let began = Instant::now();
    drop(stage);
    let limits = Limits::default();
    assert!(began.elapsed() < limits.silence, "{:?}", began.elapsed());
    assert!(limits.grace < Duration::from_secs(1));
}
