//! Selection of a watch.

use crate::document;
use kube::api::{ListParams, WatchParams};
use serde_json::Value;
use std::time::Duration;

/// Default page size of a list: the first list determines the memory of the process ever after.
const PAGE: u32 = 50;

/// Options of a watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// A label selector, such as `app=multus`.
    pub labels: Option<String>,
    /// A field selector, such as `spec.nodeName=node1`.
    pub fields: Option<String>,
    /// Retry interval of a kind that the API server does not serve; five minutes by default.
    pub absent: Option<Duration>,
    /// Page size of the first list; 50 by default.
    pub page: Option<u32>,
}

impl Options {
    /// All objects.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only objects with these labels.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only objects with these fields.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Sets the retry interval of a kind that the API server does not serve.
    #[must_use]
    pub fn absent(mut self, pause: Duration) -> Self {
        self.absent = Some(pause);
        self
    }

    /// Only the object with this name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.fields(format!("metadata.name={name}"))
    }

    /// Sets the page size of the first list. Larger pages list faster and raise the peak of memory, unless the watch
    /// keeps little of each object.
    #[must_use]
    pub fn page(mut self, objects: u32) -> Self {
        self.page = Some(objects);
        self
    }

    /// Whether the selectors select an object; `None` if they use other operators than equality, or other fields than
    /// name and namespace.
    pub(crate) fn select(&self, object: &Value) -> Option<bool> {
        let text = |pointer: &str| document::text(object, pointer);
        let labels = object.pointer("/metadata/labels");
        let mut selected = true;
        for (key, value) in equalities(self.labels.as_deref())? {
            let label = labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
            selected &= label.is_some() && (value.is_none() || label == value);
        }
        for (field, value) in equalities(self.fields.as_deref())? {
            let found = match field {
                "metadata.name" => text("/metadata/name"),
                "metadata.namespace" => text("/metadata/namespace"),
                _ => return None,
            };
            selected &= value == Some(found);
        }
        Some(selected)
    }

    /// The name of the only selected object, if the selector is a name.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.as_deref()?.strip_prefix("metadata.name=")
    }

    pub(super) fn list(&self) -> ListParams {
        ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit: Some(self.page.unwrap_or(PAGE)),
            ..ListParams::default()
        }
    }

    pub(super) fn watch(&self) -> WatchParams {
        WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            bookmarks: true,
            ..WatchParams::default()
        }
    }
}

/// Keys of a selector with their required values, or none if the key alone is required. `None` if the selector uses
/// other operators.
fn equalities(selector: Option<&str>) -> Option<Vec<(&str, Option<&str>)>> {
    let is_plain = |text: &str| !text.contains(['!', '=', '(', ')', ' ']);
    let Some(selector) = selector else {
        return Some(Vec::new());
    };
    let terms = selector.split(',').map(|term| {
        let (key, value) = match term.split_once('=') {
            Some((key, value)) => (key, Some(value.strip_prefix('=').unwrap_or(value))),
            None => (term, None),
        };
        (is_plain(key) && value.is_none_or(is_plain)).then_some((key, value))
    });
    terms.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn select_evaluates_equality_alone() {
        let object =
            json!({ "metadata": { "name": "n", "namespace": "s", "labels": { "a": "1", "b/c": "" } } });
        for (options, expected) in [
            (Options::all(), Some(true)),
            (Options::all().labels("a=1"), Some(true)),
            (Options::all().labels("a==1,b/c="), Some(true)),
            (Options::all().labels("a"), Some(true)),
            (Options::all().labels("a=2"), Some(false)),
            (Options::all().labels("a=1,d=1"), Some(false)),
            (Options::all().labels("d="), Some(false)),
            (Options::all().named("n"), Some(true)),
            (Options::all().named("m").labels("a=1"), Some(false)),
            (Options::all().fields("metadata.namespace=s"), Some(true)),
            (Options::all().fields("spec.nodeName=n"), None),
            (Options::all().fields("metadata.name!=n"), None),
            (Options::all().labels("a!=1"), None),
            (Options::all().labels("!a"), None),
            (Options::all().labels("a in (1,2)"), None),
        ] {
            assert_eq!(options.select(&object), expected, "{options:?}");
        }
        assert_eq!(Options::all().labels("a=1").select(&json!({})), Some(false));
    }
}
