"""A hub on this machine: serves one folder of model files as ModelScope's and as Hugging Face's API do."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """``asked`` is every (method, path) so far; ``token`` is what a private repository wants to see."""

    url: str
    repos: dict[str, Path]
    token: str | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)

    def files_sent(self) -> list[str]:
        """Names of the files whose bytes were asked for, in order."""
        sent = []
        for method, path in self.asked:
            split = urlsplit(path)
            wanted = parse_qs(split.query).get("FilePath") or [split.path.partition("/resolve/")[2].partition("/")[2]]
            if method == "GET" and wanted[0]:
                sent.append(wanted[0])
        return sent


@contextmanager
def playing_hub(repos: dict[str, Path], token: str | None = None) -> Iterator[Hub]:
    """Serves ``repos`` (id -> folder) until the block ends."""
    hub = Hub(url="", repos=repos, token=token)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> None:
            hub.asked.append((self.command, self.path))
            split = urlsplit(self.path)
            path, query = unquote(split.path), parse_qs(split.query)
            for model_id, folder in hub.repos.items():
                if path == f"/api/v1/models/{model_id}/repo":
                    return self._modelscope_file(folder, query["FilePath"][0], query["Revision"][0])
                if path == f"/api/v1/models/{model_id}/repo/files":
                    return self._json({"Code": 200, "Success": True, "Data": {"Files": listing(folder)}})
                if path.startswith(f"/{model_id}/resolve/"):
                    revision, _, file = path.removeprefix(f"/{model_id}/resolve/").partition("/")
                    return self._hugging_face_file(folder, file, revision)
                if path.startswith(f"/api/models/{model_id}/revision/"):
                    siblings = [{"rfilename": row["Path"]} for row in listing(folder)]
                    return self._json({"id": model_id, "sha": COMMIT, "siblings": siblings})
                if path.startswith(f"/api/models/{model_id}/tree/"):
                    rows = listing(folder)
                    return self._json(
                        [{"type": "file", "path": row["Path"], "size": row["Size"], "oid": "0" * 40} for row in rows]
                    )
            return self._missing("RepoNotFound")

        def _allowed(self) -> bool:
            shown = (self.headers.get("Authorization") or "") + (self.headers.get("Cookie") or "")
            return hub.token is None or hub.token in shown

        def _modelscope_file(self, folder: Path, file: str, revision: str) -> None:
            if revision != "master" or not self._allowed() or not (folder / file).is_file():
                return self._missing("")
            return self._bytes((folder / file).read_bytes(), {})

        def _hugging_face_file(self, folder: Path, file: str, revision: str) -> None:
            if not self._allowed():
                return self._missing("RepoNotFound", 401)
            if revision not in ("main", COMMIT):
                return self._missing("RevisionNotFound")
            if not (folder / file).is_file():
                return self._missing("EntryNotFound")
            text = (folder / file).read_bytes()
            return self._bytes(text, {"ETag": f'"{hashlib.sha1(text).hexdigest()}"', "X-Repo-Commit": COMMIT})

        def _json(self, value: object) -> None:
            self._bytes(json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _missing(self, code: str, status: int = 404) -> None:
            body = json.dumps({"Code": status, "Message": "not found", "Success": False}).encode()
            self._bytes(body, {"X-Error-Code": code, "X-Repo-Commit": COMMIT}, status)

        def _bytes(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def listing(folder: Path) -> list[dict[str, object]]:
    """The files of a folder as ModelScope lists them."""
    return [
        {
            "Path": path.name,
            "Name": path.name,
            "Type": "blob",
            "Size": path.stat().st_size,
            "Sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.iterdir())
    ]
