//! What a client accepts: `Accept` and `Accept-Encoding`.

use hyper::HeaderMap;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, AsHeaderName};

/// Returns whether the client accepts OpenMetrics 1.0 and prefers it to Prometheus' text format, or likes
/// both equally.
pub(super) fn wants_openmetrics(headers: &HeaderMap) -> bool {
    let openmetrics = quality(headers, ACCEPT, |media, version| {
        media.eq_ignore_ascii_case("application/openmetrics-text")
            && version.is_none_or(|v| v.trim_matches('"') == "1.0.0")
    });
    // Of the ranges that cover the text format, the most specific one counts.
    let text = ["text/plain", "text/*", "*/*"].iter().find_map(|range| {
        quality(headers, ACCEPT, |media, _| {
            media.eq_ignore_ascii_case(range)
        })
    });
    openmetrics > Some(0) && openmetrics >= text
}

pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let gzip = quality(headers, ACCEPT_ENCODING, |coding, _| {
        coding.eq_ignore_ascii_case("gzip") || coding.eq_ignore_ascii_case("x-gzip")
    });
    gzip > Some(0)
}

/// Returns the highest quality, in thousandths, of the entries whose name and version `is_match` accepts; none
/// if there is no such entry or its quality cannot be parsed.
fn quality(
    headers: &HeaderMap,
    header: impl AsHeaderName,
    is_match: impl Fn(&str, Option<&str>) -> bool,
) -> Option<u32> {
    let lists = headers.get_all(header).into_iter();
    lists
        .filter_map(|list| list.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|entry| {
            let mut parts = entry.split(';').map(str::trim);
            let name = parts.next()?;
            let version = parts.clone().find_map(|p| p.strip_prefix("version="));
            if !is_match(name, version) {
                return None;
            }
            match parts.find_map(|p| p.strip_prefix("q=").or(p.strip_prefix("Q="))) {
                Some(q) => {
                    let q: f32 = q.parse().ok().filter(|q| (0.0..=1.0).contains(q))?;
                    Some((q * 1000.0).round() as u32)
                }
                None => Some(1000),
            }
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: hyper::header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn openmetrics_is_sent_only_to_clients_that_prefer_it() {
        let asks = |accept| wants_openmetrics(&headers(ACCEPT, accept));
        // Prometheus 2.42 and 3.0.
        assert!(asks(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
             version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        ));
        assert!(asks(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,\
             text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
        ));
        assert!(asks("Application/OpenMetrics-Text"));
        assert!(asks("text/plain;q=0.5,application/openmetrics-text;q=0.5"));
        assert!(asks("application/openmetrics-text;q=0.005"));
        assert!(asks("*/*,application/openmetrics-text"));
        assert!(asks(
            "text/*;q=0.9,text/plain;q=0.1,application/openmetrics-text;q=0.5"
        ));
        assert!(asks(
            "application/openmetrics-text; version=\"1.0.0\"; charset=utf-8"
        ));
        for other in [
            "",
            "*/*",
            "text/plain",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.1,text/plain;q=0.2",
            "application/openmetrics-text;q=0.5,TEXT/*;q=0.9",
            "application/openmetrics-text;q=0.5,*/*;q=0.9",
            "application/openmetrics-text;q=0.5,*/*",
            "text/*;q=0.9,application/openmetrics-text;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;q=0.5,text/plain;q=0.1,text/plain;q=0.9",
            "application/openmetrics-text;Q=0.1,text/plain;q=0.2",
            "application/openmetrics-text;q=0.501,text/plain;q=0.502",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=much",
            ",;,;q=1,q=1",
        ] {
            assert!(!asks(other), "{other}");
        }
        assert!(!wants_openmetrics(&HeaderMap::new()));
    }

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        let takes = |accept| accepts_gzip(&headers(ACCEPT_ENCODING, accept));
        assert!(takes("gzip") && takes("deflate, GZIP;q=0.5, br"));
        assert!(takes("X-Gzip") && takes("gzip;q=0, x-gzip;q=0.005"));
        for other in [
            "",
            "identity",
            "br",
            "gzip;q=0",
            "gzip;q=0.000",
            "*;q=0",
            "gzip;q=2",
        ] {
            assert!(!takes(other), "{other}");
        }
    }

    #[test]
    fn a_header_may_come_in_several_lines_and_need_not_be_text() {
        let lines = ["br", "deflate", "gzip"].map(|line| (ACCEPT_ENCODING, line.parse().unwrap()));
        assert!(accepts_gzip(&HeaderMap::from_iter(lines)));
        let odd = hyper::header::HeaderValue::from_bytes(b"gzip, \xff").unwrap();
        assert!(!accepts_gzip(&HeaderMap::from_iter([(
            ACCEPT_ENCODING,
            odd
        )])));
    }
}
