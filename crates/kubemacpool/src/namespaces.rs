//! Which namespaces are managed: those that the webhooks' selectors match (kubemacpool §7). Pure.
//!
//! ```text
//! webhook configuration ──> one rule per webhook: opt-in or opt-out, selector ─┐
//! namespaces ──> labels ───────────────────────────────────────────────────────┴─> managed or not
//! ```
//!
//! The API server filters admission by the same selectors. This module decides where there is no review: for
//! collisions, for metrics, and at the start.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::names;
use crate::pool::Kind;

#[cfg(test)]
mod tests;

/// Labels of a namespace.
pub(crate) type Labels = BTreeMap<String, String>;

/// It is unknown whether a namespace is managed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unknown {
    /// The configuration, or the webhook in it, does not exist.
    #[error("webhook {0} was not found on mutatingWebhookConfig {name}", name = names::WEBHOOK_CONFIGURATION)]
    Webhook(&'static str),
    /// The webhook has no namespace selector.
    #[error("webhook {0} has no NamespaceSelector")]
    Selector(&'static str),
    /// The webhook's selector does not contain its label.
    #[error("no opt mode defined for webhook {0}")]
    Mode(&'static str),
    /// The namespace does not exist.
    #[error("failed to get namespace: namespaces {0:?} not found")]
    Namespace(String),
}

/// Whether a namespace without the label is managed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Not managed unless a label selects it.
    OptIn,
    /// Managed unless a label excludes it.
    OptOut,
}

/// The namespaces of one webhook.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    mode: Mode,
    selector: LabelSelector,
}

/// The namespaces of the configuration's webhooks.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pods: Result<Rule, Unknown>,
    machines: Result<Rule, Unknown>,
}

impl Rules {
    /// Reads the configuration; `None` if it does not exist.
    pub fn read(configuration: Option<&MutatingWebhookConfiguration>) -> Self {
        let rule = |name: &'static str| {
            let webhooks = configuration
                .and_then(|it| it.webhooks.as_deref())
                .unwrap_or_default();
            let webhook = webhooks.iter().find(|webhook| webhook.name == name);
            let selector = webhook.ok_or(Unknown::Webhook(name))?.namespace_selector.as_ref();
            let selector = selector.ok_or(Unknown::Selector(name))?;
            Ok(Rule {
                mode: mode(selector, name).ok_or(Unknown::Mode(name))?,
                selector: selector.clone(),
            })
        };
        Self {
            pods: rule(names::PODS_WEBHOOK),
            machines: rule(names::MACHINES_WEBHOOK),
        }
    }

    fn of(&self, kind: Kind) -> Result<&Rule, &Unknown> {
        match kind {
            Kind::Pod => self.pods.as_ref(),
            Kind::Machine => self.machines.as_ref(),
        }
    }
}

/// The mode of a selector, whatever the label values are: users may choose them.
fn mode(selector: &LabelSelector, key: &str) -> Option<Mode> {
    let expressions = selector.match_expressions.iter().flatten();
    let by_expression = expressions
        .filter(|expression| expression.key == key)
        .find_map(|expression| match expression.operator.as_str() {
            "In" | "Exists" => Some(Mode::OptIn),
            "NotIn" | "DoesNotExist" => Some(Mode::OptOut),
            _ => None,
        });
    let labels = selector.match_labels.as_ref();
    let by_label = || labels?.contains_key(key).then_some(Mode::OptIn);
    by_expression.or_else(by_label)
}

/// Whether a selector matches labels, like in the API server.
fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let mut wanted = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    wanted.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|expression| meets(labels, expression))
}

fn meets(labels: &Labels, expression: &LabelSelectorRequirement) -> bool {
    let value = labels.get(&expression.key);
    let listed = || {
        let values = expression.values.as_deref().unwrap_or_default();
        value.is_some_and(|value| values.contains(value))
    };
    match expression.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

/// Observed namespaces and selectors of the webhooks.
#[derive(Debug)]
pub struct Managed {
    rules: Rules,
    namespaces: HashMap<Box<str>, Labels>,
}

impl Default for Managed {
    fn default() -> Self {
        Self::new()
    }
}

impl Managed {
    /// Nothing is observed yet.
    pub fn new() -> Self {
        Self {
            rules: Rules::read(None),
            namespaces: HashMap::new(),
        }
    }

    /// Stores the configuration. Returns whether it changed.
    pub fn set_rules(&mut self, rules: Rules) -> bool {
        let new = self.rules != rules;
        self.rules = rules;
        new
    }

    /// Stores a namespace's labels. Returns whether they changed.
    pub fn set_namespace(&mut self, name: &str, labels: Labels) -> bool {
        if self.namespaces.get(name) == Some(&labels) {
            return false;
        }
        self.namespaces.insert(name.into(), labels);
        true
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    /// Whether objects of a kind are managed in a namespace.
    ///
    /// # Errors
    /// If the webhook's selector has no opt mode, or the namespace does not exist.
    pub fn is_managed(&self, kind: Kind, namespace: &str) -> Result<bool, Unknown> {
        let rule = self.rules.of(kind).map_err(Clone::clone)?;
        let labels = self.namespaces.get(namespace);
        let labels = labels.ok_or_else(|| Unknown::Namespace(namespace.to_owned()))?;
        Ok(rule.manages(labels))
    }

    /// The opt mode of a webhook.
    ///
    /// # Errors
    /// If its selector has none.
    pub fn mode(&self, kind: Kind) -> Result<Mode, Unknown> {
        self.rules.of(kind).map(|rule| rule.mode).map_err(Clone::clone)
    }

    /// Number of observed namespaces that are managed for a kind.
    pub fn count(&self, kind: Kind) -> usize {
        let Ok(rule) = self.rules.of(kind) else { return 0 };
        self.namespaces
            .values()
            .filter(|labels| rule.manages(labels))
            .count()
    }
}

impl Rule {
    fn manages(&self, labels: &Labels) -> bool {
        if labels.is_empty() {
            return self.mode == Mode::OptOut;
        }
        selects(&self.selector, labels)
    }
}
