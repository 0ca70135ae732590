//! What went wrong in a reconcile, in the order in which it did. One component's failure is not another's.

/// Something that went wrong, for a condition and an event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// One word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Failures of components, and of what belongs to none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Failures {
    noted: Vec<(Option<&'static str>, Failure)>,
}

impl Failures {
    /// Takes down a failure of a component.
    pub fn note(&mut self, component: &'static str, reason: &'static str, message: impl Into<String>) {
        self.add(Some(component), reason, message.into());
    }

    /// Takes down a failure of what belongs to no component.
    pub fn note_general(&mut self, reason: &'static str, message: impl Into<String>) {
        self.add(None, reason, message.into());
    }

    fn add(&mut self, component: Option<&'static str>, reason: &'static str, message: String) {
        tracing::warn!(component, reason, error = message, "a step failed");
        self.noted.push((component, Failure { reason, message }));
    }

    /// Whether nothing of a component failed.
    pub fn spare(&self, component: &str) -> bool {
        !self.noted.iter().any(|(of, _)| *of == Some(component))
    }

    /// What failed of a component.
    pub fn of(&self, component: &str) -> Option<Failure> {
        summary(self.noted.iter().filter(|(of, _)| *of == Some(component)))
    }

    /// All that failed.
    pub fn all(&self) -> Option<Failure> {
        summary(self.noted.iter())
    }
}

/// The first failure has the word; the messages follow one a line, each once.
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
    fn the_first_failure_has_the_word_and_every_message_is_said_once() {
        let mut failures = Failures::default();
        assert_eq!(failures.all(), None);
        failures.note("ovs", "FailedToRender", "a");
        failures.note("macvtap", "FailedToApply", "b");
        failures.note("multus", "FailedToApply", "b");
        failures.note("ovs", "FailedToApply", "c");
        failures.note_general("FailedToDeleteObjects", "d");
        let told = |failure: Option<Failure>| failure.map(|found| (found.reason, found.message));
        assert_eq!(
            told(failures.all()),
            Some(("FailedToRender", "a\nb\nc\nd".into()))
        );
        assert_eq!(told(failures.of("ovs")), Some(("FailedToRender", "a\nc".into())));
        assert_eq!(told(failures.of("macvtap")), Some(("FailedToApply", "b".into())));
        assert_eq!(told(failures.of("linuxBridge")), None);
        assert!(failures.spare("linuxBridge") && !failures.spare("multus"));
    }
}
