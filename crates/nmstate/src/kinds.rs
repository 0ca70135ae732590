//! Kinds of objects of which a part of the program reads little: types of its own stand for them.

/// Makes a type known to the client library as the kind of the same name in [`api::node_state`]. Its metadata is in the
/// member `metadata`.
macro_rules! kind {
    ($kind:ident) => {
        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = kube::core::ClusterResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <api::node_state::$kind as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <api::node_state::$kind as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <api::node_state::$kind as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <api::node_state::$kind as kube::Resource>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use kind;
