//! Objects as JSON, and steps that complete them.

use serde_json::{Value, json};

/// Cause of a part that cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is not valid YAML: a defect of the operator.
    #[error("{file} is not a list of objects: {cause}")]
    Syntax {
        /// File name.
        file: &'static str,
        /// Message of the parser.
        cause: String,
    },
    /// An object lacks the target of a step: a defect of the operator.
    #[error("{object} has no {part}")]
    Missing {
        /// Kind and name of the object.
        object: String,
        /// The missing part of the object.
        part: String,
    },
    /// A definition cannot be generated: a defect of the operator.
    #[error(transparent)]
    Definition(#[from] api::Error),
    /// The configuration or the cluster does not allow the part.
    #[error("{0}")]
    Refused(String),
}

/// Parses the objects of a file, in order.
pub(super) fn parse(file: &'static str, yaml: &str) -> Result<Vec<Value>, Error> {
    serde_saphyr::from_multiple(yaml).map_err(|cause| Error::Syntax {
        file,
        cause: cause.to_string(),
    })
}

pub(super) fn find<'a>(objects: &'a mut [Value], kind: &str, name: &str) -> Result<&'a mut Value, Error> {
    objects
        .iter_mut()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .ok_or_else(|| Error::Missing {
            object: format!("{kind} {name}"),
            part: "manifest".to_owned(),
        })
}

/// Replaces the value at a JSON pointer.
pub(super) fn set(object: &mut Value, pointer: &str, value: Value) -> Result<(), Error> {
    let missing = Error::Missing {
        object: format!("{} {}", object["kind"], object["metadata"]["name"]),
        part: pointer.to_owned(),
    };
    *object.pointer_mut(pointer).ok_or(missing)? = value;
    Ok(())
}

/// All containers of the pods of a workload, including init containers.
fn containers(workload: &mut Value) -> impl Iterator<Item = &mut Value> {
    let pod = workload
        .pointer_mut("/spec/template/spec")
        .and_then(Value::as_object_mut);
    let lists = pod.into_iter().flat_map(|pod| pod.iter_mut());
    lists
        .filter(|(key, _)| ["initContainers", "containers"].contains(&key.as_str()))
        .filter_map(|(_, list)| list.as_array_mut())
        .flatten()
}

/// Sets the image of all containers with this placeholder. Returns true if there is one.
pub(super) fn use_image(objects: &mut [Value], placeholder: &str, image: &str, pull_policy: &str) -> bool {
    let mut is_used = false;
    for object in objects {
        for container in containers(object) {
            if container["image"] == placeholder {
                container["image"] = json!(image);
                container["imagePullPolicy"] = json!(pull_policy);
                is_used = true;
            }
        }
    }
    is_used
}

/// Sets a variable in all containers that have it. `None` removes the variable.
pub(super) fn set_variable(objects: &mut [Value], name: &str, value: Option<&str>) {
    for object in objects {
        for container in containers(object) {
            let Some(variables) = container.get_mut("env").and_then(Value::as_array_mut) else {
                continue;
            };
            match value {
                Some(value) => {
                    for variable in variables.iter_mut().filter(|it| it["name"] == name) {
                        variable["value"] = json!(value);
                    }
                }
                None => variables.retain(|variable| variable["name"] != name),
            }
        }
    }
}

/// Appends an item to a list.
pub(super) fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

pub(super) fn containers_of(workload: &mut Value) -> Result<&mut Vec<Value>, Error> {
    let missing = Error::Missing {
        object: format!("{} {}", workload["kind"], workload["metadata"]["name"]),
        part: "containers".to_owned(),
    };
    let containers = workload.pointer_mut("/spec/template/spec/containers");
    containers.and_then(Value::as_array_mut).ok_or(missing)
}

/// The container of a workload with this name.
pub(super) fn container<'a>(workload: &'a mut Value, name: &str) -> Result<&'a mut Value, Error> {
    let missing = Error::Missing {
        object: format!("{} {}", workload["kind"], workload["metadata"]["name"]),
        part: name.to_owned(),
    };
    let mut containers = containers_of(workload)?.iter_mut();
    containers
        .find(|container| container["name"] == name)
        .ok_or(missing)
}

/// Appends texts to a list.
pub(super) fn extend(list: &mut Value, more: Vec<String>) {
    if let Some(list) = list.as_array_mut() {
        list.extend(more.into_iter().map(Value::from));
    }
}

/// Sets the Secret of a volume of a workload.
pub(super) fn use_secret(workload: &mut Value, volume: &str, secret: &str) {
    let volumes = workload.pointer_mut("/spec/template/spec/volumes");
    for found in volumes.and_then(Value::as_array_mut).into_iter().flatten() {
        if found["name"] == volume {
            found["secret"]["secretName"] = json!(secret);
        }
    }
}

/// Sets the host path of a volume in all workloads that have the volume.
pub(super) fn set_host_path(objects: &mut [Value], volume: &str, path: &str) {
    for object in objects {
        let volumes = object.pointer_mut("/spec/template/spec/volumes");
        for found in volumes.and_then(Value::as_array_mut).into_iter().flatten() {
            if found["name"] == volume {
                found["hostPath"]["path"] = json!(path);
            }
        }
    }
}
