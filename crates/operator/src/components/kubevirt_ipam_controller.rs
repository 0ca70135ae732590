//! KubeVirt IPAM: persistent addresses of virtual machines (operands §8).

use kube_kit::object::{self, ObjectId};
use serde_json::json;
use webhook::certificates::Identity;

use super::{Context, Leftover, Place, replace_roles};
use crate::{
    cluster_facts::{Cluster, Platform},
    images::{Image, Images},
    manifest::{Error, Manifest},
    names,
};

/// Name of the component.
pub(crate) const NAME: &str = "kubevirtIpamController";

/// Name of the webhook's Service. OpenShift writes its certificate into a Secret of the same name.
const SERVICE: &str = "kubevirt-ipam-controller-webhook-service";

/// Name of cert-manager's Certificate.
const CERTIFICATE: &str = "kubevirt-ipam-controller-serving-cert";

/// Name of the webhook configuration.
pub(crate) const WEBHOOK: &str = "kubevirt-ipam-controller-mutating-webhook-configuration";

/// Name of the Lease that the elected controller renews.
pub(crate) const LEASE: &str = "71d89df3";

/// Finalizer of the claims of virtual machines.
pub(crate) const FINALIZER: &str = "kubevirt.io/persistent-ipam";

/// Secret with the certificate that cert-manager or the operator issues.
const SERVING_SECRET: &str = "webhook-server-cert";

/// Secret with the certificate authority of the operator. No pod mounts it.
const AUTHORITY_SECRET: &str = "kubevirt-ipam-controller-webhook-ca";

/// User of upstream's image and of Weft's.
const USER: u32 = 65532;

/// The issuer of the webhook's certificate.
#[derive(Clone, Copy)]
enum Certificates {
    /// cert-manager, configured by objects.
    CertManager,
    /// OpenShift, configured by annotations.
    OpenShift,
    /// The operator itself.
    Operator,
}

impl Certificates {
    fn of(platform: Platform, image: Image<'_>) -> Self {
        if platform.openshift4 {
            Self::OpenShift
        } else if image.is_native() {
            Self::Operator
        } else {
            Self::CertManager
        }
    }

    /// The Secret with the certificate.
    fn secret(self) -> &'static str {
        match self {
            Self::OpenShift => SERVICE,
            Self::CertManager | Self::Operator => SERVING_SECRET,
        }
    }

    /// Mount path of the Secret, and its value in the controller's flag. The flag is empty for the default path.
    fn directories(self) -> [&'static str; 2] {
        match self {
            Self::OpenShift => ["/etc/ipam-controller/certificates"; 2],
            Self::CertManager | Self::Operator => ["/tmp/k8s-webhook-server/serving-certs", ""],
        }
    }
}

/// The certificate that the operator issues. Its Secrets are not rendered: their content depends on the observed state.
#[derive(Debug)]
pub(crate) struct IssuedCertificates {
    /// Secret of the certificate authority, without its data.
    pub(crate) authority: Manifest,
    /// Secret of the certificate, without its data.
    pub(crate) serving: Manifest,
    /// The webhook configuration that trusts the certificate authority.
    pub(crate) configuration: ObjectId,
    /// DNS names of the certificate.
    pub(crate) identity: Identity,
}

impl IssuedCertificates {
    /// The certificate, if the component is deployed and the operator is the issuer.
    pub(crate) fn of(context: &Context<'_>) -> Result<Option<Self>, Error> {
        if context.spec.kubevirt_ipam_controller.is_none()
            || issued_secrets(context.images, context.cluster.platform).is_empty()
        {
            return Ok(None);
        }
        let secrets = context.objects(
            "kubevirt_ipam_controller/certificates.yaml",
            include_str!("kubevirt_ipam_controller/certificates.yaml"),
        )?;
        let mut secrets = secrets.into_iter();
        let (Some(authority), Some(serving)) = (secrets.next(), secrets.next()) else {
            return Ok(None);
        };
        Ok(Some(Self {
            authority,
            serving,
            configuration: object::MUTATING_WEBHOOK_CONFIGURATION.object(None, WEBHOOK),
            identity: Identity {
                authority: WEBHOOK.to_owned(),
                service: SERVICE.to_owned(),
                namespace: context.namespace.to_owned(),
            },
        }))
    }

    /// Both Secrets.
    pub(crate) fn objects(&self) -> [ObjectId; 2] {
        [&self.authority, &self.serving].map(|secret| ObjectId::of(secret.value()))
    }
}

