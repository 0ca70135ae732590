//! `weft kubevirt-ipam`: addresses that virtual machines keep (`docs/behaviour/kubevirt-ipam.md`).

pub mod claim_name;
pub mod ip_request;
pub mod messages;
pub mod mutate;
pub mod names;
pub mod network;
pub mod objects;
pub mod plan;
pub mod selection;
