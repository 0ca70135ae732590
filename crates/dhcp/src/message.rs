//! The client's messages, and the answers to them (RFC 2131).

use std::net::Ipv4Addr;

use dhcproto::v4::{
    DhcpOption, Flags, MIN_PACKET_SIZE, Message, MessageType, Opcode, OptionCode, UnknownOption,
};
use dhcproto::{Decodable as _, Decoder, Encodable as _, Encoder};
use linux::link::Mac;
use plugins::dhcp::wire::{Allocation, Attachment};

use crate::lease::{Lease, Unusable, server};

/// Maximum length of a client identifier in bytes, without its type byte.
const LONGEST_ID: usize = 254;

/// The client, and the parameters of its exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub(crate) allocation: &'a Allocation,
    pub(crate) mac: Mac,
    /// Transaction id of the exchange.
    pub(crate) xid: u32,
    /// Whether requests set the broadcast flag.
    pub(crate) broadcast: bool,
}

/// An offer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) address: Ipv4Addr,
    pub(crate) server: Ipv4Addr,
}

/// An answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Offer(Offer),
    Ack(Result<Lease, Unusable>),
    Nak,
}

impl Sender<'_> {
    /// A DHCPDISCOVER; `wanted` is the preferred address.
    pub(crate) fn discover(&self, wanted: Option<Ipv4Addr>) -> Option<Vec<u8>> {
        let mut message = self.message(MessageType::Discover, true);
        if let Some(ip) = wanted {
            message.opts_mut().insert(DhcpOption::RequestedIpAddress(ip));
        }
        encoded(&message)
    }

    /// A DHCPREQUEST that accepts an offer.
    pub(crate) fn request(&self, offer: Offer) -> Option<Vec<u8>> {
        let mut message = self.message(MessageType::Request, true);
        let options = message.opts_mut();
        options.insert(DhcpOption::RequestedIpAddress(offer.address));
        options.insert(DhcpOption::ServerIdentifier(offer.server));
        encoded(&message)
    }

    /// A DHCPREQUEST that renews a lease.
    pub(crate) fn renew(&self, lease: &Lease) -> Option<Vec<u8>> {
        let mut message = self.message(MessageType::Request, false);
        message.set_ciaddr(lease.address.addr());
        encoded(&message)
    }

    /// A DHCPRELEASE. Servers ignore it without the address.
    pub(crate) fn release(&self, lease: &Lease) -> Option<Vec<u8>> {
        let mut message = Message::default();
        self.begin(&mut message, MessageType::Release, false);
        message.set_ciaddr(lease.address.addr());
        message
            .opts_mut()
            .insert(DhcpOption::ServerIdentifier(lease.server));
        encoded(&message)
    }

    fn message(&self, kind: MessageType, may_broadcast: bool) -> Message {
        let mut message = Message::default();
        self.begin(&mut message, kind, may_broadcast);
        let options = message.opts_mut();
        if !self.allocation.request.is_empty() {
            let codes = self.allocation.request.iter().map(|code| OptionCode::from(*code));
            options.insert(DhcpOption::ParameterRequestList(codes.collect()));
        }
        for option in &self.allocation.provide {
            // A user's options must not replace the ones that define the message.
            if !RESERVED.contains(&option.code) {
                options.insert(raw(option.code, option.value.as_bytes()));
            }
        }
        message
    }

    fn begin(&self, message: &mut Message, kind: MessageType, may_broadcast: bool) {
        message.set_xid(self.xid).set_chaddr(&self.mac.0);
        if self.broadcast && may_broadcast {
            message.set_flags(Flags::default().set_broadcast());
        }
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        let id = self
            .allocation
            .provide
            .iter()
            .find(|option| option.code == CLIENT_ID);
        let id = id.map_or_else(
            || client_id(&self.allocation.attachment),
            |option| option.value.clone().into_bytes(),
        );
        message.opts_mut().insert(raw(CLIENT_ID, &id));
    }

    /// Reads an answer. `None` if it is for another exchange, or malformed.
    pub(crate) fn read(&self, bytes: &[u8]) -> Option<Reply> {
        let message = Message::decode(&mut Decoder::new(bytes)).ok()?;
        if message.opcode() != Opcode::BootReply || message.xid() != self.xid {
            return None;
        }
        match message.opts().msg_type()? {
            MessageType::Offer => Some(Reply::Offer(Offer {
                address: message.yiaddr(),
                server: server(&message)?,
            })),
            MessageType::Ack => Some(Reply::Ack(Lease::read(&message))),
            MessageType::Nak => Some(Reply::Nak),
            _ => None,
        }
    }
}

