// Package slack posts notifications to Slack as messages for people, with an incoming webhook
// (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks) or as an app with threads.
//
// It makes one attempt and classifies the response. Retries, rates, digests and dead letters belong to
// relay/internal/delivery. It imports no other sink. It uses only the message types of slack-go: requests go through
// internal/httpclient, which guards the network and keeps the URL secret.
package slack
