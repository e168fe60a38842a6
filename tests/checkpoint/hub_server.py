"""The little of the hub's protocol that huggingface_hub speaks, on this machine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories by name, and what clients asked for."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: bool = False
    cut: dict[str, int] = field(default_factory=dict)  # file -> bytes after which the line drops, once
    failing: set[str] = field(default_factory=set)  # files that cannot be had
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range
    url: str = ""

    def fetched(self) -> list[str]:
        """Files whose content was sent, in order."""
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append((self.command, path, self.headers.get("Range", "")))
            if hub.broken:
                return self.send(500, b"{}", body)
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+?)|/tree/(.+?))?", path):
                return self.describe(found[1], found[2] or found[3] or "main", found[3] is not None, body)
            if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                return self.file(found[1], found[2], found[3], body)
            return self.send(404, b"{}", body)

        def refused(self, repo: str, revision: str, body: bool) -> bool:
            if repo in hub.gated:
                self.send(403, b"{}", body, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
            elif repo not in hub.repos:
                self.send(401, b"{}", body, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "none"})
            elif revision not in ("main", COMMIT):
                self.send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "none"})
            else:
                return False
            return True

        def describe(self, repo: str, revision: str, tree: bool, body: bool) -> None:
            if self.refused(repo, revision, body):
                return
            files = hub.repos[repo]
            listing = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            facts = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self.send(200, json.dumps(listing if tree else facts).encode(), body)

        def file(self, repo: str, revision: str, name: str, body: bool) -> None:
            if self.refused(repo, revision, body):
                return None
            data = hub.repos[repo].get(name)
            if data is None:
                return self.send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
            if name in hub.failing:
                return self.send(410, b"", body)
            etag = hashlib.sha1(data).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            status, wanted = 200, self.headers.get("Range")
            if wanted and (found := re.fullmatch(r"bytes=(\d+)-", wanted)):
                start = int(found[1])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                status, data = 206, data[start:]
            limit = hub.cut.pop(name, None) if body else None
            self.send(status, data, body, headers, limit)
            return None

        def send(
            self,
            status: int,
            data: bytes,
            body: bool,
            headers: dict[str, str] | None = None,
            limit: int | None = None,
        ) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data[:limit])
            if limit is not None:
                self.close_connection = True

    return Handler


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub on a free port until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
