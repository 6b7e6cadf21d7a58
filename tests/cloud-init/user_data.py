"""Reads user data as a guest does: Python's email module takes the MIME parts apart, and cloud-init merges its
configuration. User data comes from standard input; the answer is JSON on standard output:

    {"parts": [{"type": "text/x-shellscript", "text": "#!/bin/sh\n"}], "config": {"runcmd": []}}

Exit code 3 means that cloud-init cannot be imported: tests/cloud-init/install.sh brings it.
"""

import email
import json
import logging
import os
import sys
import tempfile

try:
    from cloudinit.handlers.cloud_config import CloudConfigPartHandler
    from cloudinit.user_data import UserDataProcessor
    from cloudinit.util import load_yaml
except ImportError as error:
    print(f"cloud-init cannot be imported: {error}", file=sys.stderr)
    sys.exit(3)


class Paths:
    """The places of a guest that cloud-init writes to."""

    def __init__(self, folder):
        self.folder = folder
        self.cfgs = {}

    def get_ipath(self, name=None):
        return os.path.join(self.folder, name or "")

    get_ipath_cur = get_cpath = get_ipath


def parts(text):
    """The parts as they are in the message, decoded by Python alone."""
    message = email.message_from_string(text)
    if not message.is_multipart():
        return [{"type": "text/plain", "text": text}]
    leaves = [part for part in message.walk() if not part.is_multipart()]
    return [
        {
            "type": part.get_content_type(),
            "text": part.get_payload(decode=True).decode(part.get_content_charset() or "utf-8"),
        }
        for part in leaves
    ]


def config(text, folder):
    """What cloud-init makes of all parts that configure it."""
    # a failure at merging is a line in cloud-init's log, and a failure here
    failures = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: failures.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    paths = Paths(folder)
    message = UserDataProcessor(paths).process(text)
    merging = CloudConfigPartHandler(paths)
    merging.handle_part(None, "__begin__", None, None, None, None)
    for part in message.walk():
        kind = part.get_content_type()
        payload = part.get_payload(decode=True)
        if part.is_multipart() or payload is None:
            continue
        if kind in ("text/cloud-config", "text/cloud-config-jsonp"):
            name = part.get_filename() or "part"
            merging.handle_part(None, kind, name, payload.decode("utf-8"), None, dict(part))
    merging.handle_part(None, "__end__", None, None, None, None)
    if failures:
        sys.exit("cloud-init: " + "; ".join(failures))
    with open(paths.get_ipath("cloud_config"), encoding="utf-8") as file:
        return load_yaml(file.read(), default={})


def main():
    text = sys.stdin.buffer.read().decode("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"parts": parts(text), "config": config(text, folder)}))


main()
