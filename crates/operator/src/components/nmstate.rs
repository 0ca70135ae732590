//! Node state: interfaces of nodes by policies (operands §15, operator §15).
//!
//! ```text
//! spec.nmstate ──> node state operator ──┐
//!                  NMState nmstate ──────┴──> handlers, webhook, ... : they belong to the NMState
//! ```
//!
//! Where somebody else brought the API, his operator does the work, and only the object is created.

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context};
use crate::{
    cluster_facts::{NodeStateDefinition, NodeStateWish},
    images::Image,
    manifest::{Error, Manifest},
};

/// See the module.
pub struct NMState;

impl Component for NMState {
    fn name(&self) -> &'static str {
        "nmstate"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.nmstate.is_some()
    }

    fn render(&self, context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        let mut objects = context.namespace_object()?;
        if context.node_state.definition != NodeStateDefinition::SomebodyElses {
            objects.push(Manifest::definition(api::node_state::crd())?);
            let mut operator =
                context.objects("nmstate/operator.yaml", include_str!("nmstate/operator.yaml"))?;
            for workload in operator.iter_mut().filter(|object| object.has_pods()) {
                complete(workload, context)?;
            }
            objects.extend(operator);
        }
        let settings = match &context.node_state.wish {
            NodeStateWish::NotServed | NodeStateWish::SomebodyElses => return Ok(objects),
            NodeStateWish::None => None,
            NodeStateWish::Ours(settings) => Some(settings),
        };
        let mut wish = context.objects("nmstate/wish.yaml", include_str!("nmstate/wish.yaml"))?;
        if let Some(settings) = settings {
            // What is set up there is the user's: this configuration has nothing to say about it.
            for object in &mut wish {
                object.set("spec", settings.clone());
            }
        }
        objects.extend(wish);
        Ok(objects)
    }
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.own().ok_or(Error::OwnImage)?;
    let mut pods = workload.pods()?;
    pods.place(&context.infra())?;
    if context.cluster.platform.scc {
        pods.without_user()?;
    }
    pods.container("nmstate-operator")?
        .run(Image::Native(image), context.pull_policy())
        .variable("MONITORING_NAMESPACE", &context.prometheus.namespace)?
        .variable("RELATED_IMAGE_HANDLER_IMAGE", image)?
        .variable("HANDLER_IMAGE_PULL_POLICY", context.pull_policy())?;
    Ok(())
}
