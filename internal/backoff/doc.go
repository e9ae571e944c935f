// Package backoff computes the delays between the retries of a loop, as described at [Backoff].
//
// The retry schedule of deliveries is configured by operators and belongs to relay/internal/delivery.
package backoff
