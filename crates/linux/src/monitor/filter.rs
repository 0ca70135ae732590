//! Filters in the kernel that pass events about some links, so that no other event wakes the process.

use std::{io, os::fd::AsRawFd};

use libc::{sock_filter, sock_fprog};

use super::NEIGHBOURS;

/// Where `nlmsghdr` has the type of the message.
const TYPE: u32 = 4;
/// Where `ifinfomsg` and `ndmsg`, which follow it, have the family and the index of the link.
const FAMILY: u32 = 16;
const INDEX: u32 = 20;
/// Length of the headers before the attributes.
const HEADERS: u32 = 32;
/// `IFLA_IFNAME`, `IFLA_LINKINFO` and, inside of it, `IFLA_INFO_KIND` of `<linux/if_link.h>`.
const NAME: u32 = 3;
const LINK_INFO: u32 = 18;
const INFO_KIND: u32 = 1;
/// Length of an attribute's header.
const ATTRIBUTE: u32 = 4;
/// `BPF_MAXINSNS` of `<linux/bpf_common.h>`: the longest program.
const LONGEST: usize = 4096;

/// `SKF_AD_OFF + SKF_AD_NLATTR` and `SKF_AD_OFF + SKF_AD_NLATTR_NEST` of `<linux/filter.h>`: the offset of attribute X, searched
/// from offset A on, or inside of the attribute at offset A.
const FIND: u32 = 0_u32.wrapping_sub(0x1000).wrapping_add(12);
const FIND_NESTED: u32 = 0_u32.wrapping_sub(0x1000).wrapping_add(16);

/// Instructions of classic BPF: `BPF_LD | BPF_IMM`, `BPF_LDX | BPF_IMM` and so on.
const SET_A: u16 = 0x00;
const SET_X: u16 = 0x01;
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD_AT_X: u16 = 0x40;
const COPY_A_TO_X: u16 = 0x07;
const SKIP_UNLESS_EQUAL: u16 = 0x15;
const SKIP_UNLESS_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// The links whose events wake the process: those that match any part.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkFilter<'a> {
    /// Links of these kinds, such as `bridge`.
    pub kinds: &'a [&'a str],
    /// Links without a kind, such as hardware.
    pub without_kind: bool,
    /// Links with these names.
    pub names: &'a [&'a str],
    /// Links with these indexes: a renamed link keeps its index.
    pub indexes: &'a [u32],
}

/// Passes the messages about links of `filter` to the socket, and no others. Replaces an earlier filter. A filter that is too
/// long for the kernel passes all messages.
pub(super) fn attach(socket: &impl AsRawFd, filter: &LinkFilter<'_>) -> io::Result<()> {
    attach_program(socket, program(filter))
}

/// Passes the messages about neighbours of this link to the socket, and no other messages about neighbours. Replaces an
/// earlier filter.
pub(super) fn attach_neighbours(socket: &impl AsRawFd, link: u32) -> io::Result<()> {
    attach_program(socket, neighbours(link))
}

fn attach_program(socket: &impl AsRawFd, mut program: Vec<sock_filter>) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let length = libc::socklen_t::try_from(size_of::<sock_fprog>()).map_err(too_long)?;
    let program = sock_fprog {
        len: program.len().try_into().map_err(too_long)?,
        filter: program.as_mut_ptr(),
    };
    #[allow(unsafe_code, reason = "no safe interface attaches a filter")]
    // SAFETY: the kernel copies the program, whose length is right and which lives until then.
    let attached = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    if attached == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn program(filter: &LinkFilter<'_>) -> Vec<sock_filter> {
    // Bridges send events about their ports in a family of their own.
    let mut program = unless(&[step(LOAD_BYTE, FAMILY), step(SKIP_UNLESS_EQUAL, 0)], DROP);
    for index in filter.indexes {
        let bytes = index.to_ne_bytes();
        program.extend(when(&[
            step(LOAD_WORD, INDEX),
            step(SKIP_UNLESS_EQUAL, u32::from_be_bytes(bytes)),
        ]));
    }
    for name in filter.names {
        program.extend(when(&[&find(NAME)[..], &text(name)].concat()));
    }
    for kind in filter.kinds {
        program.extend(when(&[&find(LINK_INFO)[..], &FIND_KIND, &text(kind)].concat()));
    }
    if filter.without_kind {
        program.extend(unless(&find(LINK_INFO), PASS));
        program.extend(unless(&[&find(LINK_INFO)[..], &FIND_KIND].concat(), PASS));
    }
    program.push(DROP);
    if program.len() > LONGEST {
        return vec![PASS];
    }
    program
}

