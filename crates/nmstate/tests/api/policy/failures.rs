//! Policies that can't be applied.

use super::*;

/// The engine's refusal that another attempt might not meet.
fn unverified() -> weft_nmstate::engine::Error {
    host::error("VerificationError", "it did not last")
}

fn many(retries: u32) -> Settings {
    Settings {
        max_retries: retries,
        ..settings()
    }
}

/// Settings with which the second of five attempts comes after the end of every test.
fn patient() -> Settings {
    Settings {
        initial_backoff: 2 * DEADLINE,
        max_backoff: 2 * DEADLINE,
        ..many(5)
    }
}

/// The node `node01`, whose host refuses every document, with its handler.
fn refusing(stage: &Stage, settings: Settings) -> (Host, Task) {
    stage.node("node01", &[]);
    let host = Host::new(host::two_nics());
    host.refuse(unverified());
    let handler = handler_with(stage, "node01", &host, settings);
    (host, handler)
}

// nmstate#25, nmstate#29, nmstate#30
#[test]
fn policy_has_limited_attempts_per_generation() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    let host = Host::new(host::two_nics());
    let (heard, attempts) = std::sync::mpsc::channel();
    let heard = Mutex::new(heard);
    let gates = Arc::new(Mutex::new(Vec::<Gate>::new()));
    let next = Arc::clone(&gates);
    // Each attempt waits for the test's check.
    host.on_apply(move |_| {
        let gate = Gate::default();
        next.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(gate.clone());
        let _ = heard.lock().unwrap_or_else(PoisonError::into_inner).send(());
        gate.pass();
        Err(unverified())
    });
    let _handler = handler_with(&stage, "node01", &host, many(3));
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let attempt = |number: usize| {
        attempts.recv_timeout(DEADLINE).expect("another attempt");
        let gate = gates.lock().unwrap_or_else(PoisonError::into_inner)[number].clone();
        let policy = stage.get(Kind::Policy, "p").expect("it");
        assert_eq!(
            policy["status"]["unavailableNodeCountMap"],
            json!({ "1": 1 }),
            "one slot, however often it is tried"
        );
        gate
    };
    attempt(0).open();
    for (number, text) in [(1, "Retrying 1/3"), (2, "Retrying 2/3")] {
        let gate = attempt(number);
        // Between two attempts the condition reported it; by now the next attempt runs, and the count has the failures.
        let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
        assert_eq!(
            enactment["status"]["retryCount"],
            json!({ "1": number }),
            "before {text}"
        );
        gate.open();
    }
    let text = "error reconciling NodeNetworkConfigurationPolicy on node node01 at desired state apply: \"\",\n \
                VerificationError: it did not last";
    let enactment = wait_until_said(&stage, Kind::Enactment, "node01.p", failing(text));
    assert_eq!(enactment["status"]["retryCount"], json!({ "1": 3 }));
    let one = degraded("1/1 nodes failed to configure");
    wait_until_said(&stage, Kind::Policy, "p", one);
    let event = "Warning ReconcileFailed NodeNetworkConfigurationPolicy/p x1: \
                 reconciliation of enactment \"node01.p\" has failed after 3 retries";
    wait_for_event(&stage, event);
    let mut events = stage.list(Kind::Event);
    events.retain(|event| event["involvedObject"]["kind"] == "NodeNetworkConfigurationPolicy");
    assert_eq!(events[0]["source"]["component"], "node01.nmstate-handler");

    // Another pass is no reason for another attempt.
    let labels = json!({ "metadata": { "labels": { "zone": "a" } } });
    stage.patch(Kind::Node, "node01", &labels).accepted();
    host.on_apply(|_| Ok(()));
    stage.create(Kind::Policy, &policy("q", &json!({ "desiredState": mtu(1300) })));
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "q", all);
    assert_eq!(host.applied(), [mtu(1400), mtu(1400), mtu(1400), mtu(1300)]);
    wait_until_said(&stage, Kind::Policy, "p", one);

    let other = json!({ "spec": { "desiredState": mtu(1350) } });
    stage.patch(Kind::Policy, "p", &other).accepted();
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({}));
    let enactment = wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    assert_eq!(enactment["status"]["policyGeneration"], 2);
    assert_eq!(enactment["status"].get("retryCount"), None, "{enactment:#}");
}

