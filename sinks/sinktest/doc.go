// Package sinktest is the conformance suite of sinks. It checks the contract of relay.Sink with a destination that has
// one of several behaviors.
//
// It knows neither sinks nor protocols. Only tests may import it.
package sinktest
