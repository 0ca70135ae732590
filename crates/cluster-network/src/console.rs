//! The entry in the list of enabled plugins of OpenShift's web console (§18.1).

use kube_kit::console::plugins_after;
use serde_json::{Value, json};

use crate::names;

/// Merge patch for the console that enables or disables the plugin. `None` if nothing changes.
///
/// A merge patch replaces the whole list. The patch has the resource version of the list that it replaces, so that the
/// API server refuses it after a concurrent change.
pub fn patch(console: &Value, is_enabled: bool) -> Option<Value> {
    Some(json!({
        "metadata": { "resourceVersion": console["metadata"]["resourceVersion"] },
        "spec": { "plugins": plugins_after(console, names::CONSOLE_PLUGIN, is_enabled)? },
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::patch;

    fn console(plugins: &Value) -> Value {
        json!({ "metadata": { "resourceVersion": "7" }, "spec": { "plugins": plugins } })
    }

    // cluster-network#148
    #[test]
    fn patch_keeps_plugins_of_others_in_their_order() {
        let own = "networking-console-plugin";
        for (before, is_enabled, after) in [
            (json!(["b", "a"]), true, Some(json!(["b", "a", own]))),
            (json!([]), true, Some(json!([own]))),
            (Value::Null, true, Some(json!([own]))),
            (json!(["b", own, "a"]), true, None),
            (json!(["b", own, "a"]), false, Some(json!(["b", "a"]))),
            (json!([own]), false, Some(json!([]))),
            (json!(["b"]), false, None),
            (Value::Null, false, None),
        ] {
            let expected = after.map(
                |plugins| json!({ "metadata": { "resourceVersion": "7" }, "spec": { "plugins": plugins } }),
            );
            assert_eq!(
                patch(&console(&before), is_enabled),
                expected,
                "{before} {is_enabled}"
            );
        }
        assert!(patch(&json!({ "metadata": { "resourceVersion": "7" } }), true).is_some());
    }
}
