//! Release of a leader's Lease.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;

/// Releases the Lease if this candidate holds it, so that another one need not wait for the expiry. Reads it first: the
/// answer to the last renewal may be missing. Returns whether the candidate held it. The caller sets a deadline, and must
/// not write as the leader afterwards.
///
/// # Errors
/// If the API server does not answer, or refuses.
pub async fn release(leases: &Api<Lease>, name: &str, holder: &str) -> Result<bool, kube::Error> {
    loop {
        let Some(mut lease) = leases.get_opt(name).await? else {
            return Ok(false);
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(holder) {
            return Ok(false);
        }
        // As upstream's client library does.
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        match leases.replace(name, &PostParams::default(), &lease).await {
            // The last renewal came in between.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            written => return written.map(|_| true),
        }
    }
}
