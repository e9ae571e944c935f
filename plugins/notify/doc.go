// Package notify sends messages to people through chat and push services, with shoutrrr: Discord, Google Chat, Gotify,
// Matrix, Mattermost, ntfy, Pushbullet, Pushover, Rocket.Chat, Teams, Telegram and Zulip. It is the program
// hubrelay-notify, a plugin that the relay uses as a sink:
//
//	sinks:
//	  phones:
//	    type: plugin
//	    command: [hubrelay-notify]
//	    topics: ["*.error"]
//	    digest: {wait: 30s}
//	    config: {url_files: [/run/secrets/ntfy, /run/secrets/telegram]}
//
//	urls, url_files     one destination each, as a URL of shoutrrr: ntfy://ntfy.sh/TOPIC,
//	                    telegram://TOKEN@telegram?chats=CHAT, discord://TOKEN@WEBHOOK, gotify://HOST/TOKEN,
//	                    pushover://:TOKEN@USER, matrix://:TOKEN@HOST?rooms=ROOM …
//	                    Each is a secret. A file contains one and is read for each attempt.
//	allow_cidrs         networks that may be dialed although they are not public, for example for a private Gotify
//
// A message has a title and the same text as an email of the relay, truncated to the limit of the service. An @ in the
// data of a producer notifies no person.
//
// # Delivery
//
// An attempt sends one request to each destination, one after the other. Each request has an equal share of the
// sink's `timeout` and follows no redirects. Status 2xx is a success, unless the service's client rejects the
// body, because some services report errors in it; 400, 413 and 422 make a dead letter; 429 delays the next attempt as long
// as the response asks, for at most a day; any other status, such as 503, is retried with the schedule of the sink. A retry
// skips the destinations that have the message, unless the plugin was restarted. If one destination can never accept the
// message, it becomes a dead letter only when all others have it.
//
// # Checks before the start
//
// The plugin reports problems in its configuration and explains the requests of an event. shoutrrr makes these
// requests, but they are not sent. All parts of a destination's URL are redacted in them.
//
// # Why this is a separate program
//
// The services of shoutrrr create their own HTTP clients, most of them with net/http's default transport. They use no
// context, and some retry by themselves. This package replaces the default transport of the process. The replacement
// checks each address like the sinks of the relay, ends with the attempt, permits one response, and records it. In
// the relay, that would affect all components. Services that bypass the default transport are not supported, nor
// are those for which the relay has a sink: email, webhook, slack, pagerduty.
//
// No error contains a part of a URL. TLS certificates are always verified, even if the URL disables that.
package notify
