//! The pod's network namespace of a call.

use std::path::Path;

use cni::{Error, plugin::Call};
use linux::{
    netns::{NetNs, OpenError},
    route::Socket,
};

use crate::messages::Explain;

/// An open pod namespace with its netlink socket.
pub(crate) struct Pod {
    /// The namespace, to enter it.
    pub(crate) ns: NetNs,
    /// A socket in the namespace, usable from any namespace.
    pub(crate) socket: Socket,
    /// `CNI_NETNS`.
    pub(crate) path: String,
}

impl Pod {
    /// Opens the namespace of an ADD or CHECK.
    pub(crate) fn open(call: &Call) -> Result<Self, Error> {
        Pod::find(call, false)?.ok_or_else(|| Error::internal("failed to open netns \"\": no path"))
    }

    /// Opens the namespace of a DEL. `None` without a namespace, in which case nothing is left to delete.
    pub(crate) fn find_remaining(call: &Call) -> Result<Option<Self>, Error> {
        Pod::find(call, true)
    }

    /// Opens the namespace at a path. `None` if it does not exist.
    pub(crate) fn remaining_at(path: &Path) -> Result<Option<Self>, Error> {
        Pod::at(path, true)
    }

    fn find(call: &Call, may_be_gone: bool) -> Result<Option<Self>, Error> {
        match &call.request.netns {
            Some(path) => Pod::at(path, may_be_gone),
            None => Ok(None),
        }
    }

    fn at(path: &Path, may_be_gone: bool) -> Result<Option<Self>, Error> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::internal(format!("failed to open netns \"{}\": {error}", path.display()))
        };
        let ns = match NetNs::open(path) {
            Ok(ns) => ns,
            Err(error) if may_be_gone && OpenError::is_gone(&error) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let socket = ns
            .run(Socket::open)
            .and_then(|opened| opened)
            .map_err(|error| failed(&error))?;
        Ok(Some(Pod {
            ns,
            socket,
            path: path.display().to_string(),
        }))
    }

    /// Runs `work` inside the namespace, with its socket.
    pub(crate) fn inside<T>(
        &mut self,
        work: impl FnOnce(&mut Socket) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Pod { ns, socket, path } = self;
        ns.run(|| work(socket))
            .explain(|| format!("failed to enter netns \"{path}\""))?
    }
}
