//! The plugin of OpenShift's console.

use api::node_state::NMStateSpec;
use serde_json::Value;

use super::Error;
use crate::operator::files::Files;
use crate::operator::names::{self, namespace};
use crate::operator::object::{Object, for_each_string};
use crate::operator::settings::Settings;

/// Renders the console plugin with its own name and port.
pub(super) fn console_plugin(
    spec: &NMStateSpec,
    settings: &Settings,
    files: &Files,
) -> Result<Vec<Value>, Error> {
    let plugin = &settings.plugin;
    let mut objects = files.objects("console-plugin.yaml")?;
    for object in &mut objects {
        for_each_string(object, &mut |member, text| {
            if member == "namespace" && text == namespace::HANDLER {
                text.clone_from(&settings.handler_namespace);
            } else if member == "image" {
                text.clone_from(&plugin.image);
            } else {
                *text = text.replace(names::PLUGIN, &plugin.name);
            }
        });
        let mut object = Object(object);
        match object.kind() {
            "ConfigMap" => object.insert("/data", "nginx.conf", nginx(plugin.port))?,
            "Service" => {
                object.replace("/spec/ports/0/port", plugin.port)?;
                object.replace("/spec/ports/0/targetPort", plugin.port)?;
            }
            "NetworkPolicy" => object.replace("/spec/ingress/0/ports/0/port", plugin.port)?,
            "ConsolePlugin" => object.replace("/spec/backend/service/port", plugin.port)?,
            "Deployment" => {
                object.replace(
                    "/spec/template/spec/containers/0/ports/0/containerPort",
                    plugin.port,
                )?;
                if let Some(affinity) = &spec.infra_affinity {
                    object.set_in_pod("affinity", affinity)?;
                }
                if let Some(selector) = &spec.infra_node_selector {
                    object.set_in_pod("nodeSelector", selector)?;
                }
                if let Some(tolerations) = &spec.infra_tolerations {
                    object.set_in_pod("tolerations", tolerations)?;
                }
            }
            _ => {}
        }
    }
    Ok(objects)
}

fn nginx(port: u16) -> String {
    format!(
        "error_log /dev/stdout info;\n\
         events {{}}\n\
         http {{\n\
         \x20 access_log         /dev/stdout;\n\
         \x20 include            /etc/nginx/mime.types;\n\
         \x20 default_type       application/octet-stream;\n\
         \x20 keepalive_timeout  65;\n\
         \x20 server {{\n\
         \x20   listen              [::]:{port} ssl;\n\
         \x20   ssl_certificate     /var/serving-cert/tls.crt;\n\
         \x20   ssl_certificate_key /var/serving-cert/tls.key;\n\
         \x20   root                /opt/app-root/src;\n\
         \x20 }}\n\
         }}\n"
    )
}
