//! The list of enabled plugins of OpenShift's web console. Other operators and users have entries there too.

use serde_json::{Value, json};

/// The list of a `Console` after a plugin was enabled or disabled. The entries of others keep their order. `None` if
/// nothing changes.
#[must_use]
pub fn plugins_after(console: &Value, plugin: &str, is_enabled: bool) -> Option<Vec<Value>> {
    let plugins = console["spec"]["plugins"].as_array();
    let mut plugins = plugins.cloned().unwrap_or_default();
    if plugins.iter().any(|known| known == plugin) == is_enabled {
        return None;
    }
    if is_enabled {
        plugins.push(json!(plugin));
    } else {
        plugins.retain(|known| known != plugin);
    }
    Some(plugins)
}
