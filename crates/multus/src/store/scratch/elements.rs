//! Edits single elements of a scratch file, for networks that are plugged into a running pod and unplugged.

use super::format::{Error, encode};
use crate::networks::default_route::DefaultRoute;
use crate::networks::delegate::Delegate;
use cni::json::Object;

/// Key of the interface's name in an element.
const INTERFACE: &str = "ifnameRequest";
/// Weft's additional key for the default routes that this network replaced.
const REPLACED_ROUTES: &str = "replacedRoutes";

/// The elements of a scratch file, verbatim, so that an edit of one element leaves the others unchanged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Elements(Vec<Object>);

impl Elements {
    /// Parses the file's text.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, Error> {
        let elements = serde_json::from_slice(text).map_err(|error| Error::Parse(error.into()))?;
        Ok(Self(elements))
    }

    /// The elements of these delegates.
    pub(crate) fn of(delegates: &[Delegate]) -> Result<Self, Error> {
        Self::parse(&encode(delegates, &[]).map_err(Error::Encode)?)
    }

    /// Appends a network that names its interface, with the default routes that it replaces. Removes an earlier
    /// element of the same interface.
    pub(crate) fn put(&mut self, delegate: &Delegate, replaced: &[DefaultRoute]) -> Result<(), Error> {
        if let Some(interface) = &delegate.requests.interface {
            self.remove(interface)?;
        }
        let Self(mut new) = Self::of(std::slice::from_ref(delegate))?;
        self.0.append(&mut new);
        let last = self.0.len().saturating_sub(1);
        self.set_replaced(last, replaced)
    }

    /// Records the default routes that the network at an index replaced, if any.
    pub(crate) fn set_replaced(&mut self, index: usize, routes: &[DefaultRoute]) -> Result<(), Error> {
        match self.0.get_mut(index) {
            Some(element) if !routes.is_empty() => {
                element.set(REPLACED_ROUTES, &routes).map_err(Error::Parse)
            }
            _ => Ok(()),
        }
    }

    /// The default routes that the network of an interface replaced.
    pub(crate) fn replaced(&self, interface: &str) -> Vec<DefaultRoute> {
        let element = self.index_of(interface).and_then(|index| self.0.get(index));
        let routes = element.and_then(|element| element.read(REPLACED_ROUTES).ok().flatten());
        routes.unwrap_or_default()
    }

    /// The index of the network of an interface. The master, at index 0, is never found.
    fn index_of(&self, interface: &str) -> Option<usize> {
        let mut elements = self.0.iter().enumerate().skip(1);
        let found = elements.find(|(index, element)| interface_of(*index, element) == interface);
        found.map(|(index, _)| index)
    }

    /// Removes the network of an interface, unless it is the master. The following elements move up, so the interface
    /// names that their indices implied are written into them.
    pub(crate) fn remove(&mut self, interface: &str) -> Result<(), Error> {
        let Some(gone) = self.index_of(interface) else {
            return Ok(());
        };
        for (index, element) in self.0.iter_mut().enumerate().skip(gone + 1) {
            let name = interface_of(index, element);
            element.set(INTERFACE, &name).map_err(Error::Parse)?;
        }
        self.0.remove(gone);
        Ok(())
    }

    /// The file's text.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let elements: Vec<_> = self.0.iter().map(Object::to_json).collect();
        format!("[{}]", elements.join(",")).into_bytes()
    }
}

/// The interface of the element at an index after the master's.
fn interface_of(index: usize, element: &Object) -> String {
    let named = element.text(INTERFACE).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| format!("net{index}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::delegate::Config;
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
    fn edits_keep_foreign_elements() {
        let upstream =
            r#"[{"Name":"a","Bytes":"e30=","unknown":9007199254740993},{"Name":"b","x":1},{"Name":"c"}]"#;
        let mut elements = Elements::parse(upstream.as_bytes()).unwrap();
        elements.put(&plugged("hot0"), &[]).unwrap();
        let text = String::from_utf8(elements.to_text()).unwrap();
        assert!(text.starts_with(&upstream[..upstream.len() - 1]), "{text}");
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
    fn master_is_never_removed() {
        let mut elements = Elements::parse(br#"[{"Name":"a","ifnameRequest":"eth0"},{"Name":"b"}]"#).unwrap();
        for interface in ["eth0", "net0", "net1"] {
            elements.remove(interface).unwrap();
        }
        assert_eq!(elements.to_text(), br#"[{"Name":"a","ifnameRequest":"eth0"}]"#);
    }
}