fn neighbours(link: u32) -> Vec<sock_filter> {
    let equal = |k, jt, jf| sock_filter {
        jt,
        jf,
        ..step(SKIP_UNLESS_EQUAL, k)
    };
    // The kernel loads numbers as if they were in network order.
    let [new, removed] = NEIGHBOURS.map(|kind| u32::from(u16::from_be_bytes(kind.to_ne_bytes())));
    vec![
        step(LOAD_HALF, TYPE),
        equal(new, 1, 0),
        equal(removed, 0, 2),
        step(LOAD_WORD, INDEX),
        equal(u32::from_be_bytes(link.to_ne_bytes()), 0, 1),
        PASS,
        DROP,
    ]
}

const PASS: sock_filter = step(RETURN, u32::MAX);
const DROP: sock_filter = step(RETURN, 0);
/// Finds the kind inside of the found link information.
const FIND_KIND: [sock_filter; 3] = [
    step(SET_X, INFO_KIND),
    step(LOAD_WORD, FIND_NESTED),
    step(SKIP_UNLESS_AT_LEAST, 1),
];

const fn step(code: u16, k: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Finds an attribute. The offset is 0 if the message lacks it.
fn find(attribute: u32) -> [sock_filter; 4] {
    [
        step(SET_A, HEADERS),
        step(SET_X, attribute),
        step(LOAD_WORD, FIND),
        step(SKIP_UNLESS_AT_LEAST, 1),
    ]
}

/// Compares the value of the found attribute with a text. The kernel ends it with a zero byte, and fills the last word
/// with zeros.
fn text(text: &str) -> Vec<sock_filter> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((text.len() + 1).next_multiple_of(4), 0);
    let mut steps = vec![step(COPY_A_TO_X, 0)];
    for (place, word) in (ATTRIBUTE..).step_by(4).zip(bytes.chunks_exact(4)) {
        let word = word.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        steps.push(step(LOAD_WORD_AT_X, place));
        steps.push(step(SKIP_UNLESS_EQUAL, word));
    }
    steps
}

/// Passes the message if all conditions of `steps` hold, else continues behind them.
fn when(steps: &[sock_filter]) -> Vec<sock_filter> {
    let mut block = steps.to_vec();
    block.push(PASS);
    skip_to(&mut block, 0);
    block
}

/// Ends with `outcome` if a condition of `steps` does not hold, else continues behind them.
fn unless(steps: &[sock_filter], outcome: sock_filter) -> Vec<sock_filter> {
    let mut block = steps.to_vec();
    // The last condition jumps over the outcome.
    if let Some(last) = block.last_mut() {
        last.jt = 1;
    }
    block.push(outcome);
    skip_to(&mut block, 1);
    block
}

/// Sets the distance of each condition to the place that is so many steps before the end of the block.
fn skip_to(block: &mut [sock_filter], before_end: usize) {
    let target = block.len() - before_end;
    for (place, step) in block.iter_mut().enumerate() {
        if [SKIP_UNLESS_EQUAL, SKIP_UNLESS_AT_LEAST].contains(&step.code) {
            // A block is short: the distance fits.
            step.jf = u8::try_from(target - place - 1).unwrap_or(u8::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_too_long_for_the_kernel_passes_all_messages() {
        let names: Vec<_> = (0..1000).map(|number| format!("eth{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let length = |names: &[&str]| {
            let filter = LinkFilter {
                names,
                ..LinkFilter::default()
            };
            program(&filter).len()
        };
        assert_eq!(length(&names), 1);
        assert!((1000..LONGEST).contains(&length(&names[..300])));
    }
}
