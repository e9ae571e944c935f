// Package pagerduty sends notifications as events to PagerDuty's Events API v2
// (https://developer.pagerduty.com/docs/events-api-v2-overview): what is bad triggers an alert, what is good again
// resolves it.
//
// It makes one attempt and says what the answer means. Retries, rates, gathering and dead letters belong to relay/internal/delivery
// and must not come in; no other sink is imported.
package pagerduty
