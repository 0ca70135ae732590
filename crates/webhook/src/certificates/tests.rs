//! Rotation in a model with a clock, Secrets, bundles and a client.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};

use super::{
    Identity, Intervals, Pair, State, Step,
    bundle::{self, pem},
    issue, plan, read,
};

const HOUR: Duration = Duration::from_hours(1);

fn identity() -> Identity {
    Identity {
        authority: "the-webhooks".into(),
        service: "server".into(),
        namespace: "addons".into(),
    }
}

fn intervals(ca_rotate: u64, ca_overlap: u64, cert_rotate: u64, cert_overlap: u64) -> Intervals {
    let [ca_rotate, ca_overlap, cert_rotate, cert_overlap] =
        [ca_rotate, ca_overlap, cert_rotate, cert_overlap].map(Duration::from_secs);
    Intervals {
        ca_rotate,
        ca_overlap,
        cert_rotate,
        cert_overlap,
    }
}

/// The operator's defaults.
fn usual() -> Intervals {
    intervals(48 * 3600, 24 * 3600, 24 * 3600, 12 * 3600)
}

/// 2026-11-21 plus a fraction of a second.
fn start() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_795_219_200_250)
}

/// A key that is faster to generate than RSA.
fn quick_key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key")
}

/// Stored objects and the clock.
#[derive(Clone, Debug)]
struct World {
    state: State,
    intervals: Intervals,
    now: SystemTime,
    writes: usize,
}

impl World {
    /// Only a configuration with this many webhooks.
    fn new(intervals: Intervals, webhooks: usize) -> Self {
        Self {
            state: State {
                bundles: vec![Vec::new(); webhooks],
                ..State::default()
            },
            intervals,
            now: start(),
            writes: 0,
        }
    }

    fn settled(intervals: Intervals, webhooks: usize) -> Self {
        let mut world = Self::new(intervals, webhooks);
        world.settle();
        world
    }

    fn steps(&self) -> Vec<Step> {
        plan(&self.state, &identity(), &self.intervals, self.now).steps
    }

    /// Runs a step; the bundles of all webhooks are one write.
    fn take(&mut self, step: Step) {
        self.writes += 1;
        let State {
            authority,
            serving,
            bundles,
        } = &mut self.state;
        match step {
            Step::Authority => {
                let issued = issue::authority(&quick_key(), &identity(), &self.intervals, self.now);
                *authority = Some(issued.expect("an authority"));
            }
            Step::Bundles => {
                let authority = authority
                    .as_ref()
                    .and_then(|pair| read::authority(pair, self.now));
                for pem in bundles {
                    let found = read::certificates(pem);
                    *pem = bundle::to_pem(&bundle::extended(authority.as_ref(), &found, self.now));
                }
            }
            Step::Serving => {
                let signer = authority.clone().expect("an authority");
                let issued = issue::serving(&quick_key(), &signer, &identity(), &self.intervals, self.now);
                *serving = Some(issued.expect("a certificate"));
            }
        }
    }

    /// Runs at most two plans, until nothing is left to do.
    fn settle(&mut self) {
        for step in self.steps() {
            self.take(step);
        }
        assert_eq!(self.steps(), [], "one plan is enough: {self:?}");
    }

    fn next_check(&self) -> SystemTime {
        plan(&self.state, &identity(), &self.intervals, self.now).next_check
    }

    /// Whether clients with each webhook's bundle accept this.
    fn trusts(&self, serving: Option<&Pair>) -> bool {
        let chain = serving.and_then(read::with_key).unwrap_or_default();
        self.state.bundles.iter().all(|bundle| {
            let roots = read::certificates(bundle);
            read::trusted_until(&chain, &roots, &identity().host(), self.now).is_some()
        })
    }

    fn is_trusted(&self) -> bool {
        self.trusts(self.state.serving.as_ref())
    }

    fn bundle(&self) -> Vec<read::Certificate> {
        read::certificates(&self.state.bundles[0])
    }

    fn authority(&self) -> read::Certificate {
        let pair = self.state.authority.as_ref().expect("an authority");
        read::authority(pair, self.now).expect("a usable authority")
    }
}

