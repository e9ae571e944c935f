// Package message says in plain words what a delivery is about, for sinks whose receivers are people: a subject, then of each
// notification what happened, its state and error, and the identifiers that one searches for; and which messages belong
// together.
//
// It knows no markup, no limits of a service and no sink.
package message
