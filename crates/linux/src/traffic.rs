//! Traffic control: the sending rate of a link, and the redirection of its received packets.

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, parse_i32, parse_u32};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    tc::{
        TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption, TcActionType,
        TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcMessage, TcMirror, TcMirrorActionType,
        TcOption, TcU32Key, TcU32Selector, TcU32SelectorFlags,
    },
};

use crate::{
    Errno, Feature, Result,
    link::{Link, LinkRef},
    route::{Request, Socket, attributes},
};

/// Length of `struct tcmsg`, and the offsets of the link and the parent of a discipline.
const HEADER: usize = 20;
const LINK: usize = 4;
const PARENT: usize = 12;

/// Attribute numbers.
mod attribute {
    pub(super) const KIND: u16 = 1;
    pub(super) const OPTIONS: u16 = 2;
    pub(super) const BUCKET_PARAMETERS: u16 = 1;
    pub(super) const BUCKET_RATE: u16 = 4;
    pub(super) const FILTER_ACTIONS: u16 = 7;
    pub(super) const FIRST_ACTION: u16 = 1;
    pub(super) const ACTION_OPTIONS: u16 = 2;
    pub(super) const MIRROR_PARAMETERS: u16 = 2;
}

const BUCKET: &str = "tbf";
const INGRESS: &str = "ingress";
const IFB: &str = "ifb";
const ROOT: TcHandle = TcHandle::ROOT;
const BUCKET_HANDLE: TcHandle = TcHandle { major: 1, minor: 0 };
const INGRESS_HANDLE: TcHandle = TcHandle {
    major: u16::MAX,
    minor: 0,
};
/// All protocols (`ETH_P_ALL`), and the first priority.
const EVERYTHING: u16 = 3;
const PRIORITY: u32 = 1;

/// `struct tc_tbf_qopt`: two rates, then limit, buffer and MTU.
const PARAMETERS: usize = 36;
const RATE: usize = 8;
const LIMIT: usize = 24;
const BUFFER: usize = 28;
/// `struct tc_mirred`: offset of the other link.
const MIRROR_LINK: usize = 24;

/// A token bucket: it fills at a rate, and a packet takes a token for each byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes a second.
    pub rate: u64,
    /// Limit of the queue, bytes.
    pub limit: u32,
    /// Time to fill the bucket, in ticks of 64 nanoseconds.
    pub buffer: u32,
}

impl TokenBucket {
    /// Ticks in a microsecond, as numerator and denominator.
    pub const TICKS: (u64, u64) = (1000, 64);
    /// The longest time, in ticks: the kernel stores nanoseconds in 32 bits.
    pub const LONGEST: u32 = u32::MAX >> 6;

    fn options(&self) -> Vec<TcOption> {
        let mut parameters = vec![0; PARAMETERS];
        let narrow = u32::try_from(self.rate).unwrap_or(u32::MAX);
        for (at, value) in [(RATE, narrow), (LIMIT, self.limit), (BUFFER, self.buffer)] {
            parameters[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let option = |kind, bytes| TcOption::Other(DefaultNla::new(kind, bytes));
        let mut options = vec![option(attribute::BUCKET_PARAMETERS, parameters)];
        if u32::try_from(self.rate).is_err() {
            options.push(option(attribute::BUCKET_RATE, self.rate.to_ne_bytes().to_vec()));
        }
        options
    }

    fn read(options: &[u8]) -> Option<Self> {
        let (mut read, mut wide) = (None, None);
        attributes(options, |kind, value| match kind {
            attribute::BUCKET_PARAMETERS => {
                let number = |at: usize| value.get(at..at + 4).and_then(|bytes| parse_u32(bytes).ok());
                if let (Some(rate), Some(limit), Some(buffer)) = (number(RATE), number(LIMIT), number(BUFFER))
                {
                    read = Some(TokenBucket {
                        rate: u64::from(rate),
                        limit,
                        buffer,
                    });
                }
            }
            attribute::BUCKET_RATE => wide = value.try_into().ok().map(u64::from_ne_bytes),
            _ => {}
        });
        let read = read?;
        Some(TokenBucket {
            rate: wide.unwrap_or(read.rate),
            ..read
        })
    }
}

fn message(link: LinkRef<'_>, handle: TcHandle, parent: TcHandle, kind: &str) -> TcMessage {
    let mut message = TcMessage::with_index(link.index.cast_signed());
    message.header.handle = handle;
    message.header.parent = parent;
    message.attributes.push(TcAttribute::Kind(kind.to_owned()));
    message
}

/// An answer about one link: parent, kind and options.
struct Found<'a> {
    parent: TcHandle,
    kind: String,
    options: &'a [u8],
}

fn read(bytes: &[u8], link: u32) -> Option<Found<'_>> {
    let number = |at: usize| bytes.get(at..at + 4);
    if parse_i32(number(LINK)?).ok()?.cast_unsigned() != link {
        return None;
    }
    let mut found = Found {
        parent: parse_u32(number(PARENT)?).ok()?.into(),
        kind: String::new(),
        options: &[],
    };
    attributes(bytes.get(HEADER..)?, |kind, value| match kind {
        attribute::KIND => {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            found.kind = String::from_utf8_lossy(text).into_owned();
        }
        attribute::OPTIONS => found.options = value,
        _ => {}
    });
    Some(found)
}

