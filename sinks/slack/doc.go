// Package slack posts notifications to an incoming webhook of Slack (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks),
// as messages that people can read and search.
//
// It makes one attempt and says what the answer means. Retries, rates, gathering several notifications and dead letters
// belong to relay/internal/delivery and must not come in; no other sink is imported. Of slack-go only the types of messages are
// used: requests go through internal/httpclient, which guards the network and keeps the URL secret.
package slack
