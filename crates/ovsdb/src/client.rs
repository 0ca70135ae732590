//! Requests, replies and notifications of RFC 7047 section 4.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::splitter::{LONGEST_MESSAGE, Splitter};
use crate::stream::Stream;
use crate::{Address, Error};

/// The database of Open vSwitch.
const DATABASE: &str = "Open_vSwitch";

const TRANSACT: &str = "transact";
const MONITOR: &str = "monitor";
const UPDATE: &str = "update";
const ECHO: &str = "echo";

/// Size of a read, bytes.
const CHUNK: usize = 16 << 10;

/// A message of either direction. Requests and notifications have a method; replies have a result or an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    id: Value,
    method: Option<String>,
    params: Value,
    result: Value,
    error: Value,
}

/// The handling of a message while the client waits for a reply.
enum Handled {
    Reply(Box<Message>),
    Update(Value),
    Nothing,
}

/// A connection to a database server.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    /// Timeout of a request.
    timeout: Duration,
    splitter: Splitter,
    /// Changes that arrived before a reply, with their lengths in bytes.
    updates: VecDeque<(usize, Value)>,
    /// Number of the last request.
    request: u64,
}

impl Client {
    /// Connects to the server. `timeout` limits the connection, and every later request.
    ///
    /// # Errors
    /// [`Error::Connect`] with the kernel's error.
    pub fn connect(address: &Address, timeout: Duration) -> Result<Self, Error> {
        let stream = Stream::connect(address, timeout).map_err(|cause| Error::Connect {
            address: address.clone(),
            cause,
        })?;
        Ok(Self::of(stream, timeout))
    }

    fn of(stream: Stream, timeout: Duration) -> Self {
        Self {
            stream,
            timeout,
            splitter: Splitter::default(),
            updates: VecDeque::new(),
            request: 0,
        }
    }

    /// Applies all operations or none (RFC 7047 section 4.1.3). Returns the reply to each operation, in order.
    ///
    /// # Errors
    /// [`Error::Transaction`] if the server refuses an operation, [`Error::TooFewReplies`], or a failed connection.
    pub fn transact(&mut self, operations: &[Value]) -> Result<Vec<Value>, Error> {
        let database = [Value::from(DATABASE)];
        let params = database.iter().chain(operations).cloned().collect();
        let reply = self.request(TRANSACT, &params)?;
        replies(reply, operations.len())
    }

    /// Subscribes to changes of the columns of tables (RFC 7047 section 4.1.5), such as `{"Bridge": {"columns":
    /// ["name"]}}`. Returns the existing rows: `{table: {uuid: {"new": row}}}`. A connection has at most one monitor.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's error, or a failed connection.
    pub fn monitor(&mut self, tables: Value) -> Result<Value, Error> {
        let params = Value::from(vec![DATABASE.into(), MONITOR.into(), tables]);
        let reply = self.request(MONITOR, &params)?;
        accepted(MONITOR, reply)
    }

    /// Checks that the server answers.
    ///
    /// # Errors
    /// A failed connection.
    pub fn echo(&mut self) -> Result<(), Error> {
        let reply = self.request(ECHO, &json!([]))?;
        accepted(ECHO, reply).map(drop)
    }

