// Package sourcestore stores what a source read from its upstream, together with the source's position, exactly once.
//
// Reading the upstream belongs to package source.
package sourcestore
