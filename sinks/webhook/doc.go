// Package webhook delivers notifications by HTTP POST, signed by Standard Webhooks 1.0
// (https://github.com/standard-webhooks/standard-webhooks).
//
// It makes one attempt and classifies the response. Retries, schedules, limits and dead letters belong to
// relay/internal/delivery. It imports no other sink.
package webhook