#[test]
fn first_run_issues_everything_in_trust_order() {
    let mut world = World::new(usual(), 2);
    assert_eq!(world.steps(), [Step::Authority, Step::Bundles, Step::Serving]);
    world.settle();
    assert!(world.is_trusted());
    assert_eq!(world.bundle(), [world.authority()]);
    // The server's certificate is due first: after 12 hours.
    let seconds = world
        .next_check()
        .duration_since(world.now)
        .expect("later")
        .as_secs();
    assert!((12 * 3600 - 1..=12 * 3600).contains(&seconds), "{seconds}");
}

#[test]
fn missing_webhook_still_issues_secrets() {
    let world = World::settled(usual(), 0);
    assert!(world.state.authority.is_some() && world.state.serving.is_some());
}

#[test]
fn names_and_formats_match_upstreams_managers() {
    let key = issue::new_key().expect("a key");
    let ca = issue::authority(&key, &identity(), &usual(), start()).expect("an authority");
    let serving = issue::serving(
        &issue::new_key().expect("a key"),
        &ca,
        &identity(),
        &usual(),
        start(),
    );
    let serving = serving.expect("a certificate");
    for pair in [&ca, &serving] {
        let key = String::from_utf8(pair.key.clone()).expect("text");
        assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----\n"), "{key}");
        let certificate = String::from_utf8(pair.certificate.clone()).expect("text");
        assert!(
            certificate.starts_with("-----BEGIN CERTIFICATE-----\n")
                && certificate.lines().all(|l| l.len() <= 64)
        );
        assert!(read::with_key(pair).is_some());
    }
    let parsed = read::certificates(&serving.certificate).remove(0);
    let (_, parsed) = x509_parser::parse_x509_certificate(&parsed.der).expect("a certificate");
    assert_eq!(parsed.subject().to_string(), "CN=server.addons.pod.cluster.local");
    assert_eq!(parsed.issuer().to_string(), "CN=the-webhooks");
    let names = parsed.subject_alternative_name().expect("names").expect("names");
    let names: Vec<_> = names
        .value
        .general_names
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        names,
        [
            "DNSName(server)",
            "DNSName(server.addons)",
            "DNSName(server.addons.svc)",
            "DNSName(server.addons.svc.cluster.local)"
        ]
    );
    let usage = parsed.extended_key_usage().expect("usage").expect("usage").value;
    assert!(usage.server_auth && !usage.client_auth);
    let long = Identity {
        namespace: "n".repeat(63),
        ..identity()
    };
    assert_eq!(long.common_name(), "server");
}

#[test]
fn new_authority_is_trusted_before_it_signs() {
    let mut world = World::settled(usual(), 1);
    let first = world.authority();
    let mut signed_by_second = None;
    while world.now < start() + 47 * HOUR {
        world.now = world.next_check();
        let before = world.state.serving.clone();
        world.settle();
        assert!(
            world.is_trusted() && world.trusts(before.as_ref()),
            "the pods serve the old one for a while"
        );
        if world.authority() != first && signed_by_second.is_none() {
            assert!(world.bundle().contains(&first) && world.bundle()[0] == world.authority());
            signed_by_second = Some(world.now);
        }
    }
    let rotated = signed_by_second.expect("a new authority");
    assert_eq!(
        rotated.duration_since(start()).expect("later").as_secs() / 3600,
        23,
        "a day before its end"
    );
    world.now = start() + 48 * HOUR + Duration::from_secs(1);
    world.settle();
    assert!(!world.bundle().contains(&first), "it has expired");
    assert!(world.is_trusted());
}

#[test]
fn emptied_bundle_trusts_served_certificate_and_renews() {
    let mut world = World::settled(usual(), 2);
    let before = world.state.clone();
    world.state.bundles = vec![Vec::new(), before.bundles[1].clone()];
    let steps = world.steps();
    assert_eq!(
        steps,
        [Step::Bundles, Step::Authority, Step::Bundles, Step::Serving]
    );
    world.take(steps[0]);
    assert!(world.trusts(before.serving.as_ref()));
    assert_eq!(world.steps(), [], "interrupted here, it is whole");
    world.state.bundles = vec![Vec::new(), before.bundles[1].clone()];
    world.settle();
    assert!(world.trusts(before.serving.as_ref()) && world.is_trusted());
    assert_ne!(world.state.serving, before.serving);
    assert!(
        world
            .state
            .bundles
            .iter()
            .zip(&before.bundles)
            .all(|(now, before)| now != before)
    );
}