// nmstate#29
#[test]
fn enactment_between_attempts_names_the_next_one() {
    let stage = Stage::start();
    let _node = refusing(&stage, patient());
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    stage.wait_for("the first failure", (Kind::Enactment, "node01.p"), |enactment| {
        (status_of(enactment?, "Failing") == "True").then_some(())
    });
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    let rows: Vec<String> = enactment["status"]["conditions"]
        .as_array()
        .expect("conditions")
        .iter()
        .map(|one| {
            let message = one["message"].as_str().unwrap_or_default();
            format!("{} {} {} {message}", one["type"], one["status"], one["reason"])
        })
        .collect();
    let text = "failed to reconcile NodeNetworkConfigurationPolicy on node node01. Retrying 1/5";
    assert_eq!(
        rows,
        [
            r#""Available" "False" "Retrying" "#.to_owned(),
            format!(r#""Failing" "True" "Retrying" {text}"#),
            format!(r#""Progressing" "True" "Retrying" {text}"#),
            r#""Pending" "False" "Retrying" "#.to_owned(),
            r#""Aborted" "False" "SuccessfullyConfigured" "#.to_owned(),
        ]
    );
    assert_eq!(enactment["status"]["retryCount"], json!({ "1": 1 }));
}

#[test]
fn final_render_failure_after_a_failed_attempt_holds_no_slot() {
    let stage = Stage::start();
    stage.node("node01", &[("nic", "eth1")]);
    let host = Host::new(host::two_nics());
    host.refuse(unverified());
    let _handler = handler_with(&stage, "node01", &host, patient());
    let nic = json!({ "name": "{{ node.labels.nic }}", "type": "ethernet", "state": "up", "mtu": 1400 });
    let spec = json!({ "desiredState": { "interfaces": [nic] } });
    stage.create(Kind::Policy, &policy("p", &spec));
    let text = "failed to reconcile NodeNetworkConfigurationPolicy on node node01. Retrying 1/5";
    stage.wait_for("the first failure", (Kind::Enactment, "node01.p"), |enactment| {
        let conditions = enactment?["status"]["conditions"].as_array()?;
        conditions.iter().any(|one| one["message"] == text).then_some(())
    });
    let without = json!({ "metadata": { "labels": { "nic": null } } });
    stage.patch(Kind::Node, "node01", &without).accepted();
    let one = degraded("1/1 nodes failed to configure");
    wait_until_said(&stage, Kind::Policy, "p", one);
    wait_for_slots(&stage, 0);
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    assert_eq!(enactment["status"].get("retryCount"), None, "{enactment:#}");
    assert_eq!(host.applied(), [mtu(1400)]);
}

#[test]
fn event_without_an_answer_delays_no_other_policy() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    let host = Host::new(host::two_nics());
    host.refuse(host::error("NotSupportedError", "there is no such thing here"));
    let _handler = handler_by(&stage, "node01", &host, settings(), unprobed(), |client| {
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request: axum::http::Request<kube::client::Body>| {
            let client = client.clone();
            async move {
                if request.uri().path() == Kind::Event.path() {
                    std::future::pending::<()>().await;
                }
                client.send(request).await
            }
        });
        kube::Client::new(service, namespace)
    });
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let one = degraded("1/1 nodes failed to configure");
    wait_until_said(&stage, Kind::Policy, "p", one);
    let began = Instant::now();
    stage.create(Kind::Policy, &policy("q", &json!({ "desiredState": mtu(1300) })));
    wait_until_said(&stage, Kind::Policy, "q", one);
    let reported = began.elapsed();
    // Three attempts to create the first event take half a minute.
    assert!(reported < Duration::from_secs(20), "after {reported:?}");
}

// nmstate#102
#[test]
fn policy_after_a_failed_attempt_is_stalled() {
    let stage = Stage::start();
    let _node = refusing(&stage, patient());
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let progressing = "Policy is progressing 0/1 nodes finished";
    let progressing = ["Progressing", "ConfigurationProgressing", progressing];
    stage.wait_for("the policy to stall", (Kind::Policy, "p"), |policy| {
        let conditions = policy?["status"]["conditions"].as_array()?;
        let available = conditions.iter().find(|one| one["type"] == "Available")?;
        let stalls = available["status"] == "Unknown" && available["reason"] == "ConfigurationStalled";
        (stalls && said(policy?)? == progressing).then_some(())
    });
}

