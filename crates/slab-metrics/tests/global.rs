//! The program's own metrics on the same page, once it asks for that. A single test, since a process
//! can set its global recorder only once.

mod common;

use common::Page;
use slab_core::SlabPool;
use slab_metrics::{Collector, Exporter, SourceKind};

#[test]
fn a_global_recorder_is_installed_only_on_demand() {
    let pool = SlabPool::builder().name("rx").build().unwrap();
    let collector = Collector::new();
    collector.register_pool(&pool).unwrap();
    let exporter = Exporter::new(collector);
    let rx = [("pool", "rx")];
    metrics::counter!("app_total").increment(7);
    let page = Page::parse(&exporter.scrape());
    assert!(!page.families.contains_key("app_total"));
    assert!(format!("{exporter:?}").contains("global_recorder: false"));

    exporter.install_global_recorder().unwrap();
    metrics::counter!("app_total", "kind" => "x").increment(1);
    let page = Page::parse(&exporter.scrape());
    assert_eq!(page.value("app_total", &[("kind", "x")]), 1.0);
    assert_eq!(page.value("slab_pool_too_large_total", &rx), 0.0);
    assert!(format!("{exporter:?}").contains("global_recorder: true"));
    // In the format of the page, and before its end.
    let text = exporter.scrape_openmetrics();
    let counter = "# TYPE app counter\napp_total{kind=\"x\"} 1\n";
    assert!(text.contains(counter), "{text}");
    assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1);
    metrics::histogram!("app_seconds").record(0.5);
    assert!(exporter.scrape().contains("app_seconds_count 1\n"));
    metrics::histogram!("app_seconds").record(0.5);
    // Moves samples (`tests/allocation.rs` shows that it frees them), and loses none.
    exporter.upkeep();
    assert!(exporter.scrape().contains("app_seconds_count 2\n"));

    // What the program counted survives when our own page is laid out anew.
    exporter.collector().unregister(SourceKind::Pool, "rx");
    let text = exporter.scrape();
    assert!(text.contains("app_total{kind=\"x\"} 1\n"), "{text}");
    assert!(!text.contains("slab_pool_"));

    assert!(exporter.install_global_recorder().is_err());
    let other = Exporter::new(Collector::new());
    assert!(other.install_global_recorder().is_err());
    other.upkeep();
    assert!(!other.scrape().contains("app_total"));
}
