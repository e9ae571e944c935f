#!/usr/bin/env python3
"""Prints the notifications of a hub as they come, each as one JSON line.

Needs the package `websockets` (Debian: python3-websockets). Reads HUBRELAY_URL, HUBRELAY_KEY and HUBRELAY_HUB;
arguments are topic patterns, such as 'container.*' '!*.error'.
"""

import asyncio
import json
import os
import sys
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
        return json.load(answer)["data"]["token"]


def stream_url(patterns: list[str]) -> str:
    query = {"token": token()}
    if patterns:
        query["topics"] = ",".join(patterns)
    # http becomes ws, and https becomes wss.
    return URL.replace("http", "ws", 1) + PATH + "?" + urllib.parse.urlencode(query)


async def listen(patterns: list[str]) -> None:
    pause = 1.0
    while True:
        try:
            url = await asyncio.to_thread(stream_url, patterns)
            async with websockets.connect(url) as stream:
                print(f"listening to hub {HUB}", file=sys.stderr, flush=True)
                pause = 1.0
                async for message in stream:
                    handle(json.loads(message))
        except urllib.error.HTTPError as error:
            problem = error.read().decode()
            if error.code in (401, 403):  # the key is wrong: trying again will not help
                sys.exit(f"the relay refused: {problem}")
            print(f"the relay answered {error.code}: {problem}", file=sys.stderr)
        except websockets.InvalidHandshake as error:
            # What is refused for what it asks, such as a misspelled pattern, will be refused again.
            answer = getattr(error, "response", error)  # from websockets 11 on it has the body too
            if getattr(answer, "status_code", 0) in (403, 422):
                sys.exit(f"the relay refused the stream: {error} {getattr(answer, 'body', b'').decode()}")
            print(f"the connection was not opened: {error}", file=sys.stderr)
        except (OSError, websockets.WebSocketException) as error:
            print(f"the connection was lost: {error}", file=sys.stderr)
        # A new token for each try, and longer pauses, so that a relay that restarts is not run over.
        await asyncio.sleep(pause)
        pause = min(pause * 2, 30)


def handle(notification: dict) -> None:
    """Yours to change."""
    print(json.dumps(notification), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(listen(sys.argv[1:]))
    except KeyboardInterrupt:
        pass
