"""huggingface_hub finds what we download, and we what it downloads: check_hub.py HUB_SAMPLE

Both talk to the same server, which answers as the Hub does.
"""
import hashlib
import http.server
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "tokenizer.json": b"[1]", "generation_config.json": b"{ }",
         "model.safetensors": bytes(range(256)) * 999}

chosen = os.environ.pop("COUPLER_TEST_PYTHON", "")
if chosen and chosen != sys.executable:
    os.execv(chosen, [chosen, *sys.argv])
if importlib.util.find_spec("huggingface_hub") is None:
    print(f"skipped: {sys.executable} has no huggingface_hub (pip install huggingface_hub; "
          "COUPLER_TEST_PYTHON names another interpreter)")
    sys.exit(SKIPPED)

asked = []


class Hub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        asked.append((self.command, self.path))
        name = self.path.rsplit("/", 1)[-1]
        data = FILES.get(name)
        self.send_response(200 if data is not None else 404)
        self.send_header("X-Repo-Commit", COMMIT)
        if data is None:
            self.send_header("X-Error-Code", "EntryNotFound")
            data = b""
        elif name.endswith(".safetensors"):
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Linked-Size", str(len(data)))
        else:
            blob = b"blob %d\0" % len(data) + data
            self.send_header("ETag", f'"{hashlib.sha1(blob).hexdigest()}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"


def ours(home):
    run = subprocess.run([sys.argv[1], "org/tiny"], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "HF_HOME": home, "HF_ENDPOINT": url})
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


PYTHON = """
import sys
from huggingface_hub import hf_hub_download, scan_cache_dir, try_to_load_from_cache
files = sys.argv[2:]
if sys.argv[1] == "get":
    for name in files:
        hf_hub_download("org/tiny", name)
else:
    for name in files:
        path = try_to_load_from_cache("org/tiny", name)
        print(name, open(path, "rb").read().hex() if isinstance(path, str) else "absent" if path else "unknown")
    report = scan_cache_dir()
    assert not report.warnings, report.warnings
    (repo,) = report.repos
    (revision,) = repo.revisions
    assert revision.refs == {"main"} and repo.repo_id == "org/tiny", repo
"""


def theirs(home, *arguments, **environment):
    run = subprocess.run([sys.executable, "-c", PYTHON, *arguments], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "HF_HOME": home, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1",
                              "HF_HUB_DISABLE_TELEMETRY": "1", **environment})
    assert run.returncode == 0, run.stderr
    return run.stdout


for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "http_proxy", "HTTP_PROXY"):
    os.environ.pop(variable, None)
with tempfile.TemporaryDirectory() as folder:
    home = os.path.join(folder, "ours")
    ours(home)
    read = theirs(home, "read", *FILES, "special_tokens_map.json", "other.txt", HF_HUB_OFFLINE="1")
    expected = [f"{name} {data.hex()}" for name, data in FILES.items()]
    assert read.splitlines() == [*expected, "special_tokens_map.json absent", "other.txt unknown"], read

    home = os.path.join(folder, "theirs")
    theirs(home, "get", *FILES)
    asked.clear()
    found = ours(home)
    assert not asked, asked
    for name, data in FILES.items():
        with open(os.path.join(found, name), "rb") as file:
            assert file.read() == data, name
server.shutdown()
print("the cache is the same for both")
