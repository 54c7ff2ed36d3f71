"""The page of `coupler report` in a headless Chromium: its plots are drawn, nothing is written to the
console (it has no scripts), and it fetches nothing. Skipped if Chromium is not installed.

    in_a_browser.py COUPLER_PROGRAM [SCREENSHOT.png]
"""
import html.parser
import http.server
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT = 90  # s, for one page
# Hosts of the browser itself, which looks for updates despite all options.
OWN_HOSTS = ("google.com", "googleapis.com", "gvt1.com")

# Appended to a copy of the page: measures how the page is drawn.
MEASURE = """<script>
const lines = [...document.querySelectorAll('polyline')].map(line => {
  const style = getComputedStyle(line), box = line.getBoundingClientRect();
  return {points: line.points.length, length: line.getTotalLength(), width: box.width,
          height: box.height, stroke: style.stroke, shown: style.visibility};
});
const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
const fetched = performance.getEntriesByType('resource').map(entry => entry.name);
document.body.dataset.measured = JSON.stringify({lines, wide, fetched});
</script>"""


class Recorder(http.server.BaseHTTPRequestHandler):
    """A proxy that gets every network request of a page and answers none."""
    asked = []

    def refuse(self):
        host = urllib.parse.urlsplit(self.path if "//" in self.path else "//" + self.path).hostname
        if not host.endswith(OWN_HOSTS):
            Recorder.asked.append(self.path)
        try:
            self.send_error(502)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the browser has ended

    do_GET = do_POST = do_HEAD = do_CONNECT = refuse

    def log_message(self, *_):
        pass


class Browser:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def open(self, page, *options):
        """Returns (standard output, console lines, addresses that the page requested)."""
        Recorder.asked.clear()
        with tempfile.TemporaryDirectory(dir=self.folder) as profile:
            done = subprocess.run(
                [self.program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage",
                 f"--user-data-dir={profile}", "--enable-logging=stderr", "--log-level=0",
                 f"--proxy-server=http://127.0.0.1:{self.server.server_address[1]}",
                 "--proxy-bypass-list=<-loopback>", "--virtual-time-budget=3000",
                 "--window-size=1240,1700", *options, page.as_uri()],
                capture_output=True, text=True, timeout=LIMIT)
        if done.returncode != 0:
            sys.exit(f"{self.program} exited with {done.returncode}:\n{done.stderr[-3000:]}")
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, console, list(Recorder.asked)


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.captions, self.lines, self.boxes, self.inside = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "figcaption":
            self.captions.append("")
        if tag == "svg":
            self.boxes.append([float(word) for word in attributes["viewbox"].split()])
        if tag == "polyline":
            self.lines.append((self.boxes[-1], [tuple(map(float, pair.split(",")))
                                                for pair in attributes["points"].split()]))
        self.inside = tag

    def handle_data(self, data):
        if self.inside == "figcaption":
            self.captions[-1] += data


