//! IPAM plugins that are other programs, and failures of these plugins and of later steps.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::stage::{finish, l2, l3, on_a_host, start, variables, with};

fn fake(version: &str) -> Value {
    with(&l2(version), "ipam", json!({ "type": "fake" }))
}

// cni-plugins#8
#[test]
fn ipam_error_is_returned_and_later_error_releases_addresses() {
    on_a_host("IPAM errors", |host| {
        let pod = host.pod();
        let record = r#"echo "$CNI_COMMAND" >> /run/fake.calls"#;
        let error = r#"echo '{"code":11,"msg":"later","details":"busy"}'; exit 1"#;
        host.script("fake", &format!("{record}; {error}"));
        let refused = host.call("ADD", &pod, &fake("1.0.0"));
        assert_eq!(refused.failure(), (11, "later".into()));
        assert_eq!(refused.json()["details"], "busy");
        assert_eq!(
            host.fake_calls(),
            ["ADD"],
            "nothing was assigned, nothing is given back"
        );
        assert!(pod.link("net1").is_none());

        // The bridge has another address already: ADD fails after IPAM has assigned one.
        let first = host.pod();
        host.add(
            &first,
            &with(&l3("1.0.0", &["10.0.0.9/8"]), "isGateway", true.into()),
        );
        host.fake_ipam(&json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.2.3/16" }] }));
        let refused = host.call("ADD", &pod, &with(&fake("1.0.0"), "isGateway", true.into()));
        assert!(
            refused
                .message()
                .contains("already has an IP address different from"),
            "{refused:?}"
        );
        assert_eq!(host.fake_calls(), ["ADD", "DEL"]);
        assert!(pod.link("net1").is_none(), "a failed ADD leaves nothing");
        assert_eq!(host.veths().len(), 1);
    });
}

// cni-plugins#24
#[test]
fn an_answer_without_addresses_is_an_error() {
    on_a_host("IPAM without addresses", |host| {
        let pod = host.pod();
        host.fake_ipam(&json!({ "cniVersion": "1.0.0" }));
        let refused = host.call("ADD", &pod, &fake("1.0.0"));
        assert_eq!(refused.message(), "IPAM plugin returned missing IP config");
        assert_eq!(host.fake_calls(), ["ADD", "DEL"]);
        assert!(pod.link("net1").is_none());
    });
}

#[test]
fn port_that_stays_down_fails_the_add() {
    on_a_host("ports that stay down", |host| {
        let pod = host.pod();
        // While addresses are assigned, another process sets the port down.
        let wait = ": > /run/asked; until [ -e /run/answer ]; do /bin/sleep 0.01; done";
        let answer = r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}'"#;
        host.script(
            "fake",
            &format!("[ $CNI_COMMAND = ADD ] || exit 0; {wait}; {answer}"),
        );
        let config = fake("1.0.0").to_string();
        let add = start("bridge", &variables("ADD", &pod, "net1", ""), &config);
        let deadline = Instant::now() + Duration::from_mins(1);
        while !fs::exists("/run/asked").unwrap() {
            assert!(Instant::now() < deadline, "IPAM is not called");
            std::thread::yield_now();
        }
        let port = host.veths().remove(0);
        assert!(port.is_up());
        host.socket.set_down(&port).unwrap();
        fs::write("/run/answer", "").unwrap();
        assert_eq!(finish(add).message(), "bridge port in error state: down");
        assert!(pod.link("net1").is_none(), "a failed ADD leaves nothing");
        assert_eq!(host.veths(), []);
    });
}

#[test]
fn a_missing_ipam_plugin_is_named() {
    on_a_host("missing IPAM plugin", |host| {
        let pod = host.pod();
        let refused = host.call("ADD", &pod, &fake("1.0.0"));
        assert_eq!(
            refused.message(),
            "failed to find plugin \"fake\" in path [/run/plugins]"
        );
        assert!(pod.link("net1").is_none());
    });
}

#[test]
fn plugin_as_its_own_ipam_plugin_is_rejected() {
    on_a_host("bridge as IPAM", |host| {
        let pod = host.pod();
        for name in ["bridge", "cnv-bridge", "multus-shim"] {
            let config = with(&l2("1.1.0"), "ipam", json!({ "type": name }));
            let refused = host.call("ADD", &pod, &config).message();
            assert_eq!(refused, format!("\"{name}\" assigns no addresses"));
            assert!(pod.link("net1").is_none());
            let status = host.call("STATUS", &pod, &config).message();
            assert_eq!(status, refused);
            host.del(&pod, &config);
            let nothing_valid = with(&config, "cni.dev/valid-attachments", json!([]));
            assert_eq!(host.gc(&nothing_valid).success(), Value::Null);
        }
    });
}

#[test]
fn del_of_incomplete_attachment_releases_addresses() {
    on_a_host("DEL with IPAM", |host| {
        host.fake_ipam(&json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.2.3/16" }] }));
        let config = fake("1.0.0");
        let mut pod = host.pod();
        let result = host.add(&pod, &config);
        assert_eq!(pod.addresses(), ["10.1.2.3/16"]);
        host.check(&pod, &config, &result).success();
        assert_eq!(host.fake_calls(), ["ADD", "CHECK"]);

        let path = std::mem::take(&mut pod.path);
        host.del(&pod, &config);
        assert_eq!(host.fake_calls(), ["DEL"]);
        assert!(
            pod.link("net1").is_none(),
            "the host's end is known from the record"
        );
        pod.path = path;
        host.del(&pod, &config);
        pod.lose_path();
        host.del(&pod, &config);
        assert_eq!(host.fake_calls(), ["DEL", "DEL"]);

        host.script("fake", "echo '{\"code\":5,\"msg\":\"disk full\"}'; exit 1");
        assert_eq!(host.call("DEL", &pod, &config).failure(), (5, "disk full".into()));
    });
}

#[test]
fn status_and_gc_are_those_of_ipam() {
    on_a_host("STATUS and GC", |host| {
        host.fake_ipam(&json!({}));
        let pod = host.pod();
        let listed = |config: &Value| with(config, "cni.dev/valid-attachments", json!([]));
        for verb in ["STATUS", "GC"] {
            host.call(verb, &pod, &listed(&fake("1.1.0"))).success();
            assert_eq!(host.fake_calls(), [verb]);
            host.call(verb, &pod, &listed(&l2("1.1.0"))).success();
        }
        // An IPAM plugin could take a missing list for an empty one: it is not called.
        host.gc(&fake("1.1.0")).success();
        assert_eq!(host.fake_calls(), Vec::<String>::new());
        host.script("fake", "echo '{\"code\":50,\"msg\":\"not yet\"}'; exit 1");
        assert_eq!(
            host.call("STATUS", &pod, &fake("1.1.0")).failure(),
            (50, "not yet".into())
        );
    });
}

#[test]
fn static_runs_in_process_despite_cni_path() {
    on_a_host("own IPAM plugins", |host| {
        fs::remove_file("/run/plugins/static").unwrap();
        host.script("static", "exit 1");
        let pod = host.pod();
        host.add(&pod, &l3("1.0.0", &["10.1.2.3/24"]));
        assert_eq!(pod.addresses(), ["10.1.2.3/24"]);
    });
}
