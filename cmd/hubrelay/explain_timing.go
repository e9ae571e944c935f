package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/relay/deliver"
)

// timing says in a line each what keeps n from being sent alone and at once.
func timing(cfg config.Sink, gathers bool, n relay.Notification) []string {
	var lines []string
	digest := cfg.Digest
	if digest.Wait > 0 {
		text := "gathered for " + config.ShortDuration(digest.Wait)
		if len(digest.By) > 0 {
			text += " by " + strings.Join(digest.By, " and ")
		}
		lines = append(lines, text+" into a digest that lists up to "+strconv.Itoa(digest.Max)+"; shown as a digest of one")
	}
	if cfg.Rate.Limited() {
		text := "at most " + cfg.Rate.String()
		if cfg.Burst > 0 {
			text += ", up to " + strconv.Itoa(cfg.Burst) + " at once after a pause"
		}
		if gathers && digest.Wait == 0 && deliver.Ordering(cfg.Ordering).Key(n) == "" {
			text += "; what has to wait for that is gathered into a digest"
		}
		lines = append(lines, text)
	}
	switch key := deliver.Ordering(cfg.Ordering).Key(n); {
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

// deliveryOf is how n would reach the sink: alone, or as a digest that nothing else came into.
func deliveryOf(cfg config.Sink, n relay.Notification) relay.Delivery {
	d := relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}}
	if cfg.Digest.Wait == 0 {
		return d
	}
	d.Digest = &relay.Digest{Count: 1, First: n.Stored(), Last: n.Stored(), Topics: map[string]int{n.Topic: 1}}
	for _, name := range cfg.Digest.By {
		if value := commonValue(name, n); value != "" {
			if d.Digest.By == nil {
				d.Digest.By = map[string]string{}
			}
			d.Digest.By[name] = value
		}
	}
	return d
}

// commonValue is what a digest by that name has in common when n is in it, as the digests that are gathered have it.
func commonValue(name string, n relay.Notification) string {
	switch name {
	case deliver.ByTopic:
		return n.Topic
	case deliver.ByHub:
		return n.Hub
	case deliver.ByCluster:
		e, _ := n.Envelope() // one that cannot be decoded names no cluster
		return strings.Join(slices.Compact(slices.Sorted(slices.Values(e.Context.Clusters))), ", ")
	}
	return ""
}
