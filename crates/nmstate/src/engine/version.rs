//! Versions of the library and of NetworkManager, and its state on the bus.

use futures::StreamExt as _;
use zbus::fdo::{self, DBusProxy};
use zbus::zvariant::OwnedObjectPath;
use zbus::{Connection, Proxy};

use super::limit::{ANSWER, within};
use super::{Backend, Error, PLUGIN_FAILURE, Versions};

/// Version of the library.
const LIBRARY: &str = "2.2.62";

/// NetworkManager's name on the bus, its object, and properties.
const NETWORK_MANAGER: &str = "org.freedesktop.NetworkManager";
const PATH: &str = "/org/freedesktop/NetworkManager";
const VERSION: &str = "Version";
const CHECKPOINTS: &str = "Checkpoints";

/// The version of the library, as its tool prints it.
pub fn program() -> String {
    format!("nmstatectl {LIBRARY}")
}

/// The version of the library, as its tool prints it, and of NetworkManager.
pub(super) async fn versions(backend: Backend) -> Result<Versions, Error> {
    let network_manager = match backend {
        Backend::Kernel => None,
        Backend::NetworkManager => Some(network_manager().await.map_err(|error| {
            Error::new(
                PLUGIN_FAILURE,
                format!("cannot ask NetworkManager for its version: {error}"),
            )
        })?),
    };
    Ok(Versions {
        engine: program(),
        network_manager,
    })
}

/// Identity of the running NetworkManager: the bus and its name there, `<id of the bus> :1.7`. The name alone is not
/// unique: each bus counts from the beginning, so the same name occurs again after a reboot.
pub(super) async fn owner() -> Result<String, Error> {
    let owner = async {
        let connection = Connection::system().await?;
        owner_on(&DBusProxy::new(&connection).await?).await
    };
    within(ANSWER, async { owner.await.map_err(|error| absent(&error)) }).await
}

/// Waits for NetworkManager, and returns its identity.
pub(super) async fn next_owner() -> Result<String, Error> {
    let owner = async {
        let connection = Connection::system().await?;
        let bus = DBusProxy::new(&connection).await?;
        // Subscribed before the question, so that no start is missed.
        let mut changes = bus
            .receive_name_owner_changed_with_args(&[(0, NETWORK_MANAGER)])
            .await?;
        loop {
            match owner_on(&bus).await {
                Err(zbus::Error::FDO(error)) if matches!(*error, fdo::Error::NameHasNoOwner(_)) => {
                    tracing::warn!("waiting for NetworkManager: {error}");
                }
                answer => return answer,
            }
            if changes.next().await.is_none() {
                return Err(zbus::Error::Failure("the bus has ended".to_owned()));
            }
        }
    };
    owner.await.map_err(|error| absent(&error))
}

async fn owner_on(bus: &DBusProxy<'_>) -> zbus::Result<String> {
    let owner = bus.get_name_owner(NETWORK_MANAGER.try_into()?).await?;
    Ok(format!("{} {owner}", bus.get_id().await?))
}

fn absent(error: &zbus::Error) -> Error {
    Error::new(
        PLUGIN_FAILURE,
        format!("NetworkManager is not on the bus: {error}"),
    )
}

/// Whether NetworkManager has a checkpoint.
pub(super) async fn has_checkpoints() -> Result<bool, Error> {
    let checkpoints = async {
        let connection = Connection::system().await?;
        let proxy = Proxy::new(&connection, NETWORK_MANAGER, PATH, NETWORK_MANAGER).await?;
        proxy.get_property::<Vec<OwnedObjectPath>>(CHECKPOINTS).await
    };
    let checkpoints = async {
        checkpoints.await.map_err(|error| {
            Error::new(
                PLUGIN_FAILURE,
                format!("cannot ask NetworkManager for its checkpoints: {error}"),
            )
        })
    };
    Ok(!within(ANSWER, checkpoints).await?.is_empty())
}

async fn network_manager() -> zbus::Result<String> {
    let connection = Connection::system().await?;
    let proxy = Proxy::new(&connection, NETWORK_MANAGER, PATH, NETWORK_MANAGER).await?;
    proxy.get_property(VERSION).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn version_is_that_of_the_linked_library() {
        let versions = versions(Backend::Kernel).await.expect("versions");
        let manifest = include_str!("../../Cargo.toml");
        assert!(manifest.contains(&format!("nmstate = {{ version = \"={LIBRARY}\"")));
        assert_eq!(versions.engine, format!("nmstatectl {LIBRARY}"));
        assert_eq!(versions.network_manager, None);
    }
}
