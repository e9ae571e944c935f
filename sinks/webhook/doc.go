// Package webhook delivers notifications by HTTP POST, signed as Standard Webhooks 1.0 says
// (https://github.com/standard-webhooks/standard-webhooks).
//
// It makes one attempt and says what the answer means. Retries, schedules, limits and dead letters belong to
// relay/internal/delivery and must not come in; no other sink is imported.
package webhook
