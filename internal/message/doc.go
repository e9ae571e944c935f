// Package message builds plain-text summaries of deliveries for sinks whose readers are people. A summary has a subject
// and, for each notification, a title, the state, the error, and the identifiers. The package also groups messages into
// threads.
//
// Markup, limits of a service, and code for one sink do not belong here.
package message
