#!/usr/bin/env python3
"""Prints notifications of a hub as they arrive, each as one JSON line.

Needs the package `websockets` (Debian: python3-websockets). Reads HUBRELAY_URL, HUBRELAY_KEY and HUBRELAY_HUB;
arguments are topic patterns, such as 'container.*' '!*.error'.
"""

import asyncio
import json
import os
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import websockets

URL = os.environ.get("HUBRELAY_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("HUBRELAY_KEY", "")
HUB = os.environ.get("HUBRELAY_HUB", "")
PATH = "/v1/hubs/current/notifications"


def token() -> str:
    """Requests a token. It opens one websocket and expires soon."""
    request = urllib.request.Request(
        URL + PATH, headers={"Authorization": f"Bearer {KEY}", "X-Hub-Id": HUB}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        try:
            return json.load(response)["data"]["token"]
        except (ValueError, KeyError, TypeError):  # such as a page of a load balancer
            raise OSError("the response has no token: check the address") from None


def stream_url(patterns: list[str], after: str) -> str:
    query = {"token": token(), "cursor": "true", "after": after}
    if patterns:
        query["topics"] = ",".join(patterns)
    # http becomes ws, and https becomes wss.
    return URL.replace("http", "ws", 1) + PATH + "?" + urllib.parse.urlencode(query)


def rejection(url: str) -> str:
    """Returns the reason, which websockets before version 11 does not show. An event stream gets the same error."""
    request = urllib.request.Request(
        "http" + url.removeprefix("ws"), headers={"Accept": "text/event-stream"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10):
            return ""
    except urllib.error.HTTPError as error:
        return error.read().decode().strip()
    except OSError:
        return ""


async def listen(patterns: list[str]) -> None:
    pause = 1.0
    cursor = "now"  # of the last notification; store it to resume after a restart
    lost = False  # the relay no longer knows the cursor
    while True:
        min_pause = 0.0  # requested by the relay
        opened = float("inf")
        try:
            url = await asyncio.to_thread(stream_url, patterns, cursor)
            async with websockets.connect(url) as stream:
                opened = time.monotonic()
                print(f"listening to hub {HUB}", file=sys.stderr, flush=True)
                if lost:
                    handle({"topic": "hubrelay.resync"})
                lost = False
                async for message in stream:
                    notification = json.loads(message)
                    if notification.get("topic") != "hubrelay.cursor":  # only a position
                        handle(notification)
                    cursor = notification.get("cursor", cursor)
        except urllib.error.HTTPError as error:
            min_pause = retry_after(error.headers)
            problem = error.read().decode()
            if error.code in (401, 403, 404):  # a wrong key or address: a repetition cannot succeed
                sys.exit(f"the relay rejected the request: {problem}")
            print(f"the relay responded with {error.code}: {problem}", file=sys.stderr)
        except websockets.InvalidHandshake as error:
            response = getattr(error, "response", error)  # with a body since websockets 11
            min_pause = retry_after(getattr(response, "headers", {}))
            status = getattr(response, "status_code", 0)
            if status == 422 and cursor != "now":
                cursor, lost = "now", True
            elif status in (403, 422):
                # The request is wrong, for example a misspelled pattern.
                sys.exit(f"the relay rejected the stream: {rejection(url) or error}")
            print(f"the connection was not opened: {error}", file=sys.stderr)
        except (OSError, asyncio.TimeoutError, websockets.WebSocketException) as error:
            print(f"the connection was lost: {error}", file=sys.stderr)
        if time.monotonic() - opened > pause:  # the connection was stable
            pause = 1.0
        # A new token for each attempt, increasing pauses, and jitter.
        wait = max(pause * random.uniform(0.5, 1), min_pause)
        print(f"trying again in {wait:.1f} s", file=sys.stderr, flush=True)
        await asyncio.sleep(wait)
        pause = min(pause * 2, 30)


def retry_after(headers) -> float:
    value = headers.get("Retry-After") or ""
    return min(float(value), 300) if value.isdigit() else 0


def handle(notification: dict) -> None:
    """Change this. The topic hubrelay.resync means that notifications were lost: read the current state."""
    print(json.dumps(notification), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(listen(sys.argv[1:]))
    except KeyboardInterrupt:
        pass
