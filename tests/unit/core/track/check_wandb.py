"""`wandb sync` uploads the run of the tracker `wandb`, to a server of this test: check_wandb.py TRACKING_SAMPLE"""
import glob
import gzip
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading

from reading import SKIPPED, need, write_run

need("wandb")

LIMIT = 200  # s
OLDEST = (0, 19)  # earlier clients ask their server for more

import wandb  # noqa: E402

if tuple(int(part) for part in wandb.__version__.split(".")[:2]) < OLDEST:
    print(f"skipped: wandb {wandb.__version__} is older than {OLDEST}")
    sys.exit(SKIPPED)

runs, history, summary, uploads, ends = [], {}, {}, {}, []


def answer(query, variables):
    """What the client needs of W&B's GraphQL interface for a run."""
    if "upsertBucket" in query:
        runs.append(variables)
        return {"upsertBucket": {"inserted": True, "bucket": {
            "id": "1", "name": variables["name"], "displayName": "first", "config": "{}", "summaryMetrics": "{}",
            "historyLineCount": 0, "sweepName": None,
            "project": {"id": "2", "name": "sample", "entity": {"id": "3", "name": "team"}}}}}
    if "viewer" in query:
        return {"viewer": {"id": "4", "entity": "team", "username": "me", "flags": "{}", "teams": {"edges": []}}}
    if "createRunFiles" in query:
        return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": [
            {"name": name, "uploadUrl": f"{url}/upload/{name}"} for name in variables["files"]]}}
    return {}


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def reply(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply({})

    def do_PUT(self):
        uploads[self.path.removeprefix("/upload/")] = self.body()
        self.reply({})

    def do_POST(self):
        body = self.body()
        if self.path == "/graphql":
            request = json.loads(body)
            return self.reply({"data": answer(request["query"], request.get("variables") or {})})
        if self.path.endswith("/file_stream"):
            stream = json.loads(body)
            lines = stream.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            for number, line in enumerate(lines["content"], lines["offset"]):
                history[number] = json.loads(line)
            for line in stream.get("files", {}).get("wandb-summary.json", {}).get("content", []):
                summary.update(json.loads(line))
            if stream.get("complete"):
                ends.append(stream["exitcode"])
        return self.reply({"limits": {}})

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
url = f"http://127.0.0.1:{server.server_port}"
threading.Thread(target=server.serve_forever, daemon=True).start()
with tempfile.TemporaryDirectory() as folder:
    write_run(sys.argv[1], os.path.join(folder, "runs"), "wandb", WANDB_NOTES="a note", WANDB_TAGS="a,b")
    (run,) = glob.glob(os.path.join(folder, "runs/wandb/offline-run-*"))
    sync = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", run], capture_output=True, text=True, timeout=LIMIT, cwd=folder,
        env={**os.environ, "WANDB_BASE_URL": url, "WANDB_API_KEY": "0" * 40, "HOME": folder,
             "http_proxy": "", "HTTP_PROXY": ""})
    assert sync.returncode == 0, sync.stdout + sync.stderr
server.shutdown()

sent = runs[0]
assert sent["project"] == "sample" and sent["displayName"] == "first" and run.endswith(sent["name"]), sent
assert sent["notes"] == "a note" and sent["tags"] == ["a", "b"], sent
config = {key: value["value"] for key, value in json.loads(sent["config"]).items() if key != "_wandb"}
assert config == {"lr": 0.001, "layers": 3, "bf16": True, "optimizer": "AdamW"}, config
rows = [history[number] for number in range(len(history))]
assert [row["_step"] for row in rows] == list(range(1500)), len(rows)
assert all(row["train/loss"] == 1 / (1 + step) for step, row in enumerate(rows))
assert rows[7]["note"] == 'seven, "é" \ufffd' and rows[7]["odd: name"] is True, rows[7]
assert rows[7]["nan"] == "NaN" and rows[7]["inf"] == "Infinity", rows[7]
picture, words = rows[7]["picture"], rows[7]["words"]
assert (picture["_type"], picture["width"], picture["caption"]) == ("image-file", 3, "six grays"), picture
assert uploads[picture["path"]].startswith(b"\x89PNG"), picture
assert words["_type"] == "table-file" and words["nrows"] == 2, words
assert json.loads(uploads[words["path"]]) == {"columns": ["text", "loss"], "data": [["a", 0.5], ["b", 1.5]]}
with open(sys.argv[1], "rb") as program:
    assert uploads["artifacts/program"] == program.read()
assert summary["train/loss"] == 1 / 1500 and summary["_step"] == 1499, summary
assert ends == [0], ends
print("W&B uploaded all of it")
