//! From a request's head to an answer.

use crate::exporter::Exporter;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Response, StatusCode};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROMETHEUS: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The live page: no file, no script, no request from elsewhere.
const PAGE: &str = include_str!("../../page/index.html");
/// What holds the page to that.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; connect-src 'self'; img-src data:; script-src 'unsafe-inline'; \
     style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Answers by method and path alone; hyper leaves the body out where the method is HEAD.
pub(super) fn respond(exporter: &Exporter, method: &Method, path: &str) -> Response<Full<Bytes>> {
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
    match path {
        "/metrics" => answer(StatusCode::OK, PROMETHEUS, exporter.scrape().into()),
        "/stats.json" => answer(StatusCode::OK, JSON, exporter.stats_json().into()),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        _ => {
            let mut page = answer(StatusCode::OK, HTML, Bytes::from_static(PAGE.as_bytes()));
            page.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
            page
        }
    }
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
