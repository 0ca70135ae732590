//! Failures of one reconcile in order of occurrence, by component: a failure of one component does not affect the
//! others.

/// A failure, for a condition and an event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Failure {
    /// Reason in CamelCase.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Failures of components, and of steps that belong to no component.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Failures {
    noted: Vec<(Option<&'static str>, Failure)>,
}

impl Failures {
    /// Adds a failure of a component.
    pub(crate) fn add(&mut self, component: &'static str, reason: &'static str, message: impl Into<String>) {
        self.push(Some(component), reason, message.into());
    }

    /// Adds a failure that belongs to no component.
    pub(crate) fn add_general(&mut self, reason: &'static str, message: impl Into<String>) {
        self.push(None, reason, message.into());
    }

    fn push(&mut self, component: Option<&'static str>, reason: &'static str, message: String) {
        tracing::warn!(
            component,
            reason,
            error = message,
            "a step of the reconcile failed"
        );
        self.noted.push((component, Failure { reason, message }));
    }

    /// Whether a component has no failure.
    pub(crate) fn has_none_of(&self, component: &str) -> bool {
        !self.noted.iter().any(|(of, _)| *of == Some(component))
    }

    /// Summary of the failures of a component.
    pub(crate) fn of(&self, component: &str) -> Option<Failure> {
        summary(self.noted.iter().filter(|(of, _)| *of == Some(component)))
    }

    /// Summary of all failures.
    pub(crate) fn all(&self) -> Option<Failure> {
        summary(self.noted.iter())
    }
}

/// The reason is the first failure's. The messages follow, one a line, without repetitions.
fn summary<'a>(failures: impl Iterator<Item = &'a (Option<&'static str>, Failure)>) -> Option<Failure> {
    let mut reason = None;
    let mut messages: Vec<&str> = Vec::new();
    for (_, failure) in failures {
        reason = reason.or(Some(failure.reason));
        if !messages.contains(&failure.message.as_str()) {
            messages.push(&failure.message);
        }
    }
    Some(Failure {
        reason: reason?,
        message: messages.join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_first_reason_and_each_message_once() {
        let mut failures = Failures::default();
        assert_eq!(failures.all(), None);
        failures.add("ovs", "FailedToRender", "a");
        failures.add("macvtap", "FailedToApply", "b");
        failures.add("multus", "FailedToApply", "b");
        failures.add("ovs", "FailedToApply", "c");
        failures.add_general("FailedToDeleteObjects", "d");
        let summary_of = |failure: Option<Failure>| failure.map(|found| (found.reason, found.message));
        assert_eq!(
            summary_of(failures.all()),
            Some(("FailedToRender", "a\nb\nc\nd".into()))
        );
        assert_eq!(
            summary_of(failures.of("ovs")),
            Some(("FailedToRender", "a\nc".into()))
        );
        assert_eq!(
            summary_of(failures.of("macvtap")),
            Some(("FailedToApply", "b".into()))
        );
        assert_eq!(summary_of(failures.of("linuxBridge")), None);
        assert!(failures.has_none_of("linuxBridge") && !failures.has_none_of("multus"));
    }
}
