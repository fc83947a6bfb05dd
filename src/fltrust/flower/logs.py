"""The log as JSON: one object a line, whatever is in it.

{"time": "2026-01-31T12:00:00.123+00:00", "level": "WARNING", "event": "alarm", "round": 4, "node": 1234, "text": "..."}
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

FIELDS = ("event", "round", "node", "kind")


def about(event: str, **fields: Any) -> dict[str, Any]:
    """What a line is about, for programs that read it: `log.info(text, extra=about("round", round=3))`."""
    assert set(fields) <= set(FIELDS)
    return {"event": event, **fields}


class JSONFormatter(logging.Formatter):
    """JSON in ASCII has no line end and no control character in it, so text that others chose can neither forge lines nor move a cursor."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "event": "log",
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        line["text"] = record.getMessage().strip()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str).replace("\x7f", "\\u007f")


@contextmanager
def json_lines(logger: logging.Logger) -> Iterator[None]:
    """Makes all handlers of a logger write JSON. Flower's own handler has no use for a formatter, so its method is what changes."""
    handlers = list(logger.handlers)
    for handler in handlers:
        handler.format = JSONFormatter().format  # type: ignore[method-assign]
    try:
        yield
    finally:
        for handler in handlers:
            del handler.format
