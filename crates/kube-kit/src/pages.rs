//! Lists in pages: neither the API server nor this process holds all objects of a large cluster at once.

use std::fmt::Debug;

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;

/// Objects in a page, unless the parameters have a limit.
const PAGE: u32 = 500;

/// The pages of a list.
pub struct Pages<K> {
    api: Api<K>,
    /// `None` after the last page.
    next: Option<ListParams>,
}

impl<K: Clone + Debug + DeserializeOwned> Pages<K> {
    /// Prepares a list. The first request is sent by [`next`](Self::next).
    pub fn new(api: Api<K>, mut parameters: ListParams) -> Self {
        parameters.limit.get_or_insert(PAGE);
        Self {
            api,
            next: Some(parameters),
        }
    }

    /// Requests the next page; `None` after the last one.
    ///
    /// # Errors
    /// If the API server does not answer, or refuses. Another call repeats the request.
    pub async fn next(&mut self) -> Result<Option<Vec<K>>, kube::Error> {
        let Some(parameters) = &self.next else {
            return Ok(None);
        };
        let page = self.api.list(parameters).await?;
        let token = page.metadata.continue_.filter(|token| !token.is_empty());
        self.next = token.map(|token| parameters.clone().continue_token(&token));
        Ok(Some(page.items))
    }

    /// Requests all pages.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn all(mut self) -> Result<Vec<K>, kube::Error> {
        let mut all = Vec::new();
        while let Some(page) = self.next().await? {
            all.extend(page);
        }
        Ok(all)
    }
}
