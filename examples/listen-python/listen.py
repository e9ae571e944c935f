#!/usr/bin/env python3
"""Prints the notifications of a hub as they come, each as one JSON line.

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
    """Asks for a token. It opens one websocket, soon."""
    request = urllib.request.Request(
        URL + PATH, headers={"Authorization": f"Bearer {KEY}", "X-Hub-Id": HUB}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        try:
            return json.load(answer)["data"]["token"]
        except (ValueError, KeyError, TypeError):  # such as a load balancer's page
            raise OSError("the answer holds no token: is the address a relay's?") from None


def stream_url(patterns: list[str], after: str) -> str:
    query = {"token": token(), "cursor": "true", "after": after}
    if patterns:
        query["topics"] = ",".join(patterns)
    # http becomes ws, and https becomes wss.
    return URL.replace("http", "ws", 1) + PATH + "?" + urllib.parse.urlencode(query)


def refusal(url: str) -> str:
    """Asks why, which websockets does not say before version 11: an event stream at the same address is refused alike."""
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
    cursor = "now"  # of what came last: keep it, and a program that starts again misses nothing
    lost = False  # the relay no longer knows the cursor, since it was set up anew
    while True:
        asked = 0.0  # how long the relay wants to be left alone
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
                    if notification.get("topic") != "hubrelay.cursor":  # where the stream begins, and nothing else
                        handle(notification)
                    cursor = notification.get("cursor", cursor)
        except urllib.error.HTTPError as error:
            asked = retry_after(error.headers)
            problem = error.read().decode()
            if error.code in (401, 403, 404):  # the key or the address is wrong: trying again will not help
                sys.exit(f"the relay refused: {problem}")
            print(f"the relay answered {error.code}: {problem}", file=sys.stderr)
        except websockets.InvalidHandshake as error:
            answer = getattr(error, "response", error)  # from websockets 11 on it has the body too
            asked = retry_after(getattr(answer, "headers", {}))
            status = getattr(answer, "status_code", 0)
            if status == 422 and cursor != "now":
                cursor, lost = "now", True
            elif status in (403, 422):
                # What is refused for what it asks, such as a misspelled pattern, will be refused again.
                sys.exit(f"the relay refused the stream: {refusal(url) or error}")
            print(f"the connection was not opened: {error}", file=sys.stderr)
        except (OSError, asyncio.TimeoutError, websockets.WebSocketException) as error:
            print(f"the connection was lost: {error}", file=sys.stderr)
        if time.monotonic() - opened > pause:  # the connection held
            pause = 1.0
        # A new token for each try, longer pauses, and not at the same moment as everybody else.
        wait = max(pause * random.uniform(0.5, 1), asked)
        print(f"trying again in {wait:.1f} s", file=sys.stderr, flush=True)
        await asyncio.sleep(wait)
        pause = min(pause * 2, 30)


def retry_after(headers) -> float:
    value = headers.get("Retry-After") or ""
    return min(float(value), 300) if value.isdigit() else 0


def handle(notification: dict) -> None:
    """Yours to change. Of the topic hubrelay.resync: something was lost, so look at how things are now."""
    print(json.dumps(notification), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(listen(sys.argv[1:]))
    except KeyboardInterrupt:
        pass
