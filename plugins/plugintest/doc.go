// Package plugintest is the suite that every plugin passes, in any language: what the protocol asks of a plugin, checked
// on its program. `hubrelay plugins check` prints it, [Run] makes a test of it.
//
// It knows no plugin, and nothing of what one does with a notification, or of what a driver moves: any answer will do, and
// what is asked of a driver are migrations that it must refuse.
package plugintest