/// Returns the value of the attribute at this path.
fn inside<'a>(mut bytes: &'a [u8], path: &[u16]) -> Option<&'a [u8]> {
    for wanted in path {
        let mut found = None;
        attributes(bytes, |kind, value| {
            if kind == *wanted {
                found = Some(value);
            }
        });
        bytes = found?;
    }
    Some(bytes)
}

impl Socket {
    /// Creates an IFB link, up. Other links can redirect their received packets to it, and it transmits them at its own
    /// rate.
    pub fn create_ifb(&mut self, name: &str, mtu: u32) -> Result<Link> {
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::TxQueueLen(0),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::from(IFB))]),
        ];
        let request = Request::new("create ifb", name).needs(Feature::Driver("CONFIG_IFB"));
        self.create_and_read(request, message)
    }

    /// Limits the sending rate of the link with a token bucket, in place of another discipline.
    pub fn shape<'a>(&mut self, link: impl Into<LinkRef<'a>>, bucket: &TokenBucket) -> Result<()> {
        let link = link.into();
        let mut message = message(link, BUCKET_HANDLE, ROOT, BUCKET);
        message.attributes.push(TcAttribute::Options(bucket.options()));
        let needs = Some(Feature::Driver("CONFIG_NET_SCH_TBF"));
        self.execute(
            Request::new("shape link", link.name),
            RouteNetlinkMessage::NewQueueDiscipline(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
        // The kernel's error for an unknown kind.
        .map_err(|error| error.lacking(Errno::NOENT, needs))
    }

    /// Returns the token bucket of the link; `None` if the link has another discipline.
    pub fn bucket<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<Option<TokenBucket>> {
        let link = link.into();
        let mut question = TcMessage::with_index(link.index.cast_signed());
        question.header.parent = TcHandle::UNSPEC;
        let found = self.dump(
            Request::new("list queueing disciplines of link", link.name),
            &RouteNetlinkMessage::GetQueueDiscipline(question),
            |bytes| {
                let root = read(bytes, link.index).filter(|found| found.parent == ROOT);
                Ok(root
                    .filter(|found| found.kind == BUCKET)
                    .and_then(|found| TokenBucket::read(found.options)))
            },
        )?;
        Ok(found.into_iter().next())
    }

    /// Redirects all received packets of the link to the link with index `to`.
    pub fn redirect_received<'a>(&mut self, link: impl Into<LinkRef<'a>>, to: u32) -> Result<()> {
        let link = link.into();
        let ingress = message(link, INGRESS_HANDLE, TcHandle::INGRESS, INGRESS);
        let needs = |symbol| Some(Feature::Driver(symbol));
        self.execute(
            Request::new("add ingress discipline to link", link.name),
            RouteNetlinkMessage::NewQueueDiscipline(ingress),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map_err(|error| error.lacking(Errno::NOENT, needs("CONFIG_NET_SCH_INGRESS")))?;

        let mut mirror = TcMirror::default();
        mirror.generic.action = TcActionType::Stolen;
        mirror.eaction = TcMirrorActionType::EgressRedir;
        mirror.ifindex = to;
        let mut action = TcAction::default();
        action.attributes = vec![
            TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()),
            TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror))]),
        ];
        // One key that matches every packet.
        let mut selector = TcU32Selector::default();
        selector.flags = TcU32SelectorFlags::Terminal;
        selector.nkeys = 1;
        selector.keys = vec![TcU32Key::default()];
        let mut filter = message(link, TcHandle::UNSPEC, INGRESS_HANDLE, TcFilterU32::KIND);
        filter.header.info = PRIORITY << 16 | u32::from(EVERYTHING.to_be());
        filter.attributes.push(TcAttribute::Options(vec![
            TcOption::U32(TcFilterU32Option::Selector(selector)),
            TcOption::U32(TcFilterU32Option::Action(vec![action])),
        ]));
        self.execute(
            Request::new("redirect packets received by link", link.name),
            RouteNetlinkMessage::NewTrafficFilter(filter),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map_err(|error| error.lacking(Errno::NOENT, needs("CONFIG_NET_CLS_U32 or CONFIG_NET_ACT_MIRRED")))
    }

    /// Returns true if received frames of the link pass any filter.
    pub fn has_filters<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<bool> {
        let found = self.filters(link.into(), |_| Some(()))?;
        Ok(!found.is_empty())
    }

    /// Reads the filters of received frames.
    fn filters<T>(&mut self, link: LinkRef<'_>, mut read: impl FnMut(&[u8]) -> Option<T>) -> Result<Vec<T>> {
        let mut question = TcMessage::with_index(link.index.cast_signed());
        question.header.parent = INGRESS_HANDLE;
        self.dump(
            Request::new("list filters of link", link.name),
            &RouteNetlinkMessage::GetTrafficFilter(question),
            |bytes| Ok(read(bytes)),
        )
    }

    /// Returns the index of the link that receives this link's redirected packets; 0 if that link is gone.
    pub fn redirected_to<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<Option<u32>> {
        let link = link.into();
        let found = self.filters(link, |bytes| {
            let path = [
                attribute::FILTER_ACTIONS,
                attribute::FIRST_ACTION,
                attribute::ACTION_OPTIONS,
                attribute::MIRROR_PARAMETERS,
            ];
            let mirror = read(bytes, link.index)
                .filter(|found| found.kind == TcFilterU32::KIND)
                .and_then(|found| inside(found.options, &path));
            let link = mirror.and_then(|mirror| mirror.get(MIRROR_LINK..MIRROR_LINK + 4));
            link.and_then(|bytes| parse_u32(bytes).ok())
        })?;
        Ok(found.into_iter().next())
    }

    /// Removes the link's token bucket, if it has one.
    pub fn unshape<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<()> {
        let link = link.into();
        self.delete_discipline(link, message(link, BUCKET_HANDLE, ROOT, BUCKET))
    }

    /// Removes the redirection of the link's received packets, if it has one.
    pub fn keep_received<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<()> {
        let link = link.into();
        self.delete_discipline(link, message(link, INGRESS_HANDLE, TcHandle::INGRESS, INGRESS))
    }

    fn delete_discipline(&mut self, link: LinkRef<'_>, message: TcMessage) -> Result<()> {
        let request = Request::new("delete queueing discipline of link", link.name);
        match self.execute(request, RouteNetlinkMessage::DelQueueDiscipline(message), 0) {
            // The link has no discipline, or another kind.
            Err(error) if error.is_not_found() || error.errno() == Some(Errno::INVAL) => Ok(()),
            ended => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;

    use super::*;

    #[test]
    fn bucket_is_read_as_written() {
        for rate in [1, 125_000, u64::from(u32::MAX), 10_000_000_000] {
            let bucket = TokenBucket {
                rate,
                limit: 7,
                buffer: 9,
            };
            let options = bucket.options();
            let mut bytes = vec![0; options.as_slice().buffer_len()];
            options.as_slice().emit(&mut bytes);
            assert_eq!(TokenBucket::read(&bytes), Some(bucket));
        }
        assert_eq!(TokenBucket::read(&[]), None);
        assert_eq!(TokenBucket::read(&[8, 0, 1, 0, 1, 2, 3, 4]), None);
    }
}
