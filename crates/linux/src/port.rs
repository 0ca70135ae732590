//! Ports of bridges: hairpin and isolation.

use netlink_packet_core::DefaultNla;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage, LinkProtoInfoBridge},
};

use crate::{
    Feature, Result,
    link::LinkRef,
    route::{Request, Socket},
};

/// `IFLA_BRPORT_MODE`: frames may leave through the port that received them.
const HAIRPIN: u16 = 4;
/// `IFLA_BRPORT_ISOLATED`: no frames to other isolated ports.
const ISOLATED: u16 = 33;

/// Changes of a bridge port. `None` keeps a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortChange {
    /// Frames may leave through the port that received them.
    pub hairpin: Option<bool>,
    /// No frames pass to other isolated ports.
    pub isolated: Option<bool>,
}

impl Socket {
    /// Sets flags of a port in one message. The link must be a port of a bridge.
    pub fn change_port<'a>(
        &mut self,
        link: impl Into<LinkRef<'a>>,
        doing: &'static str,
        change: PortChange,
    ) -> Result<()> {
        let link = link.into();
        let flags = [(HAIRPIN, change.hairpin), (ISOLATED, change.isolated)];
        let info = flags
            .into_iter()
            .filter_map(|(kind, value)| {
                let byte = vec![u8::from(value?)];
                Some(LinkProtoInfoBridge::Other(DefaultNla::new(kind, byte)))
            })
            .collect();
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.header.index = link.index;
        message.attributes.push(LinkAttribute::ProtoInfoBridge(info));
        let mut request = Request::new(doing, link.name);
        if change.isolated.is_some() {
            request = request.needs(Feature::BridgePortIsolation);
        }
        self.execute(request, RouteNetlinkMessage::SetLink(message), 0)
    }
}
