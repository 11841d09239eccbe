//! What the figures were measured on.

use serde_json::{Map, Value, json};
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The `machine` object of the JSON. What cannot be found out is left out.
pub(crate) fn describe() -> Map<String, Value> {
    let mut machine = Map::new();
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            machine.insert(key.into(), json!(value));
        }
    };
    put("cpu", field("/proc/cpuinfo", "model name"));
    put("memory", field("/proc/meminfo", "MemTotal"));
    put("kernel", line("/proc/sys/kernel/osrelease"));
    put(
        "huge_pages",
        line("/sys/kernel/mm/transparent_hugepage/enabled"),
    );
    put("date", output("date", &["-u", "+%F"]));
    put("rustc", output("rustc", &["--version"]));
    put("commit", output("git", &["rev-parse", "--short", "HEAD"]));
    // Not what this thread may use: it is pinned to one by now.
    if let Ok(cpus) = fs::read_to_string("/proc/cpuinfo") {
        let count = cpus.lines().filter(|line| line.starts_with("processor"));
        machine.insert("cpus".into(), json!(count.count()));
    }
    if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
        machine.insert("unix_time".into(), json!(now.as_secs()));
    }
    machine
}

/// Something to say if other programs use the CPUs: cross-thread figures are worth little then.
pub(crate) fn busy_warning() -> Option<String> {
    let load = line("/proc/loadavg")?;
    let recent: f64 = load.split(' ').next()?.parse().ok()?;
    (recent > 0.5).then(|| {
        format!("The load average was {recent} before this run: compare again on a quiet machine.")
    })
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().into())
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().into())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().into())
}
