// Package samples builds a realistic notification for each topic, to try templates, filters and sinks without real
// events. The samples are always the same.
//
// Random data, sending, and code for one sink do not belong here.
package samples