// nmstate#27
#[test]
fn policy_that_fails_is_aborted_on_the_other_nodes() {
    let stage = Stage::start();
    let names = ["node01", "node02", "node03", "node04"];
    let hosts = nodes(&stage, &names);
    for (host, _) in &hosts {
        host.refuse(unverified());
    }
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let text = "2/4 nodes failed to configure, 2 nodes aborted configuration";
    wait_until_said(&stage, Kind::Policy, "p", degraded(text));
    let tried = hosts.iter().filter(|(host, _)| !host.applied().is_empty());
    assert_eq!(tried.count(), 2);
    for (name, (host, _)) in names.iter().zip(&hosts) {
        let enactment = stage
            .get(Kind::Enactment, &format!("{name}.p"))
            .expect("an enactment");
        let [condition, reason, message] = said(&enactment).expect("a condition");
        if host.applied().is_empty() {
            let text = format!("reconciliation of enactment \"{name}.p\" has aborted");
            assert_eq!((condition.as_str(), message), ("Aborted", text));
            assert_eq!(reason, "ConfigurationAborted");
        } else {
            assert_eq!(
                (condition.as_str(), reason.as_str()),
                ("Failing", "FailedToConfigure")
            );
            assert_eq!(host.applied().len(), 5);
        }
    }
    // The status stays after further checks.
    let labels = json!({ "metadata": { "labels": { "zone": "a" } } });
    for name in names {
        stage.patch(Kind::Node, name, &labels).accepted();
    }
    for (host, _) in &hosts {
        host.on_apply(|_| Ok(()));
    }
    let other = json!({ "desiredState": mtu(1300), "maxUnavailable": "100%" });
    stage.create(Kind::Policy, &policy("q", &other));
    let all = configured("4/4 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "q", all);
    wait_until_said(&stage, Kind::Policy, "p", degraded(text));
}

// nmstate#28, nmstate#37
#[test]
fn first_failure_is_reported_while_other_nodes_progress() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    let gate = Gate::default();
    let (slow, bad) = (Host::new(host::two_nics()), Host::new(host::two_nics()));
    gate.hold(&slow);
    let refusing = Gate::default();
    let passing = refusing.clone();
    bad.on_apply(move |_| {
        passing.pass();
        Err(unverified())
    });
    let _slow = handler(&stage, "node01", &slow);
    let _bad = handler_with(&stage, "node02", &bad, many(1));
    let spec = json!({ "maxUnavailable": 2, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    gate.wait_for(1);
    refusing.wait_for(1);
    let began = Instant::now();
    refusing.open();
    wait_until_said(
        &stage,
        Kind::Policy,
        "p",
        degraded("1/2 nodes failed to configure"),
    );
    let reported = began.elapsed();
    // 2 s are promised; a machine that is busy with other tests takes longer. No periodic check would be this early.
    assert!(
        reported < Duration::from_secs(20),
        "a failure was reported after {reported:?}"
    );
    assert_eq!(gate.state().now, 1, "the other is still at it");
    gate.open();
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
}

// nmstate#56
#[test]
fn invalid_document_is_not_retried() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let nonsense = json!({ "interfaces": [{ "name": "{{ capture.none.interfaces.0.name }}" }] });
    let nothing = json!({ "none": "interfaces.name==\"nosuch\"" });
    stage.create(
        Kind::Policy,
        &policy("p", &json!({ "capture": nothing, "desiredState": nonsense })),
    );
    let one = degraded("1/1 nodes failed to configure");
    let policy = wait_until_said(&stage, Kind::Policy, "p", one);
    assert_eq!(
        policy["status"].get("unavailableNodeCountMap"),
        None,
        "{policy:#}"
    );
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    let [condition, reason, message] = said(&enactment).expect("a condition");
    assert_eq!(
        (condition.as_str(), reason.as_str()),
        ("Failing", "FailedToConfigure")
    );
    assert!(
        message.starts_with("failure generating desiredState and capturedStates: ")
            && message.contains("interface with 'name=nosuch' not found"),
        "{message}"
    );
    assert_eq!(enactment["status"]["policyGeneration"], 1);
    let mark = stage.mark();
    stage.create(
        Kind::Policy,
        &super::policy("q", &json!({ "desiredState": mtu(1300) })),
    );
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "q", all);
    let writes = stage.writes_since(mark);
    assert!(
        writes.iter().all(|write| !write.uri.contains("node01.p")),
        "{writes:#?}"
    );
    assert_eq!(hosts[0].0.applied(), [mtu(1300)]);
}

#[test]
fn render_failure_is_retried_and_reported_once() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let (host, _) = &hosts[0];
    host.unreadable(Some(host::error("PluginFailure", "NetworkManager is away")));
    let capture = json!({ "nic": "interfaces.name==\"eth1\"" });
    let nic = json!({ "name": "{{ capture.nic.interfaces.0.name }}", "type": "ethernet", "mtu": 1400 });
    let spec = json!({ "capture": capture, "desiredState": { "interfaces": [nic] } });
    stage.create(Kind::Policy, &policy("p", &spec));
    // nmstate#124
    let text = "failure generating desiredState and capturedStates: PluginFailure: NetworkManager is away; \
                another attempt follows";
    wait_until_said(&stage, Kind::Enactment, "node01.p", ["Failing", "Retrying", text]);
    let wait_for_attempts = |more: usize| {
        let before = host.reports();
        wait_for("more attempts", || match host.reports() {
            now if now >= before + more => Ok(()),
            now => Err(format!("{} of {more}", now - before)),
        });
    };
    // A write is in the audit log a moment after its effect, and before the next attempt.
    wait_for_attempts(1);
    let mark = stage.mark();
    wait_for_attempts(5);
    let writes = stage.writes_since(mark);
    let again = writes.iter().filter(|write| write.uri.contains("node01.p"));
    assert_eq!(again.count(), 0, "{writes:#?}");
    host.unreadable(None);
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
}

