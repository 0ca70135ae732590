//! Input and output of a process with a time limit.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Size of a read, in bytes.
const CHUNK: usize = 16 * 1024;
/// Limit of each output, in bytes.
const MOST_PRINTED: usize = 1 << 20;
/// Timeout of a killed process' death.
const DEATH: Duration = Duration::from_secs(5);

/// Writes a process' input and reads its outputs until it has ended and closed them. The process need not read its
/// input. It is killed when it prints too much, at the timeout, or on an error here; with a limit, together with its
/// process group, which must be its own. After its end, descendants that hold the outputs are waited for only until
/// the timeout.
pub(crate) fn communicate(mut child: Child, input: &[u8], limit: Option<Duration>) -> io::Result<Output> {
    follow(&mut child, input, limit).inspect_err(|_| {
        // On an error the process must not keep running. After `try_wait` reaped it, its number may belong to another
        // process.
        if matches!(child.try_wait(), Ok(None)) {
            let _ = kill(&mut child, limit.is_some());
            let _ = child.try_wait();
        }
    })
}

fn follow(child: &mut Child, input: &[u8], limit: Option<Duration>) -> io::Result<Output> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut end = Some(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?);
    let mut stdin = Input::of(child.stdin.take().map(OwnedFd::from), input)?;
    let mut stdout = Stream::of(child.stdout.take().map(OwnedFd::from));
    let mut stderr = Stream::of(child.stderr.take().map(OwnedFd::from));
    while end.is_some() || stdout.is_open() || stderr.is_open() {
        let open = [
            end.as_ref(),
            stdout.pipe.as_ref(),
            stderr.pipe.as_ref(),
            stdin.pipe.as_ref(),
        ];
        let Some([has_ended, has_out, has_err, takes]) = wait(open, deadline)? else {
            if end.is_none() {
                break;
            }
            let limit = limit.unwrap_or_default().as_secs_f64();
            let text = format!("killed, it did not end within {limit} s");
            return end_it(
                child,
                end.as_ref(),
                true,
                io::Error::new(io::ErrorKind::TimedOut, text),
            );
        };
        if has_ended {
            end = None;
            stdin.pipe = None;
        } else if takes {
            stdin.write()?;
        }
        if has_out {
            stdout.read()?;
        }
        if has_err {
            stderr.read()?;
        }
        if stdout.text.len().max(stderr.text.len()) > MOST_PRINTED {
            let text = format!("killed, it printed more than {} MiB", MOST_PRINTED >> 20);
            return end_it(child, end.as_ref(), limit.is_some(), io::Error::other(text));
        }
    }
    Ok(Output {
        status: child.wait()?,
        stdout: stdout.text,
        stderr: stderr.text,
    })
}

/// Kills the process, waits for its death, and returns the error.
fn end_it(child: &mut Child, end: Option<&OwnedFd>, group: bool, why: io::Error) -> io::Result<Output> {
    kill(child, group)?;
    if end.is_some() {
        wait([end, None, None, None], Some(Instant::now() + DEATH))?;
    }
    child.try_wait()?;
    Err(why)
}

fn kill(child: &mut Child, group: bool) -> io::Result<()> {
    if !group {
        return child.kill();
    }
    Ok(kill_process_group(Pid::from_child(child), Signal::KILL)?)
}

/// The input pipe and the remaining input.
struct Input<'a> {
    pipe: Option<OwnedFd>,
    left: &'a [u8],
}

impl<'a> Input<'a> {
    fn of(pipe: Option<OwnedFd>, text: &'a [u8]) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            // Affects only this end of the pipe.
            ioctl_fionbio(pipe, true)?;
        }
        let mut input = Self { pipe, left: text };
        input.write()?;
        Ok(input)
    }

    /// Writes as much as fits into the pipe, and closes it after the last byte.
    fn write(&mut self) -> io::Result<()> {
        while let Some(pipe) = &self.pipe {
            match rustix::io::write(pipe, self.left) {
                Ok(count) => self.left = self.left.get(count..).unwrap_or_default(),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // The process closed its input, which is no error.
                Err(Errno::PIPE) => self.left = &[],
                Err(error) => return Err(error.into()),
            }
            if self.left.is_empty() {
                self.pipe = None;
            }
        }
        Ok(())
    }
}

/// An output pipe and the text read so far.
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

    /// Reads the available bytes.
    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &self.pipe else {
            return Ok(());
        };
        let mut chunk = [0; CHUNK];
        match rustix::io::read(pipe, &mut chunk) {
            Ok(0) => self.pipe = None,
            Ok(count) => self.text.extend(chunk.iter().take(count)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Waits until one of these is ready: the process' end, its outputs, its input. `None` at the deadline.
fn wait(open: [Option<&OwnedFd>; 4], deadline: Option<Instant>) -> io::Result<Option<[bool; 4]>> {
    let events = [PollFlags::IN, PollFlags::IN, PollFlags::IN, PollFlags::OUT];
    loop {
        let mut polled: Vec<_> = open
            .into_iter()
            .zip(events)
            .filter_map(|(fd, events)| Some(PollFd::from_borrowed_fd(fd?.as_fd(), events)))
            .collect();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left
            .map(Timespec::try_from)
            .transpose()
            .map_err(io::Error::other)?;
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) => return Ok(None),
            Ok(_) => {
                let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
                return Ok(Some(
                    open.map(|fd| fd.is_some() && ready.next().unwrap_or_default()),
                ));
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
