//! The machine that the figures were measured on.

use serde_json::{Map, Value, json};
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the `machine` object of the JSON, without what cannot be found out.
pub(crate) fn describe() -> Map<String, Value> {
    let mut machine = Map::new();
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            machine.insert(key.into(), json!(value));
        }
    };
    put("cpu", cpu());
    put("memory", field("/proc/meminfo", "MemTotal"));
    put("kernel", line("/proc/sys/kernel/osrelease"));
    put(
        "huge_pages",
        line("/sys/kernel/mm/transparent_hugepage/enabled"),
    );
    put("date", output("date", &["-u", "+%F"]));
    put("rustc", output("rustc", &["--version"]));
    put("commit", output("git", &["rev-parse", "--short", "HEAD"]));
    // Not the CPUs that this thread may use: by now it is pinned to one.
    if let Ok(cpus) = fs::read_to_string("/proc/cpuinfo") {
        let count = cpus.lines().filter(|line| line.starts_with("processor"));
        machine.insert("cpus".into(), json!(count.count()));
    }
    if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
        machine.insert("unix_time".into(), json!(now.as_secs()));
    }
    machine
}

/// Names the processor. A virtual one may leave out what tells generations apart, so with its numbers.
fn cpu() -> Option<String> {
    let of = |name| field("/proc/cpuinfo", name);
    let name = of("model name")?;
    Some(match (of("cpu family"), of("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    })
}

/// Finds out whether others use the CPUs during a measurement. Not by the load average, which includes our
/// own threads and a compiler that ran before.
pub(crate) struct Watch {
    begin: Option<Ticks>,
}

/// Hundredths of a second of CPU time since the machine started.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    /// Of this process and the children it has waited for.
    ours: u64,
    /// Of all processes.
    all: u64,
    /// Time in which a virtual CPU was ready and had no real one.
    stolen: u64,
    /// Of one CPU: all time, and waiting.
    passed: u64,
}

impl Watch {
    pub(crate) fn start() -> Self {
        Self {
            begin: Ticks::now(),
        }
    }

    /// Returns a warning if others have used the CPUs since.
    pub(crate) fn warning(&self) -> Option<String> {
        Ticks::now()?.disturbance(self.begin.as_ref()?)
    }
}

impl Ticks {
    fn now() -> Option<Self> {
        let all = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Self::of(&all, &own)
    }

    /// Parses the two files (proc(5)).
    fn of(all: &str, own: &str) -> Option<Self> {
        // One of them, the terminal's, may be -1.
        let number = |word: &str| Some(word.parse::<i64>().ok()?.unsigned_abs());
        let numbers =
            |text: &str| -> Vec<u64> { text.split_whitespace().map_while(number).collect() };
        let cpus = all.lines().filter(|line| line.starts_with("cpu")).count() - 1;
        // user, nice, system, idle, iowait, irq, softirq, steal
        let cpu = numbers(all.strip_prefix("cpu ")?);
        let [user, nice, system, .., steal] = cpu.get(..8)? else {
            return None;
        };
        // Behind the name, which may contain spaces, and the state: utime, stime, cutime and cstime are the
        // eleventh to fourteenth numbers.
        let (_, own) = own.rsplit_once(')')?;
        let own = numbers(own.trim_start().split_once(' ')?.1);
        Some(Self {
            ours: own.get(10..14)?.iter().sum(),
            all: user + nice + system,
            stolen: *steal,
            passed: cpu[..8].iter().sum::<u64>() / u64::try_from(cpus.max(1)).ok()?,
        })
    }

    fn disturbance(&self, begin: &Self) -> Option<String> {
        /// Of one CPU: less than this is a shell, or the kernel's housekeeping.
        const NOTICEABLE: f64 = 0.1;
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let passed = since(self.passed, begin.passed).max(1) as f64;
        let others = since(self.all, begin.all).saturating_sub(since(self.ours, begin.ours));
        let (others, stolen) = (
            others as f64 / passed,
            since(self.stolen, begin.stolen) as f64 / passed,
        );
        (others > NOTICEABLE || stolen > NOTICEABLE).then(|| {
            format!(
                "While this was measured, other programs used {others:.2} CPUs and other virtual machines \
                 {stolen:.2}: compare again on a quiet machine."
            )
        })
    }
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().into())
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().into())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(all: [u64; 8], own: [u64; 4]) -> Ticks {
        let all = all.map(|n| n.to_string()).join(" ");
        let own = own.map(|n| n.to_string()).join(" ");
        let before = format!("{}-1 {}", "1 ".repeat(4), "5 ".repeat(5));
        Ticks::of(
            &format!("cpu  {all} 0 0\ncpu0 1\ncpu1 2\nintr 5\n"),
            &format!("7 (a (b) c) R {before}{own} 20 0\n"),
        )
        .unwrap()
    }

    #[test]
    fn cpu_time_of_other_processes_is_reported() {
        let begin = ticks([500, 0, 100, 1000, 0, 0, 0, 0], [10, 10, 0, 0]);
        // Ten seconds of two CPUs, one of them ours.
        let quiet = ticks([1300, 0, 300, 1900, 0, 0, 100, 0], [610, 210, 150, 50]);
        assert_eq!(quiet.passed - begin.passed, 1000);
        assert_eq!(quiet.disturbance(&begin), None);
        let busy = ticks([1500, 0, 300, 1700, 0, 0, 100, 0], [610, 210, 150, 50]);
        let said = busy.disturbance(&begin).unwrap();
        assert!(said.contains("used 0.20 CPUs"), "{said}");
        let stolen = ticks([1300, 0, 300, 1700, 0, 0, 100, 200], [610, 210, 150, 50]);
        let said = stolen.disturbance(&begin).unwrap();
        assert!(said.contains("machines 0.20"), "{said}");
    }

    #[test]
    fn proc_stat_files_can_be_parsed() {
        let begin = Ticks::now().unwrap();
        assert!(begin.passed > 0 && begin.all >= begin.ours);
    }
}
