"""A Hub of datasets on the loopback interface, with the routes that pull and push need.

A test sets content and faults. `requests` records the requests and the bytes that were sent.
"""

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

PRIVATE_TOKEN = "hf_ownerownerownerownerownerowner"


@dataclass
class Fault:
    """A fault of the Hub with a file, always or a number of `times`.

    Kinds: "wrong" (wrong bytes of the right size), "cut" (fewer bytes than announced, then the
    connection closes), "status", "headers" (they replace those of each answer), "grown" (the body
    is `size` bytes longer) and "announced" (the announced size is longer as well).
    """

    kind: str
    times: int | None = None
    status: int = 500
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


class Hub:
    """The server, whose endpoint is `url`."""

    def __init__(self):
        self.repos = {}
        self.faults = {}
        self.requests = []
        self.down = None
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
            "token": (self.headers.get("Authorization") or "").removeprefix("Bearer "),
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
            return self._file("/".join(path[1:at]), path[at + 1], "/".join(path[at + 2 :]))
        if path == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if path == ["api", "validate-yaml"]:
            return self._json({"errors": [], "warnings": []})
        if path[:2] == ["api", "datasets"] and len(path) >= 4:
            return self._dataset("/".join(path[2:4]), path[4:], body)
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
        if name in self.hub.repos:
            return self._json({"error": "exists", "url": f"{self.hub.url}/datasets/{name}"}, 409)
        repo = self.hub.repo(name)
        repo.private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        repo.commit({".gitattributes": b""})
        return self._json({"url": f"{self.hub.url}/datasets/{name}", "name": name})

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
        if action == "revision":
            siblings = [{"rfilename": one} for one in files]
            return self._json(
                {"id": name, "sha": sha, "private": repo.private, "siblings": siblings, "tags": []}
            )
        if action == "preupload":
            listed = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self._json({"files": listed})
        if action == "commit":
            return self._commit(name, repo, revision, body)
        return self._error(404, "NotFound")

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
        url = f"{self.hub.url}/datasets/{name}/commit/{sha}"
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
        lfs, git = hashlib.sha256(data), hashlib.sha1(b"blob %d\0" % len(data) + data)
        etag = (lfs if len(data) > 4096 else git).hexdigest()
        fault = self.hub.fault(path) if self.command == "GET" else self.hub.faults.get(path)
        if fault and fault.kind == "status" and self.command == "GET":
            return self._error(fault.status, "Fault")
        if fault and fault.kind == "wrong":
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]
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
        for first in range(0, len(part), 1 << 20):
            piece = part[first : first + (1 << 20)]
            self.wfile.write(piece)
            self.wfile.flush()
            self.note["bytes"] += len(piece)

    def _json(self, content, status=200):
        kind = {"Content-Type": "application/json"}
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
