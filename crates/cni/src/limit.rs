//! The outputs of a process that has to end in time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How much is read at once, bytes.
const CHUNK: usize = 16 * 1024;
/// How long a process may take to die.
const DEATH: Duration = Duration::from_secs(5);

/// Reads what a process prints until it has ended and closed its outputs. When its time is over, or it can't be followed,
/// it is killed with its process group, which has to be one of its own. What it left behind to hold its outputs is not
/// waited for longer.
pub(crate) fn output_within(mut child: Child, limit: Duration) -> io::Result<Output> {
    read_within(&mut child, limit).inspect_err(|_| {
        // Whoever is told of an error takes it that nothing works on any more. Once waited for, its number is anybody's.
        if matches!(child.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.try_wait();
        }
    })
}

fn read_within(child: &mut Child, limit: Duration) -> io::Result<Output> {
    let deadline = Instant::now() + limit;
    let pid = Pid::from_child(child);
    let mut end = Some(pidfd_open(pid, PidfdFlags::empty())?);
    let mut stdout = Stream::of(child.stdout.take().map(OwnedFd::from));
    let mut stderr = Stream::of(child.stderr.take().map(OwnedFd::from));
    while end.is_some() || stdout.is_open() || stderr.is_open() {
        let open = [&end, &stdout.pipe, &stderr.pipe];
        let Some([has_ended, has_out, has_err]) = wait(open, deadline)? else {
            if end.is_none() {
                break;
            }
            kill_process_group(pid, Signal::KILL)?;
            wait([&end, &None, &None], Instant::now() + DEATH)?;
            child.try_wait()?;
            let text = format!("killed, it did not end within {} s", limit.as_secs_f64());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        };
        if has_ended {
            end = None;
        }
        if has_out {
            stdout.read()?;
        }
        if has_err {
            stderr.read()?;
        }
    }
    Ok(Output {
        status: child.wait()?,
        stdout: stdout.text,
        stderr: stderr.text,
    })
}

/// One of the outputs.
struct Stream {
    pipe: Option<OwnedFd>,
    text: Vec<u8>,
}

impl Stream {
    fn of(pipe: Option<OwnedFd>) -> Self {
        Self {
            pipe,
            text: Vec::new(),
        }
    }

    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Reads what is there.
    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &self.pipe else {
            return Ok(());
        };
        let mut chunk = [0; CHUNK];
        match rustix::io::read(pipe, &mut chunk) {
            Ok(0) => self.pipe = None,
            Ok(count) => self.text.extend(chunk.iter().take(count)),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Which of these have something to say; `None` when the time is over.
fn wait(open: [&Option<OwnedFd>; 3], deadline: Instant) -> io::Result<Option<[bool; 3]>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled: Vec<_> = open
            .iter()
            .filter_map(|fd| fd.as_ref())
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => {
                let mut said = polled.iter().map(|fd| !fd.revents().is_empty());
                return Ok(Some(
                    open.map(|fd| fd.is_some() && said.next().unwrap_or_default()),
                ));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
