//! Image of each container. The image decides the flavour of the container (operator §2, operands §13).

use std::collections::BTreeMap;

use crate::names;

/// The image of a container.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Image<'a> {
    /// An image from an environment variable: the container gets upstream's command line.
    Upstream(&'a str),
    /// The operator's own image: the container gets Weft's command line.
    Native(&'a str),
}

impl<'a> Image<'a> {
    /// Reference of the image.
    pub fn reference(self) -> &'a str {
        match self {
            Self::Upstream(reference) | Self::Native(reference) => reference,
        }
    }

    /// Whether it is the operator's own image.
    pub fn is_native(self) -> bool {
        matches!(self, Self::Native(_))
    }
}

/// Neither a variable nor the operator's own image is known.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "environment variable {variable} is not set, and the operator's own image, to be used instead, is unknown: set \
     it, or {} or {}",
    names::env::POD_NAME,
    names::env::OPERATOR_IMAGE
)]
pub struct UnknownImage {
    variable: &'static str,
}

/// Images of all containers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Images {
    own: Option<String>,
    upstream: BTreeMap<&'static str, String>,
}

impl Images {
    /// Reads the image variables through `lookup`; an empty variable counts as unset.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &'static str| {
            lookup(name)
                .filter(|image| !image.is_empty())
                .map(|image| (name, image))
        };
        Self {
            own: None,
            upstream: names::env::IMAGES.into_iter().filter_map(set).collect(),
        }
    }

    /// Sets the operator's own image.
    #[must_use]
    pub fn with_own(self, own: Option<String>) -> Self {
        Self {
            own: own.filter(|image| !image.is_empty()),
            ..self
        }
    }

    /// The image of the containers that `variable` configures.
    pub fn of(&self, variable: &'static str) -> Result<Image<'_>, UnknownImage> {
        let upstream = self.upstream.get(variable).map(|image| Image::Upstream(image));
        let own = || self.own.as_deref().map(Image::Native);
        upstream.or_else(own).ok_or(UnknownImage { variable })
    }

    /// The operator's own image, if it is known.
    pub fn own(&self) -> Option<&str> {
        self.own.as_deref()
    }

    /// Checks that every container has an image.
    pub(crate) fn complete(&self) -> Result<(), UnknownImage> {
        names::env::IMAGES
            .into_iter()
            .try_for_each(|variable| self.of(variable).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_of_empty_variable_is_native() {
        let lookup = |name: &str| match name {
            "MULTUS_IMAGE" => Some("multus:1".to_owned()),
            "LINUX_BRIDGE_IMAGE" => Some(String::new()),
            _ => None,
        };
        let images = Images::read(lookup).with_own(Some("weft:1".into()));
        assert_eq!(images.of("MULTUS_IMAGE"), Ok(Image::Upstream("multus:1")));
        assert_eq!(images.of("LINUX_BRIDGE_IMAGE"), Ok(Image::Native("weft:1")));
        assert_eq!(images.of("OVS_CNI_IMAGE"), Ok(Image::Native("weft:1")));
        assert_eq!(images.complete(), Ok(()));
    }

    #[test]
    fn unknown_image_names_its_variable() {
        let images = Images::read(|_| None).with_own(Some(String::new()));
        let error = images.complete().expect_err("no image").to_string();
        assert!(
            error.contains("MULTUS_IMAGE") && error.contains("OPERATOR_IMAGE"),
            "{error}"
        );
        let all = Images::read(|name| Some(format!("{name}:1")));
        assert_eq!(all.complete(), Ok(()));
    }
}
