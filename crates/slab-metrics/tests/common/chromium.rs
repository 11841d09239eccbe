//! A headless Chromium, driven by the DevTools protocol over its pipe: JSON messages, each ended by a zero
//! byte.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long the browser may take for an answer before the test gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Chromium {
    process: Child,
    input: ChildStdin,
    output: Receiver<Value>,
    directory: PathBuf,
    session: Value,
    last_id: u64,
    events: Vec<Value>,
}

impl Chromium {
    /// Starts a browser with one empty page; of one process, each has another name.
    pub(crate) fn start(name: &str) -> Self {
        let directory = format!("slab-page-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        // Chromium reads from descriptor 3 and writes to 4. No sandbox: CI is root in a container, and the
        // page is ours.
        let command = "exec chromium --headless=new --no-sandbox --disable-gpu --no-first-run \
                       --disable-dev-shm-usage --remote-debugging-pipe \
                       --user-data-dir=\"$0/profile\" about:blank \
                       3<&0 4>&1 </dev/null >/dev/null 2>\"$0/log\"";
        let mut process = Command::new("sh")
            .args(["-c", command])
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let mut from = BufReader::new(process.stdout.take().unwrap());
        let (to, output) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while from.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                let text = message.strip_suffix(&[0]).unwrap_or(&message);
                if to.send(serde_json::from_slice(text).unwrap()).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut this = Self {
            process,
            input,
            output,
            directory,
            session: Value::Null,
            last_id: 0,
            events: Vec::new(),
        };
        let target = this.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        this.session = this.call("Target.attachToTarget", attach)["sessionId"].take();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            this.call(&format!("{domain}.enable"), json!({}));
        }
        this
    }

    /// Makes one call and returns its result; events that arrive meanwhile are kept.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.input
            .write_all(message.to_string().as_bytes())
            .unwrap();
        self.input.write_all(&[0]).unwrap();
        loop {
            let mut answer = self.next();
            if answer["id"].is_null() {
                self.events.push(answer);
            } else if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    fn next(&mut self) -> Value {
        self.output.recv_timeout(TIMEOUT).unwrap_or_else(|_| {
            let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            panic!("no answer from chromium (Debian's package; see ci/page):\n{log}");
        })
    }

    /// Navigates to a page and waits until it has loaded.
    pub(crate) fn open(&mut self, address: &str) {
        let before = self.events.len();
        self.call("Page.navigate", json!({"url": address}));
        // The previous page's load may still be reported, so wait for this page's.
        let is_loaded = |events: &[Value]| {
            let is_there = |event: &Value| event["params"]["frame"]["url"] == address;
            let mut since = events.iter().skip_while(|event| !is_there(event));
            since.any(|event| event["method"] == "Page.loadEventFired")
        };
        while !is_loaded(&self.events[before..]) {
            let event = self.next();
            self.events.push(event);
        }
    }

    /// Sets the size of the window and the preferred scheme, `light` or `dark`.
    pub(crate) fn view(&mut self, width: u32, height: u32, colours: &str) {
        let narrow = width < 600;
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": narrow}),
        );
        let scheme = json!({"name": "prefers-color-scheme", "value": colours});
        self.call("Emulation.setEmulatedMedia", json!({"features": [scheme]}));
    }

    /// Evaluates an expression; awaits it if it is a promise.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{answer:#}");
        answer["result"]["value"].take()
    }

    pub(crate) fn press(&mut self, key: &str, code: u32) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key});
            event["windowsVirtualKeyCode"] = code.into();
            if kind == "keyDown" {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Returns the whole page as a PNG.
    pub(crate) fn screenshot(&mut self) -> Vec<u8> {
        let parameters = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", parameters);
        from_base64(answer["data"].as_str().unwrap())
    }

    fn events_of(&self, method: &str) -> impl Iterator<Item = &Value> {
        let of_method = self.events.iter().filter(move |e| e["method"] == method);
        of_method.map(|event| &event["params"])
    }

    /// Returns the exceptions, warnings and errors so far, from the page and about it.
    pub(crate) fn console_errors(&self) -> Vec<&Value> {
        let is_bad = |level: &Value| level == "error" || level == "warning";
        let exceptions = self.events_of("Runtime.exceptionThrown");
        let console = self.events_of("Runtime.consoleAPICalled");
        let log = self.events_of("Log.entryAdded");
        exceptions
            .chain(console.filter(move |c| is_bad(&c["type"])))
            .chain(log.filter(move |entry| is_bad(&entry["entry"]["level"])))
            .chain(self.events_of("Network.loadingFailed"))
            .collect()
    }

    /// Returns the addresses requested so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = self.events_of("Network.requestWillBeSent");
        sent.map(|r| r["request"]["url"].as_str().unwrap().to_owned())
            .collect()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let close = json!({"id": 0, "method": "Browser.close"});
        let _ = self.input.write_all(close.to_string().as_bytes());
        let _ = self.input.write_all(&[0]);
        // Chromium ends its helper processes itself; kill it if it does not exit in time.
        for _ in 0..50 {
            if !matches!(self.process.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut value) = (0, 0u32);
    for digit in text.bytes().filter(|&digit| digit != b'=') {
        let digit = DIGITS.iter().position(|&d| d == digit).unwrap();
        value = value << 6 | digit as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((value >> bits) as u8);
        }
    }
    bytes
}
