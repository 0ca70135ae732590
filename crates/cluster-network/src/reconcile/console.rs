//! Enables the networking plugin in OpenShift's web console, and disables it before it is pruned (§18.1).

use std::time::{Duration, SystemTime};

use kube_kit::{
    apply,
    cache::Lookup,
    object::{self, ObjectId},
};
use serde_json::Value;

use super::{Reconciler, apply::OWNER_KIND};
use crate::{console, messages, names, observe, render::Rendered};

/// Time after which the entry would have to be written again: longer than any pause of the back-off.
const NEVER_DUE: Duration = Duration::from_hours(24 * 365);

impl Reconciler {
    /// Enables the plugin, if it is rendered and exists.
    pub(super) async fn enable_console_plugin(&self, rendered: &Rendered) -> Result<(), String> {
        let is_rendered = rendered.objects.iter().any(|it| is_plugin(&ObjectId::of(it)));
        let plugin = object::CONSOLE_PLUGIN.object(None, names::CONSOLE_PLUGIN);
        let exists = matches!(self.cache().lookup(&plugin), Lookup::Present(_));
        // The watch of the console reports one that appears later.
        let Lookup::Present(console) = self.cache().lookup(&observe::console_id()) else {
            return Ok(());
        };
        if !is_rendered || !exists {
            return Ok(());
        }
        let Some(patch) = console::patch(&console, true) else {
            return Ok(());
        };
        let now = SystemTime::now();
        let id = observe::console_id();
        let pause = self.applier.upkeep(&id, &names::CONSOLE_PLUGIN, |upkeep| {
            upkeep.in_order(now + NEVER_DUE);
            upkeep.pause(now)
        });
        if pause.is_some() {
            return Err(messages::CONSOLE_CONTESTED.to_owned());
        }
        self.patch_console(&patch).await?;
        self.applier
            .upkeep(&id, &names::CONSOLE_PLUGIN, |upkeep| upkeep.wrote(now));
        tracing::info!(plugin = names::CONSOLE_PLUGIN, "enabled in the console");
        Ok(())
    }

    /// Disables the plugin, if the operator is about to delete it. A console that lists a missing plugin reports an
    /// error.
    pub(super) async fn disable_console_plugin(&self, id: &ObjectId) -> Result<(), String> {
        let text = |error: apply::Error| error.to_string();
        if !is_plugin(id) {
            return Ok(());
        }
        let plugin = self.applier.get(id).await.map_err(text)?;
        if !plugin.is_some_and(|plugin| object::owned_by(&plugin, OWNER_KIND)) {
            return Ok(());
        }
        let console = match self.applier.get(&observe::console_id()).await {
            Ok(console) => console.unwrap_or_default(),
            Err(error) if error.is_unknown_kind() => Value::Null,
            Err(error) => return Err(text(error)),
        };
        if let Some(patch) = console::patch(&console, false) {
            self.patch_console(&patch).await?;
            tracing::info!(plugin = names::CONSOLE_PLUGIN, "disabled in the console");
        }
        Ok(())
    }

    async fn patch_console(&self, patch: &Value) -> Result<(), String> {
        let patched = self
            .applier
            .merge_patch(&observe::console_id(), None, patch)
            .await;
        patched.map(drop).map_err(|error| error.to_string())
    }
}

fn is_plugin(id: &ObjectId) -> bool {
    id.kind == object::CONSOLE_PLUGIN.kind && id.name == names::CONSOLE_PLUGIN
}
