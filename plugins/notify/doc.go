// Package notify tells people by chat and push services, through shoutrrr: Discord, Google Chat, Gotify, Matrix, Mattermost, ntfy,
// Pushbullet, Pushover, Rocket.Chat, Teams, Telegram and Zulip. It is a program of its own, hubrelay-notify, and a sink of the daemon:
//
//	sinks:
//	  phones:
//	    type: plugin
//	    command: [hubrelay-notify]
//	    topics: ["*.error"]
//	    digest: {wait: 30s}
//	    config: {url_files: [/run/secrets/ntfy, /run/secrets/telegram]}
//
//	urls, url_files     each one destination, in shoutrrr's form: ntfy://ntfy.sh/TOPIC, telegram://TOKEN@telegram?chats=CHAT,
//	                    discord://TOKEN@WEBHOOK, gotify://HOST/TOKEN, pushover://:TOKEN@USER, matrix://:TOKEN@HOST?rooms=ROOM …
//	                    Each is a secret; a file holds one and is read again for each attempt
//	allow_cidrs         addresses that may be dialled although they are not public, such as a Gotify of your own
//
// A message has a title and the same words as a mail of the relay, cut to what the service takes. What a producer wrote calls
// nobody by an @.
//
// # Delivery
//
// One attempt asks each destination once, one after the other, each within its share of the sink's `timeout`, and follows no redirect. 2xx
// is a success; 400, 413 and 422 make a dead letter; 429 waits as long as it asks; all else is retried. Of several destinations those
// that have it are not asked again, while the plugin lives. One that can never take it makes a dead letter only when the others
// have it.
//
// # What it says of itself
//
// Before it runs it finds mistakes in its configuration, and shows the requests that an event becomes: shoutrrr makes them, and nobody
// gets them. Whatever is a part of a destination's URL is hidden in them, wherever it is.
//
// # Why it is a program of its own
//
// shoutrrr's services make their HTTP clients themselves, most of them on net/http's default transport, ask without a context,
// and some repeat by themselves. Here that transport is ours, for the whole process: it judges every address as the sinks of the
// daemon do, ends with the attempt, lets one answer through and notes it. In the daemon that would be a global which all else shares.
// Services that go past it are not offered, nor those for which the daemon has a sink: email, webhook, slack, pagerduty.
//
// No error shows a part of a URL. TLS is always verified, also where shoutrrr's URL says not to.
package notify