const CLIENT_ID: u8 = 61;
/// Options that the conversation needs: padding, requested address, message type, server, parameter list, client, end.
const RESERVED: [u8; 7] = [0, 50, 53, 54, 55, CLIENT_ID, 255];

fn raw(code: u8, value: &[u8]) -> DhcpOption {
    DhcpOption::Unknown(UnknownOption::new(code.into(), value.to_vec()))
}

/// The identifier of the attachment at servers: type 0, then the names of the attachment.
fn client_id(attachment: &Attachment) -> Vec<u8> {
    let Attachment {
        container,
        network,
        ifname,
    } = attachment;
    let text = format!("{container}/{network}/{ifname}");
    let mut id = vec![0];
    id.extend(text.bytes().take(LONGEST_ID));
    id
}

fn encoded(message: &Message) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).ok()?;
    // Relays drop shorter ones (RFC 1542 section 2.1).
    bytes.resize(bytes.len().max(MIN_PACKET_SIZE), 0);
    Some(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use plugins::dhcp::wire::Provided;

    use super::*;
    use crate::lease::tests::ack;

    pub(crate) fn allocation(container: &str) -> Allocation {
        Allocation {
            attachment: Attachment {
                container: container.to_owned(),
                network: "net".to_owned(),
                ifname: "net1".to_owned(),
            },
            netns: "/run/netns/a".into(),
            provide: Vec::new(),
            request: vec![1, 3],
            priority: 0,
        }
    }

    fn sender(allocation: &Allocation) -> Sender<'_> {
        Sender {
            allocation,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            xid: 7,
            broadcast: true,
        }
    }

    fn decoded(bytes: Option<Vec<u8>>) -> Message {
        Message::decode(&mut Decoder::new(&bytes.unwrap())).unwrap()
    }

    #[test]
    fn a_client_identifies_itself_by_its_attachment() {
        let allocation = allocation(&"c".repeat(300));
        let message = decoded(sender(&allocation).discover(None));
        let Some(DhcpOption::ClientIdentifier(id)) = message.opts().get(OptionCode::ClientIdentifier) else {
            panic!("no client identifier in {message}");
        };
        assert_eq!(id.len(), 255);
        assert_eq!(id[..3], *b"\0cc");
        assert_eq!(
            client_id(&super::tests::allocation("c").attachment),
            b"\0c/net/net1"
        );
    }

    #[test]
    fn options_of_the_config_are_sent_and_cannot_change_the_message() {
        let mut allocation = allocation("c");
        let option = |code, value: &str| Provided {
            code,
            value: value.to_owned(),
        };
        allocation.provide = vec![
            option(12, "pod"),
            option(60, "class"),
            option(53, "x"),
            option(61, "me"),
        ];
        let message = decoded(sender(&allocation).discover(Some(Ipv4Addr::new(10, 0, 0, 9))));
        let get = |code| message.opts().get(code);
        assert_eq!(
            get(OptionCode::Hostname),
            Some(&DhcpOption::Hostname("pod".into()))
        );
        assert_eq!(
            get(OptionCode::ClassIdentifier),
            Some(&DhcpOption::ClassIdentifier(b"class".to_vec()))
        );
        assert_eq!(
            get(OptionCode::ClientIdentifier),
            Some(&DhcpOption::ClientIdentifier(b"me".to_vec()))
        );
        assert_eq!(message.opts().msg_type(), Some(MessageType::Discover));
        assert!(message.flags().broadcast());
    }

    #[test]
    fn a_release_names_the_leased_address_and_the_server() {
        // cni-plugins#45
        let allocation = allocation("c");
        let lease = Lease {
            server: Ipv4Addr::new(10, 1, 0, 1),
            ..Lease::read(&ack([DhcpOption::SubnetMask([255, 255, 255, 0].into())])).unwrap()
        };
        let message = decoded(sender(&allocation).release(&lease));
        assert_eq!(message.ciaddr(), Ipv4Addr::new(10, 1, 0, 7));
        assert_eq!(server(&message), Some(lease.server));
        assert!(!message.flags().broadcast());
    }

    #[test]
    fn answers_to_others_are_ignored() {
        let allocation = allocation("c");
        let sender = sender(&allocation);
        let reply = |xid, opcode| {
            let mut message = ack([DhcpOption::MessageType(MessageType::Nak)]);
            message.set_xid(xid).set_opcode(opcode);
            sender.read(&encoded(&message).unwrap())
        };
        assert_eq!(reply(7, Opcode::BootReply), Some(Reply::Nak));
        assert_eq!(reply(8, Opcode::BootReply), None);
        assert_eq!(reply(7, Opcode::BootRequest), None);
        assert_eq!(sender.read(b"\x02"), None);
    }
}
