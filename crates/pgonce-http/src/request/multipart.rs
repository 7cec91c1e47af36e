//! Multipart forms by their parts: the boundary is another one on every try.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The digests of what stands between the delimiters: each part with its headers, as it came; `None` where the body is no
/// multipart form. Nothing is left out but the boundary: who reads the form may see what no other reader does.
pub(super) fn parts(content_type: &str, body: &[u8]) -> Option<Value> {
    let boundary = multer::parse_boundary(content_type).ok()?;
    // The first one may have no line before it that it would end.
    let first = format!("--{boundary}").into_bytes();
    let delimiter = [b"\r\n", &*first].concat();
    let digest = |piece: &[u8]| Value::from(super::hex(&Sha256::digest(piece)));
    let mut pieces = Vec::new();
    let (mut begin, mut at) = (0, 0);
    while let Some(rest) = body.get(at..) {
        let after = rest.strip_prefix(&*delimiter);
        let after = after.or_else(|| rest.strip_prefix(&*first).filter(|_| at == 0));
        let Some((after, end @ (b"\r\n" | b"--"))) =
            after.and_then(|all| Some((all, all.get(..2)?)))
        else {
            at += 1;
            continue;
        };
        pieces.push(digest(body.get(begin..at)?));
        if end == b"--" {
            pieces.push(digest(after));
            return Some(pieces.into());
        }
        // The end of its line may belong to the next one as well.
        begin = body.len() - after.len();
        at = begin;
    }
    None
}
