//! `egress-router`: redirects connections to the pod to external systems, from an address outside of the cluster
//! (cluster-network §17.5).
//!
//! ```text
//! pods ──> eth0 ── nft: port ──> destination ──> net1 (macvlan, the only default route) ── its address ──> gateway
//!   ▲                                                                                                       │
//!   └────── table 5755: the routes of eth0 ◄── rules: from a destination, from the address of eth0 ◄────────┘
//! ```

mod config;
mod routing;
mod rules;

use cni::{
    Error,
    plugin::Call,
    result::{CniResult, IpConfig},
};
use linux::{address::Family, link::Link, route::Socket};

use self::config::Router;
use crate::{
    attach::{
        Addressing, Child, CreatedLink, Inspection, LinkPlugin, LinkRequest, Parent, Sandbox, Settings,
        Stage, Step,
    },
    forwarding::enable_forwarding,
    messages::Explain as _,
    names::EGRESS_ROUTER,
    pod::Pod,
    veth,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EgressRouter;

/// The requested link, and its redirection.
struct Redirector {
    child: Child,
    router: Router,
}

impl LinkPlugin for EgressRouter {
    fn name(&self) -> &'static str {
        EGRESS_ROUTER
    }

    fn keys(&self) -> &'static [&'static str] {
        config::KEYS
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let config = config::read(call)?;
        let parent = Parent {
            master: config.master,
            in_container: false,
            mtu: config.mtu,
        };
        Ok(Box::new(Redirector {
            child: Child::macvlan(config.mode, parent, config.dns),
            router: config.router,
        }))
    }

    /// The configuration has the address.
    fn addressing(&self) -> Addressing {
        Addressing::None
    }

    fn remove_unrecorded(&self, call: &Call) -> Result<(), Error> {
        let Some(mut pod) = Pod::find_remaining(call)? else {
            return Ok(());
        };
        pod.inside(|socket| {
            let ifname = &call.request.ifname;
            undo(socket, ifname)?;
            veth::delete(call, socket, ifname)
        })
    }
}

/// Undoes [`Step::Redirection`], in the namespace of the pod.
pub(crate) fn undo(socket: &mut Socket, ifname: &str) -> Result<(), Error> {
    rules::remove()?;
    routing::restore(socket, ifname)
}

impl LinkRequest for Redirector {
    fn settings(&self) -> Settings {
        self.child.settings()
    }

    fn kind(&self) -> Option<&'static str> {
        self.child.kind()
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        self.child.make(stage)
    }

    fn lease(&self, _call: &Call) -> Result<Option<CniResult>, Error> {
        let address = IpConfig {
            address: self.router.address,
            gateway: Some(self.router.gateway),
            interface: None,
        };
        Ok(Some(CniResult {
            ips: vec![address],
            ..CniResult::default()
        }))
    }

    fn tune(&self, ifname: &str) {
        self.child.tune(ifname);
    }

    fn route(&mut self, stage: &mut Stage<'_>, link: &Link, _result: &mut CniResult) -> Result<(), Error> {
        stage.begin(Step::Redirection {
            sandbox: Sandbox::of(&stage.pod),
        })?;
        let router = &self.router;
        stage.pod.inside(|socket| {
            routing::set_up(socket, link, router)?;
            enable_forwarding(Family::of(&router.gateway))?;
            rules::add(router, &link.name)
        })
    }

    fn check_host(&mut self, here: &mut Inspection<'_>) -> Result<(), Error> {
        self.child.check_host(here)
    }

    fn check_link(&self, here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        self.child.check_link(here, link)?;
        let router = &self.router;
        here.pod.inside(|socket| {
            let routes = socket
                .routes(Family::of(&router.gateway))
                .explain(|| "failed to list routes".to_owned())?;
            if !routing::has_default(&routes, link, router) {
                return Err(Error::internal(format!(
                    "the default route via {} dev {} is missing",
                    router.gateway, link.name
                )));
            }
            rules::check(router)
        })
    }
}
