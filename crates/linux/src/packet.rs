//! IPv4 packets of one link, even if the link has no address.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use crate::{Errno, Error, Result, link::Mac};

/// `ETH_P_IP` in network byte order, as socket addresses contain it.
const IPV4: u16 = 0x0800_u16.to_be();
/// `AF_PACKET`.
const FAMILY: u16 = 17;
const UDP: u32 = 17;
/// Mask of a fragment's offset. Only the first fragment has ports.
const FRAGMENT_OFFSET: u32 = 0x1fff;
/// Maximum number of bytes of a packet that the kernel passes.
const WHOLE: u32 = 0x4_0000;

/// A packet socket of one link. It receives UDP packets over IPv4 for one port, with any address.
///
/// The socket belongs to the network namespace in which it was opened, and keeps that namespace alive.
#[derive(Debug)]
pub struct PacketSocket {
    file: OwnedFd,
    link: libc::c_int,
}

impl PacketSocket {
    /// Opens the socket in the calling thread's network namespace. Reads never block.
    pub fn open(link: u32, port: u16) -> Result<Self> {
        let failed = |errno| Error::kernel("open packet socket of link", link.to_string(), errno);
        let link = libc::c_int::try_from(link).map_err(|_| failed(Errno::INVAL))?;
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        #[allow(unsafe_code, reason = "no crate of the workspace opens packet sockets")]
        // SAFETY: the call takes numbers. Protocol 0 receives nothing, so that no packet bypasses the filter.
        let file = unsafe { owned(libc::socket(libc::AF_PACKET, kind, 0)) }.map_err(failed)?;
        filter(&file, port).map_err(failed)?;
        let address = address(link, Mac([0; 6]));
        #[allow(unsafe_code, reason = "no crate of the workspace binds packet sockets")]
        // SAFETY: the descriptor is open, and the address outlives the call and has the given length.
        let bound = unsafe { libc::bind(file.as_raw_fd(), (&raw const address).cast(), length(&address)) };
        done(bound).map_err(failed)?;
        Ok(PacketSocket { file, link })
    }

    /// Sends an IPv4 packet to a station on the link.
    pub fn send(&self, packet: &[u8], to: Mac) -> Result<()> {
        let address = address(self.link, to);
        #[allow(unsafe_code, reason = "no crate of the workspace sends to addresses of links")]
        // SAFETY: the descriptor is open; packet and address outlive the call and have the given lengths.
        let sent = unsafe {
            libc::sendto(
                self.file.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const address).cast(),
                length(&address),
            )
        };
        if usize::try_from(sent) == Ok(packet.len()) {
            return Ok(());
        }
        Err(Error::kernel("send packet to", to.to_string(), last()))
    }

    /// Receives an IPv4 packet, and returns its length and source station. A packet longer than `buffer` is truncated.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if no packet is pending, and the kernel's errors.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Mac)> {
        let mut address = address(0, Mac([0; 6]));
        let mut size = length(&address);
        #[allow(unsafe_code, reason = "no crate of the workspace reads addresses of links")]
        // SAFETY: the descriptor is open; the kernel writes at most the given lengths to buffer and address.
        let received = unsafe {
            libc::recvfrom(
                self.file.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut address).cast(),
                &raw mut size,
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        let mac = address.sll_addr.first_chunk().copied().unwrap_or_default();
        Ok((received, Mac(mac)))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl std::os::fd::AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

fn address(link: libc::c_int, mac: Mac) -> libc::sockaddr_ll {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&mac.0);
    libc::sockaddr_ll {
        sll_family: FAMILY,
        sll_protocol: IPV4,
        sll_ifindex: link,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: bytes,
    }
}

fn length<T>(value: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(value)).unwrap_or_default()
}

/// Makes the kernel drop all packets except UDP packets for `port`, before it copies them.
fn filter(file: &OwnedFd, port: u16) -> Result<(), Errno> {
    let mut program = program(port);
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or_default(),
        filter: program.as_mut_ptr(),
    };
    #[allow(unsafe_code, reason = "no crate of the workspace attaches filters")]
    // SAFETY: the descriptor is open; the kernel copies the program, which outlives the call and has the given length.
    let attached = unsafe {
        libc::setsockopt(
            file.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            length(&filter),
        )
    };
    done(attached)
}

/// The filter as classic BPF. Packets start with their IPv4 header.
fn program(port: u16) -> [libc::sock_filter; 9] {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    };
    let load = |size: u32, mode: u32, at| step(libc::BPF_LD | size | mode, 0, 0, at);
    let jump = |test: u32, value, yes, no| step(libc::BPF_JMP | test | libc::BPF_K, yes, no, value);
    let end = |bytes| step(libc::BPF_RET | libc::BPF_K, 0, 0, bytes);
    [
        load(libc::BPF_B, libc::BPF_ABS, 9),
        jump(libc::BPF_JEQ, UDP, 0, 6),
        load(libc::BPF_H, libc::BPF_ABS, 6),
        jump(libc::BPF_JSET, FRAGMENT_OFFSET, 4, 0),
        // The length of the IPv4 header, which precedes the ports.
        step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
        load(libc::BPF_H, libc::BPF_IND, 2),
        jump(libc::BPF_JEQ, u32::from(port), 0, 1),
        end(WHOLE),
        end(0),
    ]
}

#[allow(unsafe_code, reason = "a new descriptor has no owner yet")]
/// # Safety
/// `fd` is negative, or open and without an owner.
unsafe fn owned(fd: RawFd) -> Result<OwnedFd, Errno> {
    done(fd)?;
    // SAFETY: the caller guarantees it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(result: libc::c_int) -> Result<(), Errno> {
    if result < 0 { Err(last()) } else { Ok(()) }
}

fn last() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
