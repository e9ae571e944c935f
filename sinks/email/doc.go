// Package email sends notifications as mail by SMTP, a digest as one message, in text and HTML.
//
// It makes one attempt and classifies the server's answer. Retries, rates, digests and dead letters belong to
// relay/internal/delivery. It imports no other sink. go-mail provides the messages and the protocol. Connections are
// made here, so the guard checks each address when it is dialed.
package email