#[test]
fn deleted_secret_renews_and_keeps_served_certificate_trusted() {
    let mut world = World::settled(usual(), 1);
    let before = world.state.clone();
    world.state.serving = None;
    world.settle();
    assert!(world.trusts(before.serving.as_ref()) && world.is_trusted());
    assert_ne!(world.state.bundles, before.bundles);

    // Certificates of a lost CA are valid until they expire.
    let before = world.state.clone();
    world.state.authority = None;
    assert_eq!(world.steps(), [Step::Authority, Step::Bundles]);
    world.settle();
    assert_eq!(world.state.serving, before.serving);
    assert!(world.is_trusted());
}

#[test]
fn broken_certificates_are_replaced() {
    let whole = World::settled(usual(), 1).state;
    let other = World::settled(usual(), 1).state;
    let (ca, serving) = (
        whole.authority.clone().expect("it"),
        whole.serving.clone().expect("it"),
    );
    let foreign = other.serving.clone().expect("it");
    let garbage = || b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n\xff".to_vec();
    let of = |certificate: &[u8], key: &[u8]| {
        Some(Pair {
            certificate: certificate.to_vec(),
            key: key.to_vec(),
        })
    };
    for broken in [
        of(b"", b""),
        of(&garbage(), &garbage()),
        of(&serving.certificate, b""),
        of(b"", &serving.key),
        of(&serving.certificate, &foreign.key),
        // Complete, but signed by an untrusted CA.
        other.serving.clone(),
        // CA and server certificate swapped.
        Some(ca.clone()),
    ] {
        let mut world = World::new(usual(), 1);
        world.state = State {
            serving: broken,
            ..whole.clone()
        };
        assert!(world.steps().contains(&Step::Serving), "{world:?}");
        world.settle();
        assert!(world.is_trusted());
    }
    for broken in [
        of(&garbage(), &ca.key),
        of(&ca.certificate, &foreign.key),
        Some(serving),
    ] {
        let mut world = World::new(usual(), 1);
        world.state = State {
            authority: broken,
            ..whole.clone()
        };
        world.settle();
        assert!(world.is_trusted());
    }
    for bundle in [
        garbage(),
        b"{".to_vec(),
        [garbage(), whole.bundles[0].clone()].concat(),
    ] {
        let mut world = World::new(usual(), 1);
        world.state = State {
            bundles: vec![bundle],
            ..whole.clone()
        };
        world.settle();
        assert!(world.is_trusted());
    }
}

#[test]
fn certificate_for_other_name_is_replaced() {
    let mut world = World::settled(usual(), 1);
    let other = Identity {
        namespace: "other_service".into(),
        ..identity()
    };
    let ca = world.state.authority.clone().expect("an authority");
    let issued = issue::serving(&quick_key(), &ca, &other, &usual(), world.now);
    world.state.serving = Some(issued.expect("a certificate"));
    world.settle();
    assert!(world.is_trusted());
}

/// A key and certificate as the upstream certificate managers write them: RSA 2048, and no identifiers of keys.
fn upstream(pkcs8: bool) -> State {
    let name = |parameters: &mut CertificateParams, name: &str| {
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(
            DnType::CommonName,
            rcgen::DnValue::PrintableString(name.try_into().expect("a name")),
        );
        parameters.not_before = rcgen::date_time_ymd(2026, 11, 1);
        parameters.not_after = rcgen::date_time_ymd(2027, 11, 1);
    };
    let ca_key = issue::new_key().expect("a key");
    let mut ca = CertificateParams::default();
    name(&mut ca, "kubemacpool-mutator");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    let ca_certificate = ca.self_signed(&ca_key).expect("an authority");
    let key = issue::new_key().expect("a key");
    let mut leaf = CertificateParams::new(identity().hosts()).expect("names");
    name(&mut leaf, "server.addons.pod.cluster.local");
    let leaf = leaf
        .signed_by(&key, &Issuer::from_params(&ca, &ca_key))
        .expect("a certificate");
    let pair = |certificate: &rcgen::Certificate, key: &KeyPair| {
        let written = issue::key_pem(key).expect("a key");
        Pair {
            certificate: pem("CERTIFICATE", certificate.der()).into_bytes(),
            key: if pkcs8 { key.serialize_pem() } else { written }.into_bytes(),
        }
    };
    let authority = pair(&ca_certificate, &ca_key);
    let mut serving = pair(&leaf, &key);
    // Earlier certificates are kept behind the current one.
    serving.certificate.extend(authority.certificate.clone());
    State {
        bundles: vec![authority.certificate.clone(); 2],
        authority: Some(authority),
        serving: Some(serving),
    }
}

