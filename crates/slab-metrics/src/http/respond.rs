//! From a request's header to an answer.

use super::negotiate::{accepts_gzip, wants_openmetrics};
use crate::exporter::Exporter;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Method, Response, StatusCode};
use std::io::Write;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROMETHEUS: HeaderValue = HeaderValue::from_static(Exporter::CONTENT_TYPE);
const OPENMETRICS: HeaderValue = HeaderValue::from_static(Exporter::OPENMETRICS_CONTENT_TYPE);
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The live page. It loads no file and no script from elsewhere.
const PAGE: &str = include_str!("../../page/index.html");
/// Makes browsers enforce that.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; connect-src 'self'; img-src data:; script-src 'unsafe-inline'; \
     style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Answers by method, path and what the client accepts. If the method is HEAD, hyper leaves the body
/// out.
pub(super) fn respond(
    exporter: &Exporter,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Response<Full<Bytes>> {
    if !matches!(path, "/" | "/metrics" | "/healthz" | "/stats.json") {
        return text(
            StatusCode::NOT_FOUND,
            "not found; metrics are at /metrics\n",
        );
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let gzip = accepts_gzip(headers);
    match path {
        "/metrics" if wants_openmetrics(headers) => {
            page_response(OPENMETRICS, exporter.scrape_openmetrics().into(), gzip)
        }
        "/metrics" => page_response(PROMETHEUS, exporter.scrape().into(), gzip),
        "/stats.json" => page_response(JSON, exporter.stats_json().into(), gzip),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        _ => {
            let mut page = page_response(HTML, Bytes::from_static(PAGE.as_bytes()), gzip);
            page.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
            page
        }
    }
}

/// Makes an answer, compressed if `gzip`.
fn page_response(kind: HeaderValue, body: Bytes, gzip: bool) -> Response<Full<Bytes>> {
    let body = if gzip { compress(&body) } else { body };
    let mut response = answer(StatusCode::OK, kind, body);
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    if gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn compress(body: &[u8]) -> Bytes {
    // The fastest level: these pages are repetitive and shrink to a tenth or less anyway.
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    // Writing to a vector does not fail.
    let _ = encoder.write_all(body);
    encoder.finish().unwrap_or_default().into()
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    answer(status, TEXT, Bytes::from_static(body.as_bytes()))
}

fn answer(status: StatusCode, kind: HeaderValue, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
    response
}
