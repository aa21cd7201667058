"""A Hub on the loopback interface, with the routes that pulling and pushing repositories need.

Datasets have their own names, and the names of models and Spaces begin with "models/" and
"spaces/".

A test sets content and faults. `requests` records the requests and the bytes that were sent. As a
program, `python loopback.py PORT_FILE`, it serves until it is killed.
"""

import base64
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

PRIVATE_TOKEN = "hf_ownerownerownerownerownerowner"


@dataclass
class Fault:
    """A fault of the Hub with a file, always or so many `times`.

    Kinds: "wrong" (wrong bytes of the right size), "cut" (fewer bytes than announced, then the
    connection closes), "short" (consistently shorter), "slow" (`rate` bytes a second), "status",
    "headers" (they replace those of each answer; None removes one), "grown" (the body is `size`
    bytes longer) and "announced" (the announced size is longer as well).
    """

    kind: str
    times: int | None = None
    status: int = 500
    rate: float = 1e6
    headers: dict = field(default_factory=dict)
    size: int = 0


@dataclass
class Repo:
    commits: dict = field(default_factory=dict)
    branches: dict = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files, branch="main"):
        parent = self.branches.get(branch, "")
        listing = repr(
            sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items())
        )
        sha = hashlib.sha1(f"{parent}{listing}".encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.branches[branch] = sha
        return sha

    def resolve(self, revision):
        revision = self.branches.get(revision, revision)
        return revision if revision in self.commits else None


def _page(url, name):
    """Returns the web address of a repository."""
    if name.startswith("models/"):
        return f"{url}/{name.removeprefix('models/')}"
    return f"{url}/{name}" if name.startswith("spaces/") else f"{url}/datasets/{name}"


class Hub:
    """The server, whose endpoint is `url`."""

    def __init__(self):
        self.repos = {}
        self.faults = {}
        self.requests = []
        self.down = None
        self.lfs = True
        self.endless = False
        # False answers, by the name of a dataset's route.
        self.answers = {}
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        # Errors of clients that were killed are not printed.
        self.server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def repo(self, name):
        return self.repos.setdefault(name, Repo())

    def sent(self, suffix=""):
        """Counts the bytes of files that GET requests got whose path ends with `suffix`."""
        return sum(
            one["bytes"]
            for one in self.requests
            if one["method"] == "GET"
            and "/resolve/" in one["path"]
            and one["path"].endswith(suffix)
        )

    def fault(self, name):
        found = self.faults.get(name)
        if found is None or found.times == 0:
            return None
        if found.times is not None:
            found.times -= 1
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._serve()

    do_HEAD = do_POST = do_GET

    def _serve(self):
        self.note = {
            "method": self.command,
            "path": unquote(urlsplit(self.path).path),
            "agent": self.headers.get("User-Agent", ""),
            "token": (self.headers.get("Authorization") or "").removeprefix("Bearer "),
            "range": self.headers.get("Range"),
            "bytes": 0,
        }
        self.hub.requests.append(self.note)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        try:
            if self.hub.down:
                return self._error(self.hub.down, "Unavailable")
            self._route(self.note["path"].strip("/").split("/"), body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, path, body):
        if "resolve" in path:
            at = path.index("resolve")
            prefix = {"datasets": path[1:at], "spaces": path[:at]}.get(path[0])
            name = "/".join(prefix or ["models", *path[:at]])
            return self._file(name, path[at + 1], "/".join(path[at + 2 :]))
        if path == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if path == ["api", "validate-yaml"]:
            return self._json({"errors": [], "warnings": []})
        if path[0] == "api" and path[1] in ("datasets", "models", "spaces") and len(path) >= 4:
            name = "/".join(path[2:4] if path[1] == "datasets" else path[1:4])
            return self._dataset(name, path[4:], body)
        return self._error(404, "NotFound")

    def _allowed(self, name, write=False):
        repo, token = self.hub.repos.get(name), self.note["token"]
        owner = token == PRIVATE_TOKEN
        if repo is None or (repo.private and not owner):
            return self._error(404 if token else 401, "RepoNotFound")
        if (repo.gated or write) and not owner:
            return self._error(403 if token else 401, "GatedRepo" if repo.gated else "Forbidden")
        return repo

    def _create(self, wanted):
        if self.note["token"] != PRIVATE_TOKEN:
            return self._error(401 if not self.note["token"] else 403, "Forbidden")
        name = f"{wanted['organization']}/{wanted['name']}"
        kind = wanted.get("type", "model")
        name = name if kind == "dataset" else f"{kind}s/{name}"
        if name in self.hub.repos:
            return self._json({"error": "exists", "url": _page(self.hub.url, name)}, 409)
        repo = self.hub.repo(name)
        repo.private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        repo.commit({".gitattributes": b""})
        return self._json({"url": _page(self.hub.url, name), "name": name})

    def _dataset(self, name, rest, body):
        write = rest[:1] in (["commit"], ["preupload"], ["branch"])
        repo = self._allowed(name, write)
        if repo is None:
            return None
        action = rest[0] if rest else "revision"
        revision = rest[1] if len(rest) > 1 else "main"
        if action == "branch":
            if revision in repo.branches:
                return self._json({"error": "exists"}, 409)
            repo.branches[revision] = repo.branches["main"]
            return self._json({})
        sha = repo.resolve(revision)
        if sha is None:
            return self._error(404, "RevisionNotFound")
        files = repo.commits[sha]
        if action in self.hub.answers:
            return self._answer(200, self.hub.answers[action], {"Content-Type": "application/json"})
        if action == "revision":
            siblings = [{"rfilename": one} for one in files]
            return self._json(
                {"id": name, "sha": sha, "private": repo.private, "siblings": siblings, "tags": []}
            )
        if action == "tree":
            again = {"Link": f'<{self.hub.url}{self.path}>; rel="next"'} if self.hub.endless else {}
            return self._json([self._entry(one, files[one]) for one in files], headers=again)
        if action == "paths-info":
            asked = [one for one in parse_qs(body.decode())["paths"] if one in files]
            if self.hub.endless:
                return self._endless()
            return self._json([self._entry(one, files[one]) for one in asked])
        if action == "preupload":
            listed = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self._json({"files": listed})
        if action == "commit":
            return self._commit(name, repo, revision, body)
        return self._error(404, "NotFound")

    def _endless(self):
        """Sends a list that has no end."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.close_connection = True
        while True:
            self.wfile.write(b"[" + b" " * (1 << 16))
            self.note["bytes"] += 1 << 16

    def _entry(self, name, data):
        entry = {"type": "file", "path": name, "size": len(data), "oid": _git(data)}
        if self._is_lfs(data):
            sha = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 130}
        return entry

    def _is_lfs(self, data):
        return self.hub.lfs and len(data) > 4096

    def _commit(self, name, repo, branch, body):
        files = dict(repo.commits[repo.branches[branch]])
        for line in body.splitlines():
            one = json.loads(line)
            value = one["value"]
            if one["key"] == "header":
                parent = value.get("parentCommit")
                if parent and parent != repo.branches[branch]:
                    return self._error(412, "PreconditionFailed")
            elif one["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif one["key"] == "deletedFile":
                del files[value["path"]]
        sha = repo.commit(files, branch)
        url = f"{_page(self.hub.url, name)}/commit/{sha}"
        return self._json({"success": True, "commitUrl": url, "commitOid": sha})

    def _file(self, name, revision, path):
        repo = self._allowed(name)
        if repo is None:
            return None
        sha = repo.resolve(revision)
        if sha is None:
            return self._error(404, "RevisionNotFound")
        data = repo.commits[sha].get(path)
        if data is None:
            return self._error(404, "EntryNotFound", {"X-Repo-Commit": sha})
        etag = hashlib.sha256(data).hexdigest() if self._is_lfs(data) else _git(data)
        fault = self.hub.fault(path) if self.command == "GET" else self.hub.faults.get(path)
        if fault and fault.kind == "status" and self.command == "GET":
            return self._error(fault.status, "Fault")
        if fault and fault.kind == "wrong":
            data = bytes([data[0] ^ 1]) + data[1:] if len(data) < 200 else _flipped(data)
        if fault and fault.kind == "short":
            data = data[: len(data) // 2]
        first = 0
        wanted = self.headers.get("Range")
        if wanted and self.command == "GET":
            first = int(wanted.removeprefix("bytes=").split("-")[0])
        part = data[first:]
        longer = fault.size if fault and (fault.kind == "announced" or self.command == "GET") else 0
        headers = {
            "X-Repo-Commit": sha,
            "ETag": f'"{etag}"',
            "Accept-Ranges": "bytes",
            "Content-Length": str(len(part) + longer),
        }
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if fault and fault.kind == "headers":
            headers |= fault.headers
            if 404 in headers:
                return self._error(404, "EntryNotFound", headers.pop(404))
        self.send_response(206 if first else 200)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self._send(part, fault)
            for _ in range(0, longer, 1 << 16):
                self._send(bytes(1 << 16), None)
        return None

    def _send(self, part, fault):
        if fault and fault.kind == "cut":
            part = part[: len(part) // 2]
            self.close_connection = True
        step = 1 << 14 if fault and fault.kind == "slow" else 1 << 20
        for first in range(0, len(part), step):
            piece = part[first : first + step]
            self.wfile.write(piece)
            self.wfile.flush()
            self.note["bytes"] += len(piece)
            if fault and fault.kind == "slow":
                time.sleep(len(piece) / fault.rate)

    def _json(self, content, status=200, headers=None):
        kind = {"Content-Type": "application/json", **(headers or {})}
        self._answer(status, json.dumps(content).encode(), kind)

    def _error(self, status, code, headers=None):
        body = json.dumps({"error": code}).encode()
        self._answer(
            status, body, {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})}
        )

    def _answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _git(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]
