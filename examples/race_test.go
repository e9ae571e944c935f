//go:build race

package examples

// The daemon under test is built with the race detector when the tests are.
const raceEnabled = true
