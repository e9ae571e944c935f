package main

import (
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/deliver"
)

// deliveryTiming says in a line each what keeps n from being sent alone and at once.
func deliveryTiming(cfg config.Sink, gathers bool, n relay.Notification) []string {
	var lines []string
	digest, key := cfg.Digest, deliver.Ordering(cfg.Ordering).Key(n)
	if digest.Wait > 0 {
		text := "gathered for " + config.ShortDuration(digest.Wait)
		if len(digest.By) > 0 {
			text += " by " + strings.Join(digest.By, " and ")
		}
		lines = append(lines, text+" into a digest that lists up to "+strconv.Itoa(digest.Max)+"; shown as a digest of one")
	}
	if batch := cfg.Batch; batch.Wait > 0 {
		lines = append(lines, "in batches of up to "+strconv.Itoa(batch.Max)+", which wait for "+config.ShortDuration(batch.Wait)+" at most unless full; shown as a batch of one")
	}
	if cfg.Rate.Limited() {
		text := "at most " + cfg.Rate.String()
		if cfg.Burst > 0 {
			text += ", up to " + strconv.Itoa(cfg.Burst) + " at once after a pause"
		}
		if gathers && digest.Wait == 0 && key == "" {
			text += "; what has to wait for that is gathered into a digest"
		}
		lines = append(lines, text)
	}
	switch {
	case key == "":
	case strings.HasPrefix(key, "container:"):
		lines = append(lines, "in order of its container")
	case cfg.Ordering == string(deliver.OrderingContainer):
		lines = append(lines, "in order of its hub, since it concerns no container or several")
	default:
		lines = append(lines, "in order of its hub")
	}
	return lines
}

// deliveryOf is how n would reach the sink: alone, or as a digest or a batch that nothing else came into.
func deliveryOf(cfg config.Sink, n relay.Notification) relay.Delivery {
	d := relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}}
	if cfg.Digest.Wait == 0 {
		d.Batch = cfg.Batch.Wait > 0
		return d
	}
	d.Digest = &relay.Digest{Count: 1, First: n.StoredAt(), Last: n.StoredAt(), Topics: map[string]int{n.Topic: 1}}
	if common := deliver.SharedAttributes(n, cfg.Digest.By); len(common) > 0 {
		d.Digest.Shared = common
	}
	return d
}
