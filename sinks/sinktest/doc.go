// Package sinktest is the suite that every sink passes: what relay.Sink promises, checked against a destination that
// behaves as told.
//
// It knows no sink and no protocol, and nothing but tests may import it.
package sinktest
