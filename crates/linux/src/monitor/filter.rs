//! A socket filter that passes events of links of one kind alone, so that no other event wakes the process.

use std::{io, os::fd::AsRawFd};

use libc::{sock_filter, sock_fprog};

/// Length of the headers before the attributes: `nlmsghdr` and `ifinfomsg`.
const HEADERS: u32 = 32;
/// `IFLA_LINKINFO`, and `IFLA_INFO_KIND` inside of it (`<linux/if_link.h>`).
const LINK_INFO: u32 = 18;
const INFO_KIND: u32 = 1;
/// Length of an attribute's header.
const ATTRIBUTE: u32 = 4;

/// `SKF_AD_OFF + SKF_AD_NLATTR` and `SKF_AD_OFF + SKF_AD_NLATTR_NEST` of `<linux/filter.h>`: the offset of attribute X,
/// searched from offset A, or inside of the attribute at offset A.
const FIND: u32 = 0_u32.wrapping_sub(0x1000).wrapping_add(12);
const FIND_NESTED: u32 = 0_u32.wrapping_sub(0x1000).wrapping_add(16);

/// Instructions of classic BPF: `BPF_LD | BPF_IMM`, `BPF_LDX | BPF_IMM` and so on.
const SET_A: u16 = 0x00;
const SET_X: u16 = 0x01;
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE_AT_X: u16 = 0x50;
const COPY_A_TO_X: u16 = 0x07;
const DROP_UNLESS_EQUAL: u16 = 0x15;
const DROP_UNLESS_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Attaches a filter that passes messages of links of `kind`, which has at most 15 bytes. Messages without a kind (such
/// as some events of bridge ports) or with another kind are dropped.
pub(super) fn attach(socket: &impl AsRawFd, kind: &str) -> io::Result<()> {
    let mut program = program(kind);
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let length = libc::socklen_t::try_from(size_of::<sock_fprog>()).map_err(too_long)?;
    let program = sock_fprog {
        len: program.len().try_into().map_err(too_long)?,
        filter: program.as_mut_ptr(),
    };
    #[allow(unsafe_code, reason = "no safe interface attaches filters")]
    // SAFETY: the kernel copies the program during the call, and the length is that of the program.
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

fn program(kind: &str) -> Vec<sock_filter> {
    let step = |code, k| sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let mut program = vec![
        step(SET_A, HEADERS),
        step(SET_X, LINK_INFO),
        step(LOAD_WORD, FIND),
        // The offset is 0 if the attribute is missing.
        step(DROP_UNLESS_AT_LEAST, 1),
        step(SET_X, INFO_KIND),
        step(LOAD_WORD, FIND_NESTED),
        step(DROP_UNLESS_AT_LEAST, 1),
        step(COPY_A_TO_X, 0),
    ];
    for (place, byte) in (ATTRIBUTE..).zip(kind.bytes().chain([0])) {
        program.push(step(LOAD_BYTE_AT_X, place));
        program.push(step(DROP_UNLESS_EQUAL, byte.into()));
    }
    program.push(step(RETURN, u32::MAX));
    let drop = program.len();
    program.push(step(RETURN, 0));
    for (place, step) in program.iter_mut().enumerate() {
        if [DROP_UNLESS_EQUAL, DROP_UNLESS_AT_LEAST].contains(&step.code) {
            // A kind is short, so the jump fits.
            step.jf = u8::try_from(drop - place - 1).unwrap_or(u8::MAX);
        }
    }
    program
}