/// Names of the Secrets that the operator writes once the component is requested; none if the operator is not the
/// issuer.
pub(crate) fn issued_secrets(images: &Images, platform: Platform) -> &'static [&'static str] {
    let variable = names::env::KUBEVIRT_IPAM_CONTROLLER_IMAGE;
    match images.of(variable).map(|image| Certificates::of(platform, image)) {
        Ok(Certificates::Operator) => &[AUTHORITY_SECRET, SERVING_SECRET],
        _ => &[],
    }
}

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let image = context.images.of(names::env::KUBEVIRT_IPAM_CONTROLLER_IMAGE)?;
    let certificates = Certificates::of(context.cluster.platform, image);
    let mut objects = Vec::new();
    if !context.cluster.platform.openshift4 {
        // OpenShift deploys its own definition.
        objects.push(Manifest::definition(api::ipam_claim::crd())?);
    }
    let mut controller = context.objects(
        "kubevirt_ipam_controller/controller.yaml",
        include_str!("kubevirt_ipam_controller/controller.yaml"),
    )?;
    for object in &mut controller {
        if object.has_pods() {
            complete(object, context, image, certificates)?;
        } else if object.kind() == "Service" && matches!(certificates, Certificates::OpenShift) {
            object.annotate("service.beta.openshift.io/serving-cert-secret-name", SERVICE)?;
        }
    }
    if image.is_native() {
        replace_roles(
            &mut controller,
            context.objects(
                "kubevirt_ipam_controller/native-role.yaml",
                include_str!("kubevirt_ipam_controller/native-role.yaml"),
            )?,
        );
    }
    objects.extend(controller);
    if image.is_native() {
        objects.extend(context.objects(
            "kubevirt_ipam_controller/disruption.yaml",
            include_str!("kubevirt_ipam_controller/disruption.yaml"),
        )?);
    }
    if matches!(certificates, Certificates::CertManager) {
        objects.extend(cert_manager(context)?);
    }
    objects.extend(webhook(context, image, certificates)?);
    Ok(objects)
}

pub(super) fn issued(context: &Context<'_>) -> Result<Vec<ObjectId>, Error> {
    let issued = IssuedCertificates::of(context)?;
    Ok(issued.iter().flat_map(IssuedCertificates::objects).collect())
}

pub(super) fn leftovers(cluster: &Cluster) -> &'static [Leftover] {
    if cluster.platform.openshift4 {
        let [openshift @ .., _, _] = &OLD;
        openshift
    } else {
        &OLD
    }
}

const fn old(kind: object::Kind, place: Place, name: &'static str) -> Leftover {
    Leftover { kind, place, name }
}

/// The objects of release 0.94.0 (operator §9.3); the last two are cert-manager's. The webhook configuration is deleted
/// first: without its server it would block all users.
const OLD: [Leftover; 10] = [
    old(
        object::MUTATING_WEBHOOK_CONFIGURATION,
        Place::Cluster,
        "kubevirt-ipam-claims-mutating-webhook-configuration",
    ),
    old(
        object::DEPLOYMENT,
        Place::Operands,
        "kubevirt-ipam-claims-controller-manager",
    ),
    old(
        object::SERVICE_ACCOUNT,
        Place::Operands,
        "kubevirt-ipam-claims-controller-manager",
    ),
    old(
        object::ROLE,
        Place::Operands,
        "kubevirt-ipam-claims-leader-election-role",
    ),
    old(
        object::CLUSTER_ROLE,
        Place::Cluster,
        "kubevirt-ipam-claims-manager-role",
    ),
    old(
        object::ROLE_BINDING,
        Place::Operands,
        "kubevirt-ipam-claims-leader-election-rolebinding",
    ),
    old(
        object::CLUSTER_ROLE_BINDING,
        Place::Cluster,
        "kubevirt-ipam-claims-manager-rolebinding",
    ),
    old(
        object::SERVICE,
        Place::Operands,
        "kubevirt-ipam-claims-webhook-service",
    ),
    old(
        object::CERTIFICATE,
        Place::Operands,
        "kubevirt-ipam-claims-serving-cert",
    ),
    old(
        object::ISSUER,
        Place::Operands,
        "kubevirt-ipam-claims-selfsigned-issuer",
    ),
];