#[test]
fn final_failure_has_one_attempt() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let refused = host::error("NotSupportedError", "there is no such thing here");
    hosts[0].0.refuse(refused);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let one = degraded("1/1 nodes failed to configure");
    let policy = wait_until_said(&stage, Kind::Policy, "p", one);
    assert_eq!(
        policy["status"]["unavailableNodeCountMap"],
        json!({ "1": 1 }),
        "the slot is kept"
    );
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    let text = "error reconciling NodeNetworkConfigurationPolicy on node node01 at desired state apply: \"\",\n \
                NotSupportedError: there is no such thing here";
    assert_eq!(said(&enactment), Some(failing(text).map(str::to_owned)));
    assert_eq!(enactment["status"]["retryCount"], json!({ "1": 5 }));
    let event = "Warning ReconcileFailed NodeNetworkConfigurationPolicy/p x1: \
                 reconciliation of enactment \"node01.p\" has failed, another attempt would fail as well";
    wait_for_event(&stage, event);
    assert_eq!(hosts[0].0.applied(), [mtu(1400)]);
}

// nmstate#107
#[test]
fn dry_run_of_a_policy_that_failed_for_good_works() {
    let stage = Stage::start();
    let (host, _handler) = refusing(&stage, many(1));
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let one = degraded("1/1 nodes failed to configure");
    wait_until_said(&stage, Kind::Policy, "p", one);

    let dry = |value: Value| json!({ "metadata": { "annotations": { "nmstate.io/dry-run": value } } });
    stage.patch(Kind::Policy, "p", &dry(json!("true"))).accepted();
    let none = configured("1/1 nodes tried, nothing was applied");
    wait_until_said(&stage, Kind::Policy, "p", none);
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    let status = &enactment["status"];
    assert_eq!(status["diff"]["interfaces"][0]["mtu"], 1400, "{enactment:#}");
    assert_eq!(status.get("retryCount"), None, "{enactment:#}");
    assert_eq!(host.applied(), [mtu(1400)]);

    // The end of the dry run is a new attempt.
    host.on_apply(|_| Ok(()));
    stage.patch(Kind::Policy, "p", &dry(Value::Null)).accepted();
    let all = configured("1/1 nodes successfully configured");
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({}));
    assert_eq!(host.applied(), [mtu(1400), mtu(1400)]);
}

// nmstate#124
#[test]
fn dry_run_that_failed_on_the_host_is_retried() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let away = host::error("PluginFailure", "NetworkManager is away");
    hosts[0].0.unreadable(Some(away));
    let mut tried = policy("p", &json!({ "desiredState": mtu(1400) }));
    tried["metadata"]["annotations"] = json!({ "nmstate.io/dry-run": "true" });
    stage.create(Kind::Policy, &tried);
    let text = "PluginFailure: NetworkManager is away; another attempt follows";
    wait_until_said(&stage, Kind::Enactment, "node01.p", ["Failing", "Retrying", text]);
    hosts[0].0.unreadable(None);
    let none = configured("1/1 nodes tried, nothing was applied");
    wait_until_said(&stage, Kind::Policy, "p", none);
    assert!(hosts[0].0.applied().is_empty());
}

// nmstate#113
#[test]
fn policy_that_failed_in_an_outage_is_applied_after_it() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    let host = Host::new(host::two_nics());
    let _handler = handler_with(&stage, "node01", &host, many(2));
    host.lose_network_manager();
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let one = degraded("1/1 nodes failed to configure");
    wait_until_said(&stage, Kind::Policy, "p", one);
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    assert_eq!(enactment["status"]["retryCount"], json!({ "1": 2 }));
    host.regain_network_manager();
    let all = configured("1/1 nodes successfully configured");
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({}));
    assert_eq!(host.applied(), [mtu(1400), mtu(1400), mtu(1400)]);

    // The start leads to no attempt at other policies: neither at an applied one, nor at one with another failure.
    host.refuse(unverified());
    stage.create(
        Kind::Policy,
        &super::policy("q", &json!({ "desiredState": mtu(1300) })),
    );
    wait_until_said(&stage, Kind::Policy, "q", one);
    let before = host.applied().len();
    host.regain_network_manager();
    stage.create(
        Kind::Policy,
        &super::policy("r", &json!({ "desiredState": mtu(1350) })),
    );
    wait_until_said(&stage, Kind::Policy, "r", all);
    assert_eq!(host.applied()[before..], [mtu(1350)]);
    wait_until_said(&stage, Kind::Policy, "q", one);
}
