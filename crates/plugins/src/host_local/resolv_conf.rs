//! DNS settings from a `resolv.conf` file.

use std::{
    io::{self, Read as _},
    path::Path,
};

use cni::result::Dns;
use linux::files::{Links, open_regular};

/// Maximum number of bytes read: the config may name any file of the node.
const LIMIT: u64 = 1 << 20;

/// Reads the settings of a file.
pub(super) fn read(path: &Path) -> io::Result<Dns> {
    let mut text = Vec::new();
    open_regular(path, Links::Follow)?
        .take(LIMIT)
        .read_to_end(&mut text)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// Parses the file. Ignores unknown and empty lines.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut fields = line.split_whitespace().map(str::to_owned);
        let (Some(key), Some(first)) = (fields.next(), fields.next()) else {
            continue;
        };
        match key.as_str() {
            "nameserver" => dns.nameservers.push(first),
            "domain" => dns.domain = first,
            "search" => dns.search.extend([first].into_iter().chain(fields)),
            "options" => dns.options.extend([first].into_iter().chain(fields)),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_lines_are_parsed() {
        let text = "# nameserver 9.9.9.9\n; comment\n\nnameserver 10.0.0.1 trailing\n  nameserver\tfd00::1\r\n\
            domain example\nsearch a.example b.example\nsearch c\noptions ndots:5 rotate\nnameserver\nsortlist x\n";
        assert_eq!(
            parse(text),
            Dns {
                nameservers: vec!["10.0.0.1".into(), "fd00::1".into()],
                domain: "example".into(),
                search: vec!["a.example".into(), "b.example".into(), "c".into()],
                options: vec!["ndots:5".into(), "rotate".into()],
            }
        );
        assert!(read(Path::new("/nowhere/at/all")).is_err());
    }
}