fn complete(
    workload: &mut Manifest,
    context: &Context<'_>,
    image: Image<'_>,
    certificates: Certificates,
) -> Result<(), Error> {
    let platform = context.cluster.platform;
    let [mounted, argument] = certificates.directories();
    let mut pods = workload.pods()?;
    pods.place(&context.infra())?;
    pods.secret("cert", certificates.secret())?;
    if platform.openshift4 {
        pods.annotate(names::REQUIRED_SCC, "restricted-v2")?;
    }
    if image.is_native() {
        pods.spread(&json!({ "app": "ipam-virt-workloads", "control-plane": "manager" }))?;
        if !platform.scc {
            pods.run_as_user(USER)?;
        }
    }
    let mut manager = pods.container("manager")?;
    manager
        .run(image, context.pull_policy())
        .set("args", json!(arguments(context, argument)))
        .mount_at("cert", mounted)?;
    if image.is_native() {
        manager
            .command(&["/weft", "kubevirt-ipam"])
            .eager_readiness()
            .read_only_root()?;
    }
    Ok(())
}

/// Arguments of the controller, without unset values.
fn arguments(context: &Context<'_>, certificates: &str) -> Vec<String> {
    let settings = context.spec.kubevirt_ipam_controller.as_ref();
    let network = settings
        .map(|settings| &settings.default_network_nad_namespace)
        .filter(|namespace| !namespace.is_empty())
        .map(|namespace| format!("--default-network-nad-namespace={namespace}"));
    let first = [
        "--leader-elect".to_owned(),
        format!("--certificates-dir={certificates}"),
    ];
    let tls = context.tls_arguments();
    first.into_iter().chain(network).chain(tls).collect()
}

fn cert_manager(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = context.objects(
        "kubevirt_ipam_controller/cert-manager.yaml",
        include_str!("kubevirt_ipam_controller/cert-manager.yaml"),
    )?;
    for object in &mut objects {
        if object.name() == CERTIFICATE {
            let namespace = context.namespace;
            let names = ["svc", "svc.cluster.local"].map(|domain| format!("{SERVICE}.{namespace}.{domain}"));
            object.replace("/spec/dnsNames", json!(names))?;
        }
    }
    Ok(objects)
}

fn webhook(
    context: &Context<'_>,
    image: Image<'_>,
    certificates: Certificates,
) -> Result<Vec<Manifest>, Error> {
    let mut objects = context.objects(
        "kubevirt_ipam_controller/webhook.yaml",
        include_str!("kubevirt_ipam_controller/webhook.yaml"),
    )?;
    for object in &mut objects {
        if object.kind() != object::MUTATING_WEBHOOK_CONFIGURATION.kind {
            continue;
        }
        if image.is_native() {
            limit(object)?;
        }
        match certificates {
            Certificates::CertManager => {
                let certificate = format!("{}/{CERTIFICATE}", context.namespace);
                object.annotate("cert-manager.io/inject-ca-from", &certificate)?;
            }
            Certificates::OpenShift => {
                object.annotate("service.beta.openshift.io/inject-cabundle", "true")?;
            }
            Certificates::Operator => {}
        }
    }
    Ok(objects)
}

/// Limits the webhook to launcher pods, and to updates that change annotations (kubevirt-ipam §11): other requests must
/// not wait for the controller. No expression may fail, because the API server would refuse the pod.
fn limit(configuration: &mut Manifest) -> Result<(), Error> {
    const CONDITIONS: [(&str, &str); 2] = [
        (
            "runs-a-virtual-machine",
            "has(object.metadata.annotations) && 'kubevirt.io/domain' in object.metadata.annotations",
        ),
        (
            "changes-annotations",
            "request.operation != 'UPDATE' || !has(object.metadata.annotations) || \
             !has(oldObject.metadata.annotations) || object.metadata.annotations != oldObject.metadata.annotations",
        ),
    ];
    const WEBHOOK: &str = "/webhooks/0";
    let mut webhook = configuration
        .value()
        .pointer(WEBHOOK)
        .cloned()
        .unwrap_or_default();
    let condition = |(name, expression): (&str, &str)| json!({ "name": name, "expression": expression });
    webhook["matchConditions"] = json!(CONDITIONS.map(condition));
    configuration.replace(WEBHOOK, webhook)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_issues_certificates_without_another_issuer() {
        let variable = "KUBEVIRT_IPAM_CONTROLLER_IMAGE";
        let own = || Images::read(|_| None).with_own(Some("weft:1".into()));
        let upstream = Images::read(|name| (name == variable).then(|| "ipam:1".to_owned()));
        let openshift = Platform {
            openshift4: true,
            ..Platform::default()
        };
        let both = ["kubevirt-ipam-controller-webhook-ca", "webhook-server-cert"];
        for (images, platform, expected) in [
            (own(), Platform::default(), &both[..]),
            (own(), openshift, &[]),
            (upstream, Platform::default(), &[]),
        ] {
            assert_eq!(
                issued_secrets(&images, platform),
                expected,
                "{images:?} {platform:?}"
            );
        }
    }
}