    /// Returns the next change of the rows of [`Self::monitor`]: `{table: {uuid: {"old": columns, "new": row}}}`,
    /// without `old` for a new row, and without `new` for a deleted row. Returns `None` if nothing changed within
    /// `timeout`.
    ///
    /// The descriptor of the client becomes readable when the server sends a message. Before waiting for the
    /// descriptor, read all changes with a timeout of zero: some may have arrived together with an earlier message.
    ///
    /// # Errors
    /// A failed connection.
    pub fn next_update(&mut self, timeout: Option<Duration>) -> Result<Option<Value>, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some((_, update)) = self.updates.pop_front() {
                return Ok(Some(update));
            }
            let Some((message, _)) = self.receive(deadline)? else {
                return Ok(None);
            };
            if let Handled::Update(update) = self.handle(message)? {
                return Ok(Some(update));
            }
        }
    }

    /// Sends a request and waits for its reply.
    fn request(&mut self, method: &'static str, params: &Value) -> Result<Message, Error> {
        let deadline = Instant::now() + self.timeout;
        self.request += 1;
        let id = Value::from(self.request);
        self.send(&json!({"method": method, "params": params, "id": id}), deadline)?;
        loop {
            let Some((message, length)) = self.receive(Some(deadline))? else {
                return Err(Error::Late(self.timeout));
            };
            match self.handle(message)? {
                // A reply to an earlier request that timed out is dropped.
                Handled::Reply(reply) if reply.id == id => return Ok(*reply),
                Handled::Update(update) => self.keep(update, length)?,
                Handled::Reply(_) | Handled::Nothing => {}
            }
        }
    }

    /// Stores a change. The length of stored changes is limited to the length of one message.
    fn keep(&mut self, update: Value, length: usize) -> Result<(), Error> {
        let kept: usize = self.updates.iter().map(|(length, _)| length).sum();
        if kept + length > LONGEST_MESSAGE {
            return Err(Error::Malformed(format!(
                "changes of more than {LONGEST_MESSAGE} bytes arrived before a reply"
            )));
        }
        self.updates.push_back((length, update));
        Ok(())
    }

    /// Answers the server's keep-alive requests, and sorts the other messages.
    fn handle(&mut self, mut message: Message) -> Result<Handled, Error> {
        match message.method.as_deref() {
            None => Ok(Handled::Reply(Box::new(message))),
            Some(ECHO) => {
                let deadline = Instant::now() + self.timeout;
                let reply = json!({"id": message.id, "result": message.params, "error": null});
                self.send(&reply, deadline)?;
                Ok(Handled::Nothing)
            }
            Some(UPDATE) => match message.params.get_mut(1) {
                Some(update) => Ok(Handled::Update(update.take())),
                None => Err(Error::Malformed("an update without changes".to_owned())),
            },
            // Other notifications concern clients with locks.
            Some(_) => Ok(Handled::Nothing),
        }
    }

    fn send(&mut self, message: &Value, deadline: Instant) -> Result<(), Error> {
        match self.stream.send(message.to_string().as_bytes(), deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Late(self.timeout)),
            Err(error) => Err(Error::Connection(error)),
        }
    }

    /// Returns the next message and its length in bytes, or `None` if the deadline passed first.
    fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<(Message, usize)>, Error> {
        let mut chunk = [0; CHUNK];
        loop {
            if let Some(text) = self.splitter.next().map_err(Error::Malformed)? {
                let message = serde_json::from_slice(&text);
                let message = message.map_err(|error| Error::Malformed(error.to_string()))?;
                return Ok(Some((message, text.len())));
            }
            match self.stream.receive(&mut chunk, deadline) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) => return Err(Error::Closed),
                Ok(Some(length)) => self.splitter.push(chunk.get(..length).unwrap_or_default()),
                Err(error) => return Err(Error::Connection(error)),
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.0.as_fd()
    }
}

/// Returns the result of a request other than a transaction.
fn accepted(method: &'static str, reply: Message) -> Result<Value, Error> {
    if reply.error.is_null() {
        return Ok(reply.result);
    }
    let (error, details) = error_of(&reply.error).unwrap_or_else(|| (reply.error.to_string(), String::new()));
    let error = if details.is_empty() {
        error
    } else {
        format!("{error}: {details}")
    };
    Err(Error::Refused { method, error })
}

/// Returns the replies to the operations of a transaction. The server adds another reply if the whole transaction
/// fails.
fn replies(reply: Message, operations: usize) -> Result<Vec<Value>, Error> {
    let failed = |(error, details)| Error::Transaction { error, details };
    if !reply.error.is_null() {
        let text = || (reply.error.to_string(), String::new());
        return Err(failed(error_of(&reply.error).unwrap_or_else(text)));
    }
    let Value::Array(mut replies) = reply.result else {
        return Err(Error::TooFewReplies);
    };
    if let Some(error) = replies.iter().find_map(error_of) {
        return Err(failed(error));
    }
    if replies.len() < operations {
        return Err(Error::TooFewReplies);
    }
    replies.truncate(operations);
    Ok(replies)
}

/// Returns error and details, if the value reports an error (RFC 7047 section 3.1, `<error>`).
fn error_of(value: &Value) -> Option<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if value.is_string() {
        return Some((text(value), String::new()));
    }
    let error = value.get("error").filter(|error| !error.is_null())?;
    Some((text(error), value.get("details").map(text).unwrap_or_default()))
}

#[cfg(test)]
mod tests;