#[test]
fn certificates_of_upstreams_manager_are_kept() {
    for pkcs8 in [false, true] {
        let mut world = World::new(intervals(8760 * 3600, 24 * 3600, 4380 * 3600, 24 * 3600), 2);
        world.state = upstream(pkcs8);
        assert_eq!(world.steps(), []);
        assert!(world.is_trusted());
        // Its CA signs until it expires.
        let adopted = world.authority();
        world.now = world.next_check();
        world.settle();
        assert!(world.is_trusted() && world.bundle().contains(&adopted));
        world.state.authority = Some(upstream(pkcs8).authority.expect("it"));
        world.settle();
        assert!(world.is_trusted());
    }
}

#[test]
fn server_certificate_may_use_adopted_authority() {
    let state = upstream(false);
    let ca = state.authority.expect("an authority");
    let issued = issue::serving(&quick_key(), &ca, &identity(), &usual(), start()).expect("a certificate");
    let chain = read::with_key(&issued).expect("a chain");
    let roots = read::certificates(&ca.certificate);
    assert!(read::trusted_until(&chain, &roots, &identity().host(), start()).is_some());
}

/// cert-manager's self-signed certificates are their own CA, have no subject, and are in the bundle.
#[test]
fn self_signed_certificate_is_served_until_due() {
    let key = issue::new_key().expect("a key");
    let hosts = [
        "server.addons.svc".to_owned(),
        "server.addons.svc.cluster.local".to_owned(),
    ];
    let mut leaf = CertificateParams::new(hosts).expect("names");
    leaf.distinguished_name = DistinguishedName::new();
    leaf.not_before = rcgen::date_time_ymd(2026, 11, 1);
    leaf.not_after = rcgen::date_time_ymd(2027, 2, 1);
    let leaf = leaf.self_signed(&key).expect("a certificate");
    let certificate = pem("CERTIFICATE", leaf.der()).into_bytes();
    let mut world = World::new(usual(), 1);
    world.state.bundles = vec![certificate.clone()];
    world.state.serving = Some(Pair {
        certificate,
        key: issue::key_pem(&key).expect("a key").into_bytes(),
    });
    let before = world.state.serving.clone();
    world.settle();
    assert_eq!(world.state.serving, before);
    assert!(world.is_trusted() && world.bundle().len() == 2 && world.bundle()[0] == world.authority());
}

#[test]
fn odd_intervals_neither_spin_nor_lapse() {
    let hour = 3600;
    for intervals in [
        // Accepted by the operator's validation.
        intervals(hour, hour, hour, hour),
        intervals(48 * hour, 1, 48 * hour, 48 * hour),
        intervals(48 * hour, hour, 24 * hour, 12 * hour),
        // Below the resolution of certificates.
        intervals(0, 0, 0, 0),
        intervals(1, 1, 1, 1),
    ] {
        const LOOKS: u32 = 60;
        let mut world = World::settled(intervals, 1);
        for _ in 0..LOOKS {
            let now = world.next_check();
            assert!(now > world.now, "{intervals:?}");
            world.now = now;
            assert!(world.is_trusted(), "{intervals:?}: checked too late");
            world.settle();
            assert!(world.is_trusted() && world.bundle().len() <= 12, "{intervals:?}");
        }
        let passed = world.now.duration_since(start()).expect("later");
        assert!(
            passed >= intervals.cert_life() / 30 * LOOKS,
            "{intervals:?}: {passed:?}"
        );
    }
}

