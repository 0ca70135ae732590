use std::future::pending;
use std::net::Ipv4Addr;

use kube_kit::serve::Bind;
use kube_kit::tls::Profile;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::*;
use crate::election::tests::LeaseServer;

#[tokio::test(start_paused = true)]
async fn one_of_several_replicas_that_ends_serves_until_it_is_drained() {
    let local: Bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into();
    let certificates = tempfile::tempdir().unwrap();
    let settings = Settings {
        webhook: local,
        probes: Bind::Off,
        metrics: Bind::Off,
        elect: true,
        http2: false,
        certificates: certificates.path().to_owned(),
        default_namespace: "ns1".to_owned(),
        profile: Profile::default(),
    };
    let client = LeaseServer::default().client();
    let running = Manager::new(settings).start(client, "me").await.unwrap();
    let (address, shutdown, began) = (running.address(), Shutdown::new(), Instant::now());
    shutdown.trigger();
    let asked = async {
        sleep(DRAIN.saturating_sub(Duration::from_millis(1))).await;
        TcpStream::connect(address).await.expect("it serves");
    };
    let (run, ()) = tokio::join!(Box::pin(running.run(&shutdown)), asked);
    run.unwrap();
    assert!(began.elapsed() >= DRAIN);
    assert!(TcpStream::connect(address).await.is_err(), "it has ended");
}

/// Requests for the Lease of a holder that is shut down while it does this work.
async fn requests_with(work: impl Future<Output = bool>) -> Vec<String> {
    let server = LeaseServer::default();
    let election = Election::new(server.client(), "ns1", "me");
    let (mut leadership, shutdown) = (election.leadership(), Shutdown::new());
    let shut_down = async {
        leadership.won().await;
        shutdown.trigger();
        Ok(())
    };
    tokio::try_join!(ended(work, Some(election), &shutdown), shut_down).unwrap();
    server.requests()
}

// kubevirt-ipam#94, the decision
#[tokio::test(start_paused = true)]
async fn lease_is_given_back_only_if_no_write_of_addresses_is_pending() {
    let taken = ["GET", "POST me"];
    let given_back = ["GET", "POST me", "GET", "PUT "];
    assert_eq!(requests_with(async { true }).await, given_back);
    assert_eq!(requests_with(async { false }).await, taken);
    assert_eq!(requests_with(pending()).await, taken);
}
