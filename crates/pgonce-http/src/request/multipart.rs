//! Multipart forms by their parts: the boundary is another one on every try.

use bytes::Bytes;
use multer::Multipart;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The parts in their order, each with its name, file name, type and content; `None` where the
/// body is no multipart form.
pub(super) async fn parts(content_type: &str, body: &Bytes) -> Option<Value> {
    let boundary = multer::parse_boundary(content_type).ok()?;
    let body = body.clone();
    let stream = futures_util::stream::once(async move { Ok::<_, std::convert::Infallible>(body) });
    let mut form = Multipart::new(stream, boundary);
    let mut parts = Vec::new();
    while let Some(part) = form.next_field().await.ok()? {
        let name = part.name().map(str::to_owned);
        let file = part.file_name().map(str::to_owned);
        let kind = part.content_type().map(ToString::to_string);
        let content = super::hex(&Sha256::digest(part.bytes().await.ok()?));
        parts.push(json!({ "name": name, "file": file, "type": kind, "sha256": content }));
    }
    Some(parts.into())
}
