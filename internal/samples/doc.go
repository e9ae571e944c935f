// Package samples makes notifications that look like those of a platform: one for each topic, always the same, for what
// has to be tried before anything has happened.
//
// Nothing here is random, is sent, or knows of a sink.
package samples