def write_run(folder):
    """Writes a run with a noisy loss, a value whose name looks like HTML, and a value logged once."""
    entries = [{"run": "digits", "config": {"lr": 0.1}}]
    for step in range(600):
        noise = math.sin(step * 12.9898) * 43758.5453 % 1
        values = {"train/loss": 2.3 * math.exp(-step / 150) + 0.2 * noise,
                  "train/<accuracy>": 1 - math.exp(-step / 200), "train/rate": 0.001}
        if step % 100 == 99:
            values["test/loss"] = 2.4 * math.exp(-step / 160)
        entries.append({"step": step, "time": 1.0 + step, "values": values})
    entries.append({"step": 600, "time": 601.0, "values": {"test/final": 0.987}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (folder / "traces").mkdir()
    for rank, waiting in ((0, 0.31), (1, 0.02), (2, 0.28)):
        steps = [0.1 + 0.01 * math.sin(step + rank) for step in range(12)]
        (folder / "traces" / f"profile-rank{rank}.json").write_text(json.dumps(
            {"rank": rank, "world": 3, "step_seconds": steps, "waiting_seconds": waiting,
             "peak_memory_bytes": (310 + 7 * rank) << 20, "communication": {
                 "all_reduce": {"count": 24, "bytes": 12 * 42_000_000, "seconds": 0.36},
                 "broadcast": {"count": 12, "bytes": 12_288, "seconds": 0.004}},
             "groups": {"world": {"count": 36, "bytes": 12 * 42_001_024, "seconds": 0.364,
                                  "waiting_seconds": waiting}}}))


def measured_in(dom):
    found = re.search(r'data-measured="([^"]*)"', dom)
    if not found:
        sys.exit(f"the page did not measure itself:\n{dom[-2000:]}")
    return json.loads(html.unescape(found.group(1)))


def check(problems, holds, text):
    if not holds:
        problems.append(text)


def main():
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        print(f"skipped: none of {', '.join(NAMES)} is installed (Debian: chromium)")
        sys.exit(SKIPPED)
    problems = []
    with tempfile.TemporaryDirectory(prefix="coupler-browser-") as path:
        folder = pathlib.Path(path)
        run = folder / "run"
        run.mkdir()
        write_run(run)
        subprocess.run([sys.argv[1], "report", str(run)], check=True, capture_output=True, timeout=60)
        text = (run / "report.html").read_text()
        browser = Browser(program, folder)

        # Proves that this test detects what it looks for.
        bad = folder / "bad.html"
        bad.write_text('<!doctype html><img src="http://somewhere.invalid/picture.png">'
                       f"<body><script>undefined_name()</script><script>onload = () => {{"
                       f"{MEASURE.removeprefix('<script>').removesuffix('</script>')}}}</script>")
        dom, console, asked = browser.open(bad, "--dump-dom")
        fetched = measured_in(dom)["fetched"]
        check(problems, any("somewhere.invalid" in address for address in fetched),
              f"a page's fetches are not detected: {fetched}")
        check(problems, any("undefined_name" in line for line in console),
              f"a script's error is not detected: {console}")
        check(problems, any("somewhere.invalid" in address for address in asked),
              f"a page's network requests are not detected: {asked}")

        dom, console, asked = browser.open(run / "report.html", "--dump-dom")
        check(problems, not console, f"on the console: {console}")
        check(problems, not asked, f"requested from the network: {asked}")
        page = Page(dom)
        for name in ("train/loss", "train/<accuracy>", "train/rate", "test/loss", "test/final",
                     "milliseconds per step"):
            check(problems, any(caption.startswith(name) for caption in page.captions),
                  f"no plot of {name}: {page.captions}")
        for (_, _, width, height), points in page.lines:
            check(problems, len(points) >= 2, f"a line of {len(points)} points")
            check(problems, all(0 <= x <= width and 0 <= y <= height for x, y in points),
                  "a line extends beyond its plot")

        measured = folder / "measured.html"
        measured.write_text(text.replace("</body>", MEASURE + "</body>"))
        dom, _, _ = browser.open(measured, "--dump-dom")
        seen = measured_in(dom)
        # This also detects fetches from the browser's own hosts.
        check(problems, not seen["fetched"], f"fetched: {seen['fetched']}")
        check(problems, not seen["wide"], "the page is wider than its window")
        # The noisy loss and accuracy have an additional line for their means; each rank has its steps.
        check(problems, len(seen["lines"]) >= 9, f"{len(seen['lines'])} lines are drawn")
        for line in seen["lines"]:
            check(problems, line["length"] > 100 and line["width"] > 100 and line["shown"] == "visible"
                  and line["stroke"] not in ("", "none"), f"a line is not visible: {line}")
        if len(sys.argv) > 2:
            browser.open(run / "report.html", f"--screenshot={sys.argv[2]}", "--hide-scrollbars")
    sys.exit("\n".join(problems) or 0)


main()
