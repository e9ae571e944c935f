// Package pagerduty sends notifications to PagerDuty's Events API v2
// (https://developer.pagerduty.com/docs/events-api-v2-overview). A problem triggers an alert, and a recovery resolves
// it.
//
// It makes one attempt and classifies the response. Retries, rates, digests and dead letters belong to
// relay/internal/delivery. It imports no other sink.
package pagerduty
