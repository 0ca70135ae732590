//! A scratch file changed in parts: networks that come to a running pod and go.

use super::format::{Error, encode};
use crate::default_route::DefaultRoute;
use crate::delegate::Delegate;
use cni::json::Object;

/// Key of the interface's name in an element.
const INTERFACE: &str = "ifnameRequest";
/// Key, ours, of the default routes that the pod had in the place of this network's.
const REPLACED_ROUTES: &str = "replacedRoutes";

/// A scratch file's elements as they were written, whoever wrote them, so that one can come or go and the others stay
/// as they are.
#[derive(Debug, Clone, Default)]
pub struct Elements(Vec<Object>);

impl Elements {
    /// The elements of a file's text.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let elements = serde_json::from_slice(text).map_err(|error| Error::Parse(error.into()))?;
        Ok(Self(elements))
    }

    /// New elements.
    pub fn of(delegates: &[Delegate]) -> Result<Self, Error> {
        Self::parse(&encode(delegates, &[]).map_err(Error::Encode)?)
    }

    /// Adds a network that names its interface, in the place of what was recorded for that interface, and with the default
    /// routes that it replaces.
    pub fn put(&mut self, delegate: &Delegate, replaced: &[DefaultRoute]) -> Result<(), Error> {
        if let Some(interface) = &delegate.requests.interface {
            self.remove(interface)?;
        }
        let Self(mut new) = Self::of(std::slice::from_ref(delegate))?;
        self.0.append(&mut new);
        let last = self.0.len().saturating_sub(1);
        self.set_replaced(last, replaced)
    }

    /// Notes which default routes the network in a place replaced; nothing when it replaced none.
    pub fn set_replaced(&mut self, place: usize, routes: &[DefaultRoute]) -> Result<(), Error> {
        match self.0.get_mut(place) {
            Some(element) if !routes.is_empty() => {
                element.set(REPLACED_ROUTES, &routes).map_err(Error::Parse)
            }
            _ => Ok(()),
        }
    }

    /// The default routes that the network of an interface replaced.
    pub fn replaced(&self, interface: &str) -> Vec<DefaultRoute> {
        let element = self.place_of(interface).and_then(|place| self.0.get(place));
        let routes = element.and_then(|element| element.read(REPLACED_ROUTES).ok().flatten());
        routes.unwrap_or_default()
    }

    /// The place of the network of an interface, unless it is the master, the first one.
    fn place_of(&self, interface: &str) -> Option<usize> {
        let mut places = self.0.iter().enumerate().skip(1);
        let found = places.find(|(place, element)| interface_of(*place, element) == interface);
        found.map(|(place, _)| place)
    }

    /// Removes the network of an interface, unless it is the master, the first one. Those behind it move up, so they get
    /// the names in writing that their places gave them.
    pub fn remove(&mut self, interface: &str) -> Result<(), Error> {
        let Some(gone) = self.place_of(interface) else {
            return Ok(());
        };
        for (place, element) in self.0.iter_mut().enumerate().skip(gone + 1) {
            let name = interface_of(place, element);
            element.set(INTERFACE, &name).map_err(Error::Parse)?;
        }
        self.0.remove(gone);
        Ok(())
    }

    /// The file's text.
    pub fn to_text(&self) -> Vec<u8> {
        let elements: Vec<_> = self.0.iter().map(Object::to_json).collect();
        format!("[{}]", elements.join(",")).into_bytes()
    }
}

/// The interface of the element in a place behind the master's.
fn interface_of(place: usize, element: &Object) -> String {
    let named = element.text(INTERFACE).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| format!("net{place}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delegate::Config;
    use serde_json::{Value, json};

    fn plugged(interface: &str) -> Delegate {
        let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "t"});
        let mut delegate = Delegate::new(
            "ns/n".into(),
            Config::parse(config.to_string().as_bytes()).unwrap(),
        );
        delegate.requests.interface = Some(interface.into());
        delegate
    }

    #[test]
    fn networks_come_and_go_beside_those_of_another_daemon() {
        let established =
            r#"[{"Name":"a","Bytes":"e30=","unknown":9007199254740993},{"Name":"b","x":1},{"Name":"c"}]"#;
        let mut elements = Elements::parse(established.as_bytes()).unwrap();
        elements.put(&plugged("hot0"), &[]).unwrap();
        let text = String::from_utf8(elements.to_text()).unwrap();
        assert!(text.starts_with(&established[..established.len() - 1]), "{text}");
        // A second attempt leaves one record.
        elements.put(&plugged("hot0"), &[]).unwrap();
        assert_eq!(elements.0.len(), 4);

        // The second network goes: the third one keeps its interface.
        elements.remove("net1").unwrap();
        let left: Value = serde_json::from_slice(&elements.to_text()).unwrap();
        assert_eq!(
            left[0],
            json!({"Name": "a", "Bytes": "e30=", "unknown": 9_007_199_254_740_993_i64})
        );
        assert_eq!(left[1], json!({"Name": "c", "ifnameRequest": "net2"}));
        elements.remove("hot0").unwrap();
        elements.remove("nothing").unwrap();
        assert_eq!(elements.0.len(), 2);
    }

    #[test]
    fn the_master_is_not_for_taking_even_where_it_has_a_name() {
        let mut elements = Elements::parse(br#"[{"Name":"a","ifnameRequest":"eth0"},{"Name":"b"}]"#).unwrap();
        for interface in ["eth0", "net0", "net1"] {
            elements.remove(interface).unwrap();
        }
        assert_eq!(elements.to_text(), br#"[{"Name":"a","ifnameRequest":"eth0"}]"#);
    }
}