/// An event between two checks.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes until something is due.
    Wait,
    /// The process is killed after this many writes.
    Killed(usize),
    /// The clock jumps by this many seconds.
    Jump(i64),
    /// An object is deleted or damaged.
    Damage(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Wait),
        3 => (0_usize..4).prop_map(Event::Killed),
        1 => (-400_000_i64..400_000).prop_map(Event::Jump),
        1 => (0_u8..5).prop_map(Event::Damage),
    ]
}

impl World {
    fn damage(&mut self, how: u8) {
        match how {
            0 => self.state.serving = None,
            1 => self.state.authority = None,
            2 => self.state.bundles[0].clear(),
            3 => self.state.serving = Some(Pair::default()),
            _ => self
                .state
                .bundles
                .iter_mut()
                .for_each(|bundle| bundle.truncate(40)),
        }
    }

    fn jump(&mut self, seconds: i64) {
        let distance = Duration::from_secs(seconds.unsigned_abs());
        self.now = if seconds < 0 {
            self.now - distance
        } else {
            self.now + distance
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

/// No handshake fails, wherever the process is killed: neither with the current certificate nor with the previous one
    /// that pods still serve.
    #[test]
    fn rotation_never_fails_a_handshake(
        kills in proptest::collection::vec(0_usize..4, 1..24),
        overlap in 0_u64..=48,
        cert in 1_u64..=48,
        cert_overlap in 0_u64..=48,
    ) {
        let hour = 3600;
        let intervals = intervals(48 * hour, overlap * hour + 60, cert * hour, (cert_overlap.min(cert) * hour).max(60));
        let mut world = World::settled(intervals, 2);
        for kill in kills {
            world.now = world.next_check();
            prop_assert!(world.is_trusted(), "too late");
            let before = world.state.serving.clone();
            for step in world.steps().into_iter().take(kill) {
                world.take(step);
                prop_assert!(world.is_trusted() && world.trusts(before.as_ref()), "{step:?}");
            }
            // The next process starts from the stored objects.
            let rest = world.steps();
            for step in rest {
                world.take(step);
                prop_assert!(world.is_trusted() && world.trusts(before.as_ref()), "{step:?}");
            }
            prop_assert_eq!(world.steps(), []);
            prop_assert!(world.bundle().len() <= 12);
        }
    }

/// After any event, one check restores everything, nothing spins, and bundles stay small.
    #[test]
    fn every_check_leaves_valid_certificates(events in proptest::collection::vec(event(), 1..24)) {
        let mut world = World::settled(usual(), 2);
        let mut damages = 0;
        for event in events {
            match event {
                Event::Wait => world.now = world.next_check(),
                Event::Killed(writes) => {
                    world.now = world.next_check();
                    for step in world.steps().into_iter().take(writes) {
                        world.take(step);
                    }
                }
                Event::Jump(seconds) => world.jump(seconds),
                Event::Damage(how) => world.damage(how),
            }
            damages += 1;
            let writes = world.writes;
            world.settle();
            prop_assert!(world.writes - writes <= 4);
            prop_assert!(world.is_trusted());
            prop_assert!(world.next_check() > world.now);
            prop_assert!(world.bundle().len() <= 2 + damages);
            prop_assert!(world.bundle().iter().all(|certificate| !certificate.is_expired_at(world.now)));
        }
    }

/// No stored data causes a panic.
    #[test]
    fn any_bytes_are_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..1500) {
        let mut world = World::settled(usual(), 1);
        let cut_off = |pem: &mut Vec<u8>| {
            let at = cut.min(pem.len());
            pem.splice(at..pem.len().min(at + bytes.len()), bytes.iter().copied());
        };
        if let Some(pair) = &mut world.state.serving {
            cut_off(&mut pair.certificate);
            cut_off(&mut pair.key);
        }
        if let Some(pair) = &mut world.state.authority {
            cut_off(&mut pair.key);
        }
        cut_off(&mut world.state.bundles[0]);
        world.settle();
        prop_assert!(world.is_trusted());
    }
}

// kubemacpool#85
#[test]
fn bundle_is_bounded() {
    let mut world = World::settled(usual(), 1);
    for _ in 0..120 {
        world.damage(0);
        world.settle();
    }
    assert_eq!(world.bundle().len(), 100);
    assert!(world.is_trusted() && world.bundle()[0] == world.authority());
}
