"""Something that listens where a service should, and answers as a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["Answers", "pretended", "says"]


class Answers:
    """What the pretended service was asked, and how it answers."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str]]] = []


@contextmanager
def pretended(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[tuple[str, Answers]]:
    answers = Answers(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            answers.asked.append((parts.path, query))
            answers.answer(self)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", answers
        finally:
            server.shutdown()


def says(body: bytes, *, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer
