//! Everything that can be seen of a namespace and of folders.

use std::{fs, path::Path};

use linux::{address::Family, route::Socket};

/// Links, addresses and routes, one line each.
pub(super) fn network(socket: &mut Socket) -> Vec<String> {
    let mut lines = Vec::new();
    for link in socket.links().unwrap() {
        lines.push(format!(
            "link {} {} {:?} of {:?}, up {}, promiscuity {}",
            link.index,
            link.name,
            link.kind,
            link.master,
            link.is_up(),
            link.promiscuity
        ));
        for address in socket.addresses(&link, None).unwrap() {
            // The kernel adds and removes automatic addresses with the link's state.
            if address.global {
                lines.push(format!("  address {}", address.net));
            }
        }
    }
    for family in [Family::V4, Family::V6] {
        for route in socket.routes(family).unwrap() {
            // Like addresses, and with a delay.
            if route.dst.to_string().starts_with("fe80:") {
                continue;
            }
            lines.push(format!(
                "route {} via {:?} dev {:?}",
                route.dst, route.gateway, route.link
            ));
        }
    }
    lines
}

/// The files below a folder with their content, sorted; the position of the next allocation is not part of any state.
pub(super) fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !name.starts_with("last_reserved_ip") {
            let content = fs::read_to_string(&path).unwrap_or_default();
            found.push(format!("{}: {content:?}", path.display()));
        }
    }
    found.sort();
    found
}

pub(super) fn addresses(socket: &mut Socket, name: &str) -> Vec<String> {
    let link = socket.link_by_name(name).unwrap();
    let mut found: Vec<_> = socket
        .addresses(&link, None)
        .unwrap()
        .into_iter()
        .filter(|address| address.global)
        .map(|address| address.net.to_string())
        .collect();
    found.sort();
    found
}
