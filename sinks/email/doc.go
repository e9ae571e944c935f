// Package email sends notifications as mail by SMTP, a digest as one message, in text and HTML.
//
// It makes one attempt and says what the server's answer means. Retries, rates, gathering and dead letters belong to
// relay/internal/delivery and must not come in; no other sink is imported. Of go-mail the messages and the protocol are used;
// connections are made here, so that the guard judges each address as it is dialled.
package email
